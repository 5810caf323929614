# expect: values-not-mixed
import torch
import torch.nn as nn
from torch import einsum


class EinsumMHA(nn.Module):
    """Multi-head causal attention, everything with einsum.

    letters: b batch, i query position, j key position, h head, d head dim
    """

    def __init__(self, d_in, d_out, num_heads, context_length, dropout=0.0, qkv_bias=False):
        super().__init__()
        if d_out % num_heads:
            raise ValueError("d_out must be divisible by num_heads")
        self.h = num_heads
        self.d = d_out // num_heads
        self.Wq = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.Wk = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.Wv = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.Wo = nn.Linear(d_out, d_out)
        self.drop = nn.Dropout(dropout)
        self.register_buffer("future", torch.triu(torch.ones(context_length, context_length, dtype=torch.bool), 1))

    def forward(self, x, return_weights=False):
        b, n, _ = x.shape
        q = self.Wq(x).view(b, n, self.h, self.d)
        k = self.Wk(x).view(b, n, self.h, self.d)
        v = self.Wv(x).view(b, n, self.h, self.d)

        s = einsum("bihd,bjhd->bhij", q, k) / self.d ** 0.5
        s = s.masked_fill(self.future[:n, :n], -torch.inf)
        a = s.softmax(-1)
        o = einsum("bhij,bihd->bihd", self.drop(a), v)
        y = self.Wo(o.reshape(b, n, -1))
        return (y, a) if return_weights else y


if __name__ == "__main__":
    torch.manual_seed(0)
    m = EinsumMHA(d_in=6, d_out=8, num_heads=4, context_length=10)
    y, a = m(torch.randn(2, 5, 6), return_weights=True)
    print(y.shape, a.shape)
    assert torch.allclose(a.sum(-1), torch.ones(2, 4, 5))
