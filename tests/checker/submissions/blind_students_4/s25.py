# expect: mask-after-softmax
# why: the causal mask is multiplied onto the weights after the softmax without renormalising, so rows no longer sum to one, on line 37
"""Assignment 2: self-attention in NumPy only (forward pass)."""
import numpy as np


def softmax(z, axis=-1):
    z = z - z.max(axis=axis, keepdims=True)
    e = np.exp(z)
    return e / e.sum(axis=axis, keepdims=True)


class NumpySelfAttention:
    def __init__(self, d_model, n_heads, seed=0):
        assert d_model % n_heads == 0
        rng = np.random.default_rng(seed)
        s = 1.0 / np.sqrt(d_model)
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.Wq = rng.normal(0, s, (d_model, d_model))
        self.Wk = rng.normal(0, s, (d_model, d_model))
        self.Wv = rng.normal(0, s, (d_model, d_model))
        self.Wo = rng.normal(0, s, (d_model, d_model))

    def split(self, a):
        b, t, _ = a.shape
        return a.reshape(b, t, self.n_heads, self.d_head).transpose(0, 2, 1, 3)

    def __call__(self, x):
        b, t, d = x.shape
        Q = self.split(x @ self.Wq)
        K = self.split(x @ self.Wk)
        V = self.split(x @ self.Wv)

        scores = Q @ K.transpose(0, 1, 3, 2) / np.sqrt(self.d_head)
        weights = softmax(scores, axis=-1)
        causal = np.tril(np.ones((t, t)))
        weights = weights * causal

        out = weights @ V
        out = out.transpose(0, 2, 1, 3).reshape(b, t, d)
        return out @ self.Wo


if __name__ == "__main__":
    x = np.random.default_rng(1).normal(size=(2, 5, 8))
    att = NumpySelfAttention(8, 2)
    y = att(x)
    print(y.shape, y.mean())
