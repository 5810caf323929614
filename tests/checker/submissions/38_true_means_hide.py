# expect: sdpa-mask-polarity
import torch
from torch import nn


class MHAWithSDPA(nn.Module):
    """Uses the fused kernel with my own mask."""

    def __init__(self, d_in, d_out, num_heads, context_length, dropout=0.0, qkv_bias=False):
        super().__init__()
        self.parts = (num_heads, d_out // num_heads)
        self.qkv = nn.Linear(d_in, d_out * 3, bias=qkv_bias)
        self.proj = nn.Linear(d_out, d_out)
        self.rate = dropout
        self.register_buffer("future", torch.ones(context_length, context_length, dtype=torch.bool).triu(1))

    def forward(self, x):
        n = x.size(1)
        q, k, v = (t.unflatten(-1, self.parts).swapaxes(1, 2) for t in self.qkv(x).tensor_split(3, dim=-1))
        rate = self.rate * self.training
        hide = self.future[:n, :n]          # True = the future
        out = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=hide, dropout_p=rate)
        return self.proj(out.swapaxes(1, 2).flatten(2))
