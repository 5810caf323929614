# expect: correct
import torch
import torch.nn as nn
import torch.nn.functional as F


class LazyAttention(nn.Module):
    """The input width is learnt from the first batch."""

    def __init__(self, units: int = 24, heads: int = 3):
        super().__init__()
        self.units, self.heads = units, heads
        self.q = nn.LazyLinear(units)
        self.k = nn.LazyLinear(units)
        self.v = nn.LazyLinear(units)
        self.o = nn.Linear(units, units)

    def forward(self, x):
        shape = (x.size(0), x.size(1), self.heads, self.units // self.heads)
        q, k, v = [layer(x).view(shape).transpose(1, 2) for layer in (self.q, self.k, self.v)]
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.size(0), -1, self.units))
