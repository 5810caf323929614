# expect: softmax-no-keepdim
# why: Line 6: the row sums lack keepdims, so broadcasting divides column j by the sum of row j; the rows do not sum to 1. Shows always (T > 1).
import numpy as np


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum(axis=-1)


class NumpyAttention:
    """multi head attention for one sentence X of shape (T, d)"""

    def __init__(self, d, heads, seed=0):
        rs = np.random.RandomState(seed)
        self.heads = heads
        self.dk = d // heads
        # one matrix per head
        self.Wq = rs.randn(heads, d, self.dk) / np.sqrt(d)
        self.Wk = rs.randn(heads, d, self.dk) / np.sqrt(d)
        self.Wv = rs.randn(heads, d, self.dk) / np.sqrt(d)
        self.Wo = rs.randn(d, d) / np.sqrt(d)

    def head(self, X, h, mask):
        Q = X.dot(self.Wq[h])
        K = X.dot(self.Wk[h])
        V = X.dot(self.Wv[h])
        S = Q.dot(K.T) / np.sqrt(self.dk)
        if mask is not None:
            S = np.where(mask, S, -1e9)
        A = softmax(S)
        return A.dot(V)

    def __call__(self, X, causal=False):
        mask = None
        if causal:
            mask = np.tril(np.ones((len(X), len(X)))) > 0
        Z = [self.head(X, h, mask) for h in range(self.heads)]
        return np.concatenate(Z, axis=1).dot(self.Wo)


if __name__ == "__main__":
    att = NumpyAttention(8, 2)
    X = np.random.randn(5, 8)
    print(att(X).shape)
    print(att(X, causal=True))
