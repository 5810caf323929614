# expect: split-without-transpose
# why: heads are split (and joined) by view without a transpose, so tokens are mixed
# Trabalho prático 2 - Atenção multi-cabeça
import torch
import torch.nn as nn
import math


class AtencaoMultiCabeca(nn.Module):
    def __init__(self, dim_modelo, num_cabecas, causal=True):
        super().__init__()
        assert dim_modelo % num_cabecas == 0, "dim_modelo deve ser divisível por num_cabecas"
        self.num_cabecas = num_cabecas
        self.dim_cabeca = dim_modelo // num_cabecas
        self.causal = causal

        self.proj_q = nn.Linear(dim_modelo, dim_modelo)
        self.proj_k = nn.Linear(dim_modelo, dim_modelo)
        self.proj_v = nn.Linear(dim_modelo, dim_modelo)
        self.proj_saida = nn.Linear(dim_modelo, dim_modelo)

    def forward(self, x):
        lote, tam, dim = x.shape

        # separa as cabeças: (lote, cabeças, tam, dim_cabeca)
        q = self.proj_q(x).view(lote, self.num_cabecas, tam, self.dim_cabeca)
        k = self.proj_k(x).view(lote, self.num_cabecas, tam, self.dim_cabeca)
        v = self.proj_v(x).view(lote, self.num_cabecas, tam, self.dim_cabeca)

        pontos = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.dim_cabeca)

        if self.causal:
            mascara = torch.triu(torch.ones(tam, tam, device=x.device), diagonal=1).bool()
            pontos = pontos.masked_fill(mascara, float("-inf"))

        pesos = torch.softmax(pontos, dim=-1)
        saida = torch.matmul(pesos, v)

        # junta as cabeças de novo
        saida = saida.view(lote, tam, dim)
        return self.proj_saida(saida)


if __name__ == "__main__":
    att = AtencaoMultiCabeca(16, 4)
    x = torch.randn(2, 5, 16)
    print(att(x).shape)  # (2, 5, 16)
