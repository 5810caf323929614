# expect: split-without-transpose, missing-scale, mask-fill-not-inf
# why: three mistakes: the heads are split by reshape(n_heads, T, hd) without a transpose, the scores are not divided by sqrt(hd), and the mask is multiplied onto the scores so hidden ones become 0 and not -inf (line 21: `q = (x @ params["q"]).reshape(n_heads, T, hd)`; line 25: `scores = q @ k.transpose(0, 2, 1)`; line 27: `scores = scores * mask`)
import numpy as np


def softmax(x):
    m = np.max(x, axis=-1, keepdims=True)
    e = np.exp(x - m)
    return e / np.sum(e, axis=-1, keepdims=True)


def init(d, seed=1):
    g = np.random.default_rng(seed)
    return {n: g.normal(0, 0.5, (d, d)) for n in ("q", "k", "v", "o")}


def causal_mha(x, params, n_heads):
    """masked multi head attention of the GPT decoder, x: (T, D)"""
    T, D = x.shape
    hd = D // n_heads
    q = (x @ params["q"]).reshape(n_heads, T, hd)
    k = (x @ params["k"]).reshape(n_heads, T, hd)
    v = (x @ params["v"]).reshape(n_heads, T, hd)

    scores = q @ k.transpose(0, 2, 1)
    mask = np.tril(np.ones((T, T)))
    scores = scores * mask          # hide the future
    att = softmax(scores)

    heads = att @ v                 # (n_heads, T, hd)
    out = np.concatenate([heads[i] for i in range(n_heads)], axis=-1)
    return out @ params["o"]


if __name__ == "__main__":
    x = np.random.default_rng(0).normal(size=(6, 8))
    y = causal_mha(x, init(8), 2)
    print(y.shape)
    print(np.round(y, 3))
