# expect: softmax-over-everything, mask-fill-not-inf
# why: Lines 8-9: softmax is normalised over the complete (n, n) matrix (np.max and e.sum without axis), so the rows of attention do not sum to 1 (the whole matrix does).
# why: Line 22: the causal mask is multiplied with the scores before softmax; masked scores become 0 rather than -inf, so future tokens still get weight.
import numpy as np

np.random.seed(42)

# ---- helper functions ----

def softmax(x):
    e = np.exp(x - np.max(x))
    return e / e.sum()


def causal_mask(n):
    # lower triangle = 1 (allowed)
    return np.tril(np.ones((n, n)))


def scaled_dot_product(Q, K, V, mask=None):
    """Q, K, V : (n, d)"""
    d = Q.shape[-1]
    scores = Q @ K.T / np.sqrt(d)
    if mask is not None:
        scores = scores * mask
    A = softmax(scores)
    return A @ V, A


class MultiHeadAttentionNumpy:
    def __init__(self, d_model, heads):
        assert d_model % heads == 0
        self.heads = heads
        self.dh = d_model // heads
        s = 1.0 / np.sqrt(d_model)
        self.Wq = np.random.randn(d_model, d_model) * s
        self.Wk = np.random.randn(d_model, d_model) * s
        self.Wv = np.random.randn(d_model, d_model) * s
        self.Wo = np.random.randn(d_model, d_model) * s

    def __call__(self, X, causal=True):
        n, d = X.shape
        Q = X @ self.Wq
        K = X @ self.Wk
        V = X @ self.Wv
        mask = causal_mask(n) if causal else None
        outs = []
        self.maps = []
        for h in range(self.heads):
            sl = slice(h * self.dh, (h + 1) * self.dh)
            o, A = scaled_dot_product(Q[:, sl], K[:, sl], V[:, sl], mask)
            outs.append(o)
            self.maps.append(A)
        return np.concatenate(outs, axis=-1) @ self.Wo


if __name__ == "__main__":
    X = np.random.randn(6, 16)
    mha = MultiHeadAttentionNumpy(16, 4)
    Y = mha(X)
    print("output", Y.shape)
    print("sum of attention weights head 0:", mha.maps[0].sum())
