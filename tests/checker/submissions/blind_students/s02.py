# expect: wrong
# why: the softmax divides by the sum over the whole score matrix instead of each row's sum, so the rows do not sum to one.
"""
HW2 - Attention from scratch in NumPy
Name: ______   Student nr: ______
Part (a) softmax, part (b) scaled dot product attention, part (c) the layer
"""
import numpy as np


def softmax(x):
    # subtract max for numerical stability
    e = np.exp(x - np.max(x))
    return e / np.sum(e)


def scaled_dot_product(Q, K, V):
    """Q: (n, dk)  K: (m, dk)  V: (m, dv)  ->  (n, dv)"""
    dk = Q.shape[1]
    scores = np.dot(Q, K.T) / np.sqrt(dk)
    weights = softmax(scores)
    return np.dot(weights, V), weights


class SelfAttention:
    def __init__(self, d_model, d_k, seed=0):
        rng = np.random.default_rng(seed)
        self.Wq = rng.normal(size=(d_model, d_k)) * 0.3
        self.Wk = rng.normal(size=(d_model, d_k)) * 0.3
        self.Wv = rng.normal(size=(d_model, d_k)) * 0.3

    def forward(self, X):
        Q = X @ self.Wq
        K = X @ self.Wk
        V = X @ self.Wv
        out, self.last_weights = scaled_dot_product(Q, K, V)
        return out

    __call__ = forward


if __name__ == "__main__":
    X = np.random.randn(5, 8)
    sa = SelfAttention(8, 4)
    print("out", sa(X).shape)
    print("weights\n", sa.last_weights.round(3))
