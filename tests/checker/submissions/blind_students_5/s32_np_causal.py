# expect: correct
# why: plain
import numpy as np

rng = np.random.default_rng(42)


def softmax(z):
    z = z - z.max(axis=-1, keepdims=True)  # avoid overflow
    e = np.exp(z)
    return e / e.sum(axis=-1, keepdims=True)


def causal_attention(X, Wq, Wk, Wv):
    """
    X: (n_tokens, d_model)
    returns: context (n_tokens, d_v), weights (n_tokens, n_tokens)
    """
    Q = X @ Wq
    K = X @ Wk
    V = X @ Wv
    S = Q @ K.T / np.sqrt(K.shape[1])
    n = X.shape[0]
    future = np.triu(np.ones((n, n), dtype=bool), k=1)
    S = np.where(future, -np.inf, S)
    A = softmax(S)
    return A @ V, A


if __name__ == "__main__":
    X = rng.normal(size=(5, 8))
    Wq, Wk, Wv = (rng.normal(size=(8, 4)) for _ in range(3))
    out, A = causal_attention(X, Wq, Wk, Wv)
    np.set_printoptions(precision=3, suppress=True)
    print(A)
    print("rows sum to", A.sum(axis=1))
    assert out.shape == (5, 4)
