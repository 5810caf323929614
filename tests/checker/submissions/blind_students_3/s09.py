# expect: correct
import numpy as np


def row_softmax(S):
    S = S - S.max(axis=-1, keepdims=True)
    E = np.exp(S)
    return E / E.sum(axis=-1, keepdims=True)


class AttentionLayer:
    """Single-head self-attention with manual backprop (batch, time, dim)."""

    def __init__(self, d_in, d_k, d_v, rng=None, causal=False):
        rng = rng or np.random.default_rng(0)
        self.params = {
            "Wq": rng.normal(0, d_in ** -0.5, (d_in, d_k)),
            "Wk": rng.normal(0, d_in ** -0.5, (d_in, d_k)),
            "Wv": rng.normal(0, d_in ** -0.5, (d_in, d_v)),
        }
        self.grads = {}
        self.scale = 1.0 / np.sqrt(d_k)
        self.causal = causal

    def forward(self, X):
        p = self.params
        Q, K, V = X @ p["Wq"], X @ p["Wk"], X @ p["Wv"]
        S = Q @ K.transpose(0, 2, 1) * self.scale
        if self.causal:
            T = X.shape[1]
            S = np.where(np.tri(T, dtype=bool), S, -np.inf)
        A = row_softmax(S)
        self.cache = (X, Q, K, V, A)
        return A @ V

    def backward(self, dO):
        X, Q, K, V, A = self.cache
        p = self.params
        dV = A.transpose(0, 2, 1) @ dO
        dA = dO @ V.transpose(0, 2, 1)
        # jacobian of softmax times vector
        dS = A * (dA - (dA * A).sum(axis=-1, keepdims=True))
        dS = dS * self.scale
        dQ = dS @ K
        dK = dS.transpose(0, 2, 1) @ Q

        self.grads["Wq"] = np.einsum("btd,btk->dk", X, dQ)
        self.grads["Wk"] = np.einsum("btd,btk->dk", X, dK)
        self.grads["Wv"] = np.einsum("btd,btk->dk", X, dV)
        return dQ @ p["Wq"].T + dK @ p["Wk"].T + dV @ p["Wv"].T


def numerical_grad(f, W, eps=1e-5):
    g = np.zeros_like(W)
    it = np.nditer(W, flags=["multi_index"])
    for _ in it:
        i = it.multi_index
        old = W[i]
        W[i] = old + eps
        fp = f()
        W[i] = old - eps
        fm = f()
        W[i] = old
        g[i] = (fp - fm) / (2 * eps)
    return g


if __name__ == "__main__":
    rng = np.random.default_rng(1)
    layer = AttentionLayer(5, 4, 3, rng, causal=True)
    X = rng.normal(size=(2, 6, 5))
    R = rng.normal(size=(2, 6, 3))
    layer.forward(X)
    layer.backward(R)
    for name in ["Wq", "Wk", "Wv"]:
        num = numerical_grad(lambda: (layer.forward(X) * R).sum(), layer.params[name])
        print(name, "max err", np.abs(num - layer.grads[name]).max())
