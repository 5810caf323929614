# expect: correct
# Tarea 3 - Aprendizaje profundo
# atención multi-cabeza causal, una sola frase (sin batch)
import torch
import torch.nn as nn
from math import sqrt


class AtencionMultiCabeza(nn.Module):

    def __init__(self, dim_entrada, dim_salida, num_cabezas):
        super().__init__()
        if dim_salida % num_cabezas != 0:
            raise ValueError("dim_salida tiene que ser multiplo de num_cabezas")
        self.num_cabezas = num_cabezas
        self.dim_cabeza = dim_salida // num_cabezas
        self.consulta = nn.Linear(dim_entrada, dim_salida, bias=False)
        self.clave = nn.Linear(dim_entrada, dim_salida, bias=False)
        self.valor = nn.Linear(dim_entrada, dim_salida, bias=False)
        self.salida = nn.Linear(dim_salida, dim_salida)

    def forward(self, frase):
        # frase: (tokens, dim_entrada)
        n = frase.shape[0]
        Q, K, V = self.consulta(frase), self.clave(frase), self.valor(frase)
        futuro = torch.ones(n, n, device=frase.device).triu(1).bool()

        trozos = []
        for c in range(self.num_cabezas):
            ini = c * self.dim_cabeza
            fin = ini + self.dim_cabeza
            puntos = Q[:, ini:fin] @ K[:, ini:fin].T
            puntos = puntos / sqrt(self.dim_cabeza)
            puntos[futuro] = float("-inf")
            pesos = torch.softmax(puntos, dim=1)    # cada fila suma 1
            trozos.append(pesos @ V[:, ini:fin])

        return self.salida(torch.cat(trozos, dim=1))


def prueba():
    torch.manual_seed(0)
    capa = AtencionMultiCabeza(10, 12, 3)
    frase = torch.randn(7, 10)
    print("salida:", capa(frase).shape)


if __name__ == "__main__":
    prueba()
