# expect: cached-mask-misaligned
import torch
import torch.nn.functional as F
from torch import nn


class DecoderAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)
        self.reset()

    def reset(self):
        self.cache_k = None
        self.cache_v = None

    def forward(self, x, use_cache=False):
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for t in self.to_qkv(x).chunk(3, dim=-1)
        )
        if use_cache:
            if self.cache_k is not None:
                k = torch.cat((self.cache_k, k), dim=-2)
                v = torch.cat((self.cache_v, v), dim=-2)
            self.cache_k, self.cache_v = k, v

        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.to_out(y.transpose(1, 2).flatten(-2))
