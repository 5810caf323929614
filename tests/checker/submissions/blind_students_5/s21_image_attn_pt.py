# expect: softmax-over-heads
# why: nn.Softmax(dim=1) on scores of shape (n, heads, t, t) normalizes over the heads instead of over the keys (line 17: `self.softmax = nn.Softmax(dim=1)`)
import torch
import torch.nn as nn


class AtencaoMultiCabeca(nn.Module):
    """Exercício 2 - auto-atenção multi-cabeça para os patches da imagem"""

    def __init__(self, dim, num_cabecas):
        super().__init__()
        assert dim % num_cabecas == 0
        self.nc = num_cabecas
        self.dc = dim // num_cabecas
        self.qkv = nn.Linear(dim, dim * 3)
        self.saida = nn.Linear(dim, dim)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q = q.view(n, t, self.nc, self.dc).transpose(1, 2)
        k = k.view(n, t, self.nc, self.dc).transpose(1, 2)
        v = v.view(n, t, self.nc, self.dc).transpose(1, 2)
        escores = torch.matmul(q, k.transpose(-1, -2)) / self.dc ** 0.5
        pesos = self.softmax(escores)
        z = torch.matmul(pesos, v)
        z = z.transpose(1, 2).reshape(n, t, d)
        return self.saida(z)


if __name__ == "__main__":
    imagens = torch.rand(2, 1, 28, 28)
    # 49 patches de 4x4
    patches = imagens.unfold(2, 4, 4).unfold(3, 4, 4).reshape(2, 49, 16)
    mapa = nn.Linear(16, 8)
    atencao = AtencaoMultiCabeca(8, 2)
    print(atencao(mapa(patches)).shape)
