# expect: correct
import torch
from torch import einsum, nn


class EinsumAttention(nn.Module):
    # b batch, i query position, j key position, m model width, h head, e head width

    def __init__(self, m, h, e):
        super().__init__()
        self.Wq = nn.Parameter(torch.randn(h, m, e) * m ** -0.5)
        self.Wk = nn.Parameter(torch.randn(h, m, e) * m ** -0.5)
        self.Wv = nn.Parameter(torch.randn(h, m, e) * m ** -0.5)
        self.Wo = nn.Parameter(torch.randn(h, e, m) * (h * e) ** -0.5)
        self.temperature = e ** 0.5

    def forward(self, x):
        Q = einsum("bim,hme->bhie", x, self.Wq)
        K = einsum("bjm,hme->bhje", x, self.Wk)
        V = einsum("bjm,hme->bhje", x, self.Wv)
        A = einsum("bhie,bhje->bhij", Q, K).div(self.temperature).softmax(-1)
        return einsum("bhij,bhje,hem->bim", A, V, self.Wo)
