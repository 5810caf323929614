# expect: correct
# why: right: numpy, no torch
import numpy as np


def softmax(x, axis=-1):
    x = x - np.max(x, axis=axis, keepdims=True)
    e = np.exp(x)
    return e / np.sum(e, axis=axis, keepdims=True)


class NumpyMultiHeadAttention:
    """Causal multi-head attention, forward pass only (no autograd in numpy).

    Weights are stored so that  y = x @ W + b.
    """

    def __init__(self, d_model, n_heads, seed=0):
        if d_model % n_heads:
            raise ValueError("d_model % n_heads != 0")
        rng = np.random.default_rng(seed)
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        lim = np.sqrt(6.0 / (2 * d_model))
        self.W_q, self.W_k, self.W_v, self.W_o = (
            rng.uniform(-lim, lim, (d_model, d_model)).astype(np.float32) for _ in range(4)
        )
        self.b_o = np.zeros(d_model, dtype=np.float32)

    def split_heads(self, m):
        b, t, _ = m.shape
        return m.reshape(b, t, self.n_heads, self.d_head).transpose(0, 2, 1, 3)

    def merge_heads(self, m):
        b, h, t, d = m.shape
        return m.transpose(0, 2, 1, 3).reshape(b, t, h * d)

    def __call__(self, x):
        x = np.asarray(x, dtype=np.float32)
        t = x.shape[1]
        q = self.split_heads(x @ self.W_q)
        k = self.split_heads(x @ self.W_k)
        v = self.split_heads(x @ self.W_v)

        scores = q @ np.swapaxes(k, -1, -2) / np.float32(np.sqrt(self.d_head))
        future = np.triu(np.ones((t, t), dtype=bool), k=1)
        scores = np.where(future, np.float32(-1e9), scores)
        self.weights = softmax(scores, axis=-1)
        return self.merge_heads(self.weights @ v) @ self.W_o + self.b_o


if __name__ == "__main__":
    mha = NumpyMultiHeadAttention(8, 2)
    x = np.random.randn(1, 4, 8)
    print(mha(x).shape)
    print(np.round(mha.weights[0, 0], 2))
