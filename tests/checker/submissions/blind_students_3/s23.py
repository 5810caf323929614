# expect: correct
# Trabalho 2 - Atenção multi-cabeça só com numpy
import numpy as np
from math import sqrt


def softmax_linha(linha):
    m = max(linha)
    exps = [np.exp(v - m) for v in linha]
    total = sum(exps)
    return np.array([e / total for e in exps])


def produto_escalar(q, k):
    soma = 0.0
    for a, b in zip(q, k):
        soma += a * b
    return soma


def atencao(Q, K, V, mascara=None):
    """ Q: (n, d)  K: (m, d)  V: (m, dv)
        mascara[i][j] = True  -> a consulta i pode ver a chave j """
    n, d = Q.shape
    m = K.shape[0]
    saida = np.zeros((n, V.shape[1]))
    pesos = np.zeros((n, m))
    for i in range(n):
        notas = []
        for j in range(m):
            if mascara is not None and not mascara[i][j]:
                notas.append(-np.inf)
            else:
                notas.append(produto_escalar(Q[i], K[j]) / sqrt(d))
        pesos[i] = softmax_linha(notas)
        for j in range(m):
            saida[i] += pesos[i, j] * V[j]
    return saida, pesos


class AtencaoMultiCabeca:
    def __init__(self, d_modelo, n_cabecas, semente=0):
        g = np.random.RandomState(semente)
        self.n_cabecas = n_cabecas
        self.d_cabeca = d_modelo // n_cabecas
        lim = sqrt(6 / (2 * d_modelo))
        # um trio de matrizes por cabeça, como no artigo
        self.Wq = g.uniform(-lim, lim, (n_cabecas, d_modelo, self.d_cabeca))
        self.Wk = g.uniform(-lim, lim, (n_cabecas, d_modelo, self.d_cabeca))
        self.Wv = g.uniform(-lim, lim, (n_cabecas, d_modelo, self.d_cabeca))
        self.Wo = g.uniform(-lim, lim, (d_modelo, d_modelo))

    def forward(self, x, contexto=None, causal=False):
        if contexto is None:
            contexto = x
        n, m = len(x), len(contexto)
        mascara = [[j <= i for j in range(m)] for i in range(n)] if causal else None
        cabecas = []
        for h in range(self.n_cabecas):
            s, _ = atencao(x @ self.Wq[h], contexto @ self.Wk[h], contexto @ self.Wv[h], mascara)
            cabecas.append(s)
        return np.hstack(cabecas) @ self.Wo


if __name__ == '__main__':
    x = np.random.randn(5, 12)
    mca = AtencaoMultiCabeca(12, 3)
    print(mca.forward(x, causal=True).round(3))
