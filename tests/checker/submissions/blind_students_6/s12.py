# expect: correct
# why: right though unusual: weights and biases per head as nn.Parameter, causal via torch.where
import torch
import torch.nn as nn
from torch import einsum


class EinsumAttention(nn.Module):
    # index letters:  b batch, i query position, j key position,
    #                 h head, e model dim, d head dim
    def __init__(self, e: int, h: int, d: int):
        super().__init__()
        self.W_Q = nn.Parameter(torch.randn(h, e, d) * e ** -0.5)
        self.W_K = nn.Parameter(torch.randn(h, e, d) * e ** -0.5)
        self.W_V = nn.Parameter(torch.randn(h, e, d) * e ** -0.5)
        self.W_O = nn.Parameter(torch.randn(h, d, e) * (h * d) ** -0.5)
        self.b_Q = nn.Parameter(torch.zeros(h, d))
        self.b_K = nn.Parameter(torch.zeros(h, d))
        self.b_V = nn.Parameter(torch.zeros(h, d))
        self.b_O = nn.Parameter(torch.zeros(e))
        self.d = d
        self.register_buffer("IGNORE", torch.tensor(float("-inf")))

    def apply_causal_mask(self, attn):
        mask = torch.triu(torch.ones(attn.size(-2), attn.size(-1), device=attn.device), diagonal=1).bool()
        return torch.where(mask, self.IGNORE.to(attn.dtype), attn)

    def forward(self, x, return_pattern=False):
        q = einsum("bie,hed->bihd", x, self.W_Q) + self.b_Q
        k = einsum("bje,hed->bjhd", x, self.W_K) + self.b_K
        v = einsum("bje,hed->bjhd", x, self.W_V) + self.b_V
        attn = einsum("bihd,bjhd->bhij", q, k) / self.d ** 0.5
        pattern = self.apply_causal_mask(attn).softmax(-1)
        z = einsum("bhij,bjhd->bihd", pattern, v)
        out = einsum("bihd,hde->bie", z, self.W_O) + self.b_O
        if return_pattern:
            return out, pattern
        return out
