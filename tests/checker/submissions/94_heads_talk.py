# expect: correct
import torch
from torch import nn
from einops import rearrange


class TalkingHeadsAttention(nn.Module):
    """ViT attention where heads are mixed before and after the softmax."""

    def __init__(self, dim, heads=8, dim_head=16, dropout=0.):
        super().__init__()
        inner = heads * dim_head
        self.heads = heads
        self.scale = dim_head ** -0.5
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim, inner * 2, bias=False)
        self.pre = nn.Parameter(torch.eye(heads) + 0.1 * torch.randn(heads, heads))
        self.post = nn.Parameter(torch.eye(heads) + 0.1 * torch.randn(heads, heads))
        self.drop = nn.Dropout(dropout)
        self.to_out = nn.Sequential(nn.Linear(inner, dim), nn.Dropout(dropout))

    def forward(self, x):
        x = self.norm(x)
        qkv = (self.to_q(x), *self.to_kv(x).chunk(2, dim=-1))
        q, k, v = (rearrange(t, 'b n (h d) -> b h n d', h=self.heads) for t in qkv)

        dots = torch.einsum('b h i d, b h j d -> b h i j', q, k) * self.scale
        dots = torch.einsum('b h i j, h g -> b g i j', dots, self.pre)
        attn = self.drop(dots.softmax(dim=-1))
        attn = torch.einsum('b h i j, h g -> b g i j', attn, self.post)

        out = torch.einsum('b h i j, b h j d -> b h i d', attn, v)
        return self.to_out(rearrange(out, 'b h n d -> b n (h d)'))
