# expect: padding-on-queries
# why: the padding mask of the key tokens is broadcast along the query axis (None, :, None) instead of the key axis, so padded keys are not hidden, on line 38
# Práctica 4: auto-atención multicabezal del codificador
# La máscara de relleno vale True donde hay un token real.
import math
import torch
import torch.nn as nn


class AtencionMulticabezal(nn.Module):
    def __init__(self, dim_modelo, n_cabezas, p=0.0):
        super().__init__()
        assert dim_modelo % n_cabezas == 0, "dimensiones incompatibles"
        self.n_cabezas = n_cabezas
        self.dim_cabeza = dim_modelo // n_cabezas
        self.consulta = nn.Linear(dim_modelo, dim_modelo)
        self.clave = nn.Linear(dim_modelo, dim_modelo)
        self.valor = nn.Linear(dim_modelo, dim_modelo)
        self.salida = nn.Linear(dim_modelo, dim_modelo)
        self.apagado = nn.Dropout(p)

    def separar(self, t):
        lote, largo, _ = t.shape
        t = t.reshape(lote, largo, self.n_cabezas, self.dim_cabeza)
        return t.permute(0, 2, 1, 3)

    def juntar(self, t):
        lote, _, largo, _ = t.shape
        return t.permute(0, 2, 1, 3).reshape(lote, largo, -1)

    def forward(self, x, mascara_relleno=None):
        q = self.separar(self.consulta(x))
        k = self.separar(self.clave(x))
        v = self.separar(self.valor(x))

        puntajes = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.dim_cabeza)
        if mascara_relleno is not None:
            # (lote, largo) -> (lote, cabezas, largo, largo)
            m = mascara_relleno[:, None, :, None]
            puntajes = puntajes.masked_fill(~m, -1e9)
        pesos = self.apagado(torch.softmax(puntajes, dim=-1))
        return self.salida(self.juntar(torch.matmul(pesos, v)))


if __name__ == "__main__":
    torch.manual_seed(7)
    frases = torch.randn(2, 5, 16)
    reales = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    capa = AtencionMulticabezal(16, 4)
    print(capa(frases, reales).shape)
