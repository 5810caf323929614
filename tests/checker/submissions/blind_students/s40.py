# expect: correct
import numpy as np

# masked multi head attention in plain numpy, functions only (no classes!)
# all weights live in one dict, x has no batch: (tokens, features)

NEG = -1e9


def row_softmax(a):
    a = a - a.max(-1, keepdims=True)
    a = np.exp(a)
    return a / a.sum(-1, keepdims=True)


def to_heads(m, n_heads):
    t, f = m.shape
    return m.reshape(t, n_heads, f // n_heads).swapaxes(0, 1)      # (heads, tokens, f/heads)


def from_heads(m):
    h, t, f = m.shape
    return m.swapaxes(0, 1).reshape(t, h * f)


def multi_head_attention(x, p, n_heads, masked=True):
    Q = to_heads(x @ p["Wq"] + p["bq"], n_heads)
    K = to_heads(x @ p["Wk"] + p["bk"], n_heads)
    V = to_heads(x @ p["Wv"] + p["bv"], n_heads)
    S = Q @ K.swapaxes(1, 2) / np.sqrt(Q.shape[-1])
    if masked:
        t = x.shape[0]
        S = np.where(np.tri(t, dtype=bool), S, NEG)
    Z = from_heads(row_softmax(S) @ V)
    return Z @ p["Wo"] + p["bo"]


def make_params(n_features, seed=0):
    r = np.random.default_rng(seed)
    p = {}
    for name in "qkvo":
        p["W" + name] = r.standard_normal((n_features, n_features)) / np.sqrt(n_features)
        p["b" + name] = r.standard_normal(n_features) * 0.1
    return p


if __name__ == "__main__":
    params = make_params(12)
    x = np.random.randn(5, 12)
    y = multi_head_attention(x, params, n_heads=3)
    print(y.shape)
    # first token must not change when I change the last one
    x2 = x.copy()
    x2[-1] += 1
    print(np.abs(multi_head_attention(x2, params, 3)[0] - y[0]).max())
