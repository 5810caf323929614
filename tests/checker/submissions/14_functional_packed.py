# expect: correct
import torch
import torch.nn.functional as F
from torch.nn import Module, Parameter, init


class PackedAttention(Module):
    def __init__(self, embed_dim, num_heads, bias=True, causal=False):
        super().__init__()
        self.embed_dim, self.num_heads, self.causal = embed_dim, num_heads, causal
        self.in_proj_weight = Parameter(torch.empty(3 * embed_dim, embed_dim))
        self.in_proj_bias = Parameter(torch.zeros(3 * embed_dim)) if bias else None
        self.out_weight = Parameter(torch.empty(embed_dim, embed_dim))
        self.out_bias = Parameter(torch.zeros(embed_dim)) if bias else None
        init.xavier_uniform_(self.in_proj_weight)
        init.xavier_uniform_(self.out_weight)

    def forward(self, x):
        packed = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        packed = packed.unflatten(-1, (3, self.num_heads, -1)).movedim(-3, 0).transpose(-3, -2)
        q, k, v = packed
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return F.linear(y.transpose(-3, -2).flatten(-2), self.out_weight, self.out_bias)
