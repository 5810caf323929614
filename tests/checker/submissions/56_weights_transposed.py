# expect: wrong
import torch
import torch.nn as nn


class Lab4Attention(nn.Module):
    def __init__(self, dim: int, n_head: int = 2):
        super().__init__()
        self.n_head = n_head
        self.Wqkv = nn.Parameter(torch.randn(3, dim, dim) * dim ** -0.5)
        self.Wout = nn.Parameter(torch.randn(dim, dim) * dim ** -0.5)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = torch.einsum("bni,kij->kbnj", x, self.Wqkv).unflatten(-1, (self.n_head, d // self.n_head))
        p = torch.softmax(torch.einsum("bnhe,bmhe->bhnm", q, k) / (d // self.n_head) ** 0.5, dim=-1)
        o = torch.einsum("bhnm,bnhe->bmhe", p, v)
        return o.flatten(2) @ self.Wout
