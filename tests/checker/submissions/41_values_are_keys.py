# expect: value-from-keys
import torch
import torch.nn as nn

class EinsumHeads(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.Wq = nn.Parameter(torch.randn(d, heads, d // heads) / d ** 0.5)
        self.Wk = nn.Parameter(torch.randn(d, heads, d // heads) / d ** 0.5)
        self.Wv = nn.Parameter(torch.randn(d, heads, d // heads) / d ** 0.5)
        self.Wo = nn.Parameter(torch.randn(heads, d // heads, d) / d ** 0.5)

    def forward(self, x):
        q = torch.einsum('bnd,dhe->bhne', x, self.Wq)
        k = torch.einsum('bnd,dhe->bhne', x, self.Wk)
        v = torch.einsum('bnd,dhe->bhne', x, self.Wk)
        a = torch.softmax(q @ k.transpose(-1, -2) / k.shape[-1] ** 0.5, -1)
        return torch.einsum('bhne,hed->bnd', a @ v, self.Wo)
