# expect: correct
"""Inference-only grouped-query attention in plain numpy (export target: no torch on the box)."""
import numpy as np


def _stable_softmax(a, axis):
    a = a - a.max(axis=axis, keepdims=True)
    np.exp(a, out=a)
    a /= a.sum(axis=axis, keepdims=True)
    return a


class NumpyGQA:
    """x: (B, T, D) -> (B, T, D); query head i reads kv head i // (n_q // n_kv). Causal."""

    def __init__(self, dim, n_q, n_kv, seed=0):
        if n_q % n_kv:
            raise ValueError(f"{n_q} query heads cannot be grouped over {n_kv} kv heads")
        rng = np.random.default_rng(seed)
        self.n_q, self.n_kv = n_q, n_kv
        self.hd = dim // n_q
        std = dim ** -0.5
        self.wq = rng.normal(0.0, std, (dim, n_q, self.hd))
        self.wk = rng.normal(0.0, std, (dim, n_kv, self.hd))
        self.wv = rng.normal(0.0, std, (dim, n_kv, self.hd))
        self.wo = rng.normal(0.0, std, (n_q, self.hd, dim))

    def __call__(self, x):
        B, T, _ = x.shape
        g = self.n_q // self.n_kv
        q = np.einsum("btc,chd->bthd", x, self.wq).reshape(B, T, self.n_kv, g, self.hd)
        k = np.einsum("btc,chd->bthd", x, self.wk)
        v = np.einsum("btc,chd->bthd", x, self.wv)

        s = np.einsum("btngd,bsnd->bngts", q, k) / np.sqrt(self.hd)
        s = np.where(np.tri(T, dtype=bool), s, -np.inf)
        p = _stable_softmax(s, axis=-1)
        y = np.einsum("bngts,bsnd->btngd", p, v).reshape(B, T, self.n_q, self.hd)
        return np.einsum("bthd,hdc->btc", y, self.wo)
