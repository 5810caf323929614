# expect: correct
# why: right though unusual: the padding mask is added as (1 - mask) * -1e9 on the key axis
import numpy as np

class MultiHeadAttentionNumpy:
    """Transformer block from scratch - only forward pass (backward comes in HW3)"""

    def __init__(self, d_model, num_heads, seed=0):
        assert d_model % num_heads == 0
        r = np.random.RandomState(seed)
        s = 1 / np.sqrt(d_model)
        self.d_model, self.num_heads = d_model, num_heads
        self.depth = d_model // num_heads
        self.Wq = r.randn(d_model, d_model) * s
        self.Wk = r.randn(d_model, d_model) * s
        self.Wv = r.randn(d_model, d_model) * s
        self.Wo = r.randn(d_model, d_model) * s

    @staticmethod
    def _softmax(x, axis=-1):
        x = x - np.max(x, axis=axis, keepdims=True)
        ex = np.exp(x)
        return ex / np.sum(ex, axis=axis, keepdims=True)

    def split_heads(self, x):
        b, n, _ = x.shape
        return x.reshape(b, n, self.num_heads, self.depth).transpose(0, 2, 1, 3)

    def combine_heads(self, x):
        b, h, n, d = x.shape
        return x.transpose(0, 2, 1, 3).reshape(b, n, h * d)

    def __call__(self, x, mask=None):
        q = self.split_heads(x @ self.Wq)
        k = self.split_heads(x @ self.Wk)
        v = self.split_heads(x @ self.Wv)
        scores = np.matmul(q, np.swapaxes(k, -1, -2)) / np.sqrt(self.depth)
        if mask is not None:
            # mask (b, n): 1 for real words, 0 for padding
            scores = scores + (1.0 - mask[:, None, None, :]) * -1e9
        self.weights = self._softmax(scores)
        return self.combine_heads(np.matmul(self.weights, v)) @ self.Wo

if __name__ == "__main__":
    x = np.random.randn(2, 7, 12)
    m = np.ones((2, 7)); m[1, 4:] = 0
    mha = MultiHeadAttentionNumpy(12, 3)
    print(mha(x, m).shape)
    print(mha.weights[1, 0].round(2))
