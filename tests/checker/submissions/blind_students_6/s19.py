# expect: softmax-over-queries, split-without-transpose, missing-scale
# why: three: softmax over the queries; heads split without a transpose; no 1/sqrt(d_head)
import numpy as np

# Week 6 lab: multi-head attention in numpy
# one sentence at a time, X has shape (T, d_model)


def softmax(z):
    z = z - z.max()
    e = np.exp(z)
    return e / e.sum(axis=1, keepdims=True)


def multi_head_attention(X, Wq, Wk, Wv, Wo, num_heads, causal=False):
    """
    X              : (T, d_model)
    Wq, Wk, Wv, Wo : (d_model, d_model)
    returns        : (T, d_model)
    """
    T, d_model = X.shape
    d_head = d_model // num_heads

    Q = (X @ Wq).reshape(num_heads, T, d_head)
    K = (X @ Wk).reshape(num_heads, T, d_head)
    V = (X @ Wv).reshape(num_heads, T, d_head)

    scores = Q @ K.transpose(0, 2, 1)        # (num_heads, T, T)

    if causal:
        mask = np.triu(np.ones((T, T)), k=1)
        scores = scores - 1e9 * mask

    A = softmax(scores)
    Z = A @ V                                # (num_heads, T, d_head)
    Z = Z.transpose(1, 0, 2).reshape(T, d_model)
    return Z @ Wo


if __name__ == "__main__":
    rng = np.random.RandomState(0)
    X = rng.randn(5, 8)
    Ws = [rng.randn(8, 8) * 0.1 for _ in range(4)]
    out = multi_head_attention(X, *Ws, num_heads=2, causal=True)
    print(out.shape)
