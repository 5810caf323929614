# expect: correct
"""
Attention with only numpy, to really understand what happens.

weights is a dict with
    Wq, Wk, Wv : (d_in, d_out)
    Wo         : (d_out, d_out)   optional
"""
import numpy as np


def softmax(z):
    z = z - np.max(z, axis=-1, keepdims=True)
    e = np.exp(z)
    return e / np.sum(e, axis=-1, keepdims=True)


def init_weights(d_in, d_out, seed=0):
    rng = np.random.default_rng(seed)
    w = {n: rng.normal(0, d_in ** -0.5, (d_in, d_out)) for n in ("Wq", "Wk", "Wv")}
    w["Wo"] = rng.normal(0, d_out ** -0.5, (d_out, d_out))
    return w


def multi_head_attention(x, weights, num_heads, causal=True, return_weights=False):
    """x: (T, d_in) -> (T, d_out)"""
    T = x.shape[0]
    Q = x @ weights["Wq"]
    K = x @ weights["Wk"]
    V = x @ weights["Wv"]

    # one array per head, columns are cut in num_heads pieces
    Qs = np.split(Q, num_heads, axis=1)
    Ks = np.split(K, num_heads, axis=1)
    Vs = np.split(V, num_heads, axis=1)

    outs, maps = [], []
    for q, k, v in zip(Qs, Ks, Vs):
        s = q @ k.T / np.sqrt(q.shape[1])
        if causal:
            s = np.where(np.tri(T, dtype=bool), s, -np.inf)
        a = softmax(s)
        maps.append(a)
        outs.append(a @ v)

    y = np.concatenate(outs, axis=1)
    if "Wo" in weights:
        y = y @ weights["Wo"]
    if return_weights:
        return y, np.stack(maps)
    return y


if __name__ == "__main__":
    x = np.random.default_rng(1).random((6, 3))
    y, a = multi_head_attention(x, init_weights(3, 4), 2, return_weights=True)
    print(y.shape, a.shape)
    np.set_printoptions(precision=3, suppress=True)
    print(a)
