# expect: key-from-query-weights, mask-fill-not-inf, softmax-over-heads
# why: Line 29: keys are projected with W_q instead of W_k (W_k is never used). Shows always.
# why: Line 35: masked scores are filled with 1e-9 instead of a large negative number, so masked positions keep weight. Shows only when a mask is passed.
# why: Line 37: softmax over dim 1, the heads, instead of the keys. Shows always.
# Tarea 2 - Atención multicabeza
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class AtencionMulticabeza(nn.Module):
    def __init__(self, d_modelo=64, n_cabezas=8, dropout=0.1):
        super().__init__()
        self.d_modelo = d_modelo
        self.n_cabezas = n_cabezas
        self.d_cabeza = d_modelo // n_cabezas

        self.W_q = nn.Linear(d_modelo, d_modelo)
        self.W_k = nn.Linear(d_modelo, d_modelo)
        self.W_v = nn.Linear(d_modelo, d_modelo)
        self.W_o = nn.Linear(d_modelo, d_modelo)
        self.dropout = nn.Dropout(dropout)

    def separar(self, t):
        B, T, _ = t.shape
        return t.view(B, T, self.n_cabezas, self.d_cabeza).transpose(1, 2)

    def forward(self, x, mascara=None):
        """mascara: (B, T, T), 1 = visible, 0 = oculto"""
        B, T, _ = x.shape
        consulta = self.separar(self.W_q(x))
        clave = self.separar(self.W_q(x))
        valor = self.separar(self.W_v(x))

        puntaje = torch.matmul(consulta, clave.transpose(2, 3)) / math.sqrt(self.d_cabeza)
        if mascara is not None:
            # un número muy pequeño para que el softmax lo ignore
            puntaje = puntaje.masked_fill(mascara.unsqueeze(1) == 0, 1e-9)

        pesos = F.softmax(puntaje, dim=1)
        pesos = self.dropout(pesos)

        salida = torch.matmul(pesos, valor)
        salida = salida.transpose(1, 2).contiguous().view(B, T, self.d_modelo)
        return self.W_o(salida)


if __name__ == '__main__':
    capa = AtencionMulticabeza()
    x = torch.rand(4, 12, 64)
    m = torch.tril(torch.ones(12, 12)).expand(4, 12, 12)
    print('entrada', x.shape)
    print('salida ', capa(x, m).shape)
