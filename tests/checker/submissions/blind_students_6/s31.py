# expect: values-not-mixed
# why: einsum has the query index on the values: every token only gets its own value
import torch
import torch.nn as nn


class MHA(nn.Module):
    def __init__(self, dim, n_heads, max_T):
        super().__init__()
        assert dim % n_heads == 0
        self.h = n_heads
        self.hd = dim // n_heads
        self.Wqkv = nn.Parameter(torch.empty(3, n_heads, dim, self.hd))
        self.Wo = nn.Parameter(torch.empty(n_heads, self.hd, dim))
        nn.init.normal_(self.Wqkv, std=dim ** -0.5)
        nn.init.normal_(self.Wo, std=dim ** -0.5)
        self.register_buffer("causal", torch.ones(max_T, max_T, dtype=torch.bool).tril())

    def forward(self, x):
        # b batch, t/s time, c channels, h heads, d head dim, n = q,k,v
        t = x.shape[1]
        q, k, v = torch.einsum("btc,nhcd->nbhtd", x, self.Wqkv).unbind(0)
        scores = torch.einsum("bhtd,bhsd->bhts", q, k) * self.hd ** -0.5
        scores = scores.masked_fill(~self.causal[:t, :t], float("-inf"))
        attn = torch.softmax(scores, dim=-1)
        o = torch.einsum("bhts,bhtd->bhtd", attn, v)
        return torch.einsum("bhtd,hdc->btc", o, self.Wo)
