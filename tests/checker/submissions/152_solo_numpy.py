# expect: softmax-over-queries
# Atención multi-cabeza solo con numpy
# Alumna: grupo B, entrega 2
import numpy as np


def softmax(z):
    """softmax estable: los pesos de cada consulta suman 1"""
    z = z - z.max(axis=-1, keepdims=True)
    e = np.exp(z)
    return e / e.sum(axis=1, keepdims=True)


def separar_cabezas(m, n_cabezas):
    # (T, d) -> (n_cabezas, T, d // n_cabezas)
    T, d = m.shape
    return m.reshape(T, n_cabezas, d // n_cabezas).transpose(1, 0, 2)


def atencion_multicabeza(X, Wq, Wk, Wv, Wo, n_cabezas=2, causal=True):
    """X: (T, d_in); Wq, Wk, Wv: (d_in, d_out); Wo: (d_out, d_out).

    Con causal=True cada token solo mira hacia atrás.
    Devuelve (salida, pesos).
    """
    T = X.shape[0]
    Q = separar_cabezas(X @ Wq, n_cabezas)
    K = separar_cabezas(X @ Wk, n_cabezas)
    V = separar_cabezas(X @ Wv, n_cabezas)

    puntajes = Q @ K.transpose(0, 2, 1) / np.sqrt(Q.shape[-1])
    if causal:
        futuro = np.triu(np.ones((T, T)), k=1).astype(bool)
        puntajes[:, futuro] = -np.inf

    pesos = softmax(puntajes)
    Z = pesos @ V
    Z = Z.transpose(1, 0, 2).reshape(T, -1)
    return Z @ Wo, pesos


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    X = rng.random((6, 3))
    Ws = [rng.normal(size=(3, 4)) for _ in range(3)]
    Wo = rng.normal(size=(4, 4))
    salida, pesos = atencion_multicabeza(X, *Ws, Wo)
    print(salida.shape, pesos.shape)
