# expect: split-without-transpose
# why: the query is reshaped straight to (B, heads, N, head_dim) without a transpose, so tokens and heads are mixed up.
""" Divided space-time attention for video transformers.

Tokens come in as (B, T * S, C), T frames of S patches each, frame-major, no class token.
"""
import torch
import torch.nn as nn
from einops import rearrange


class FrameAttention(nn.Module):
    """Attention along one axis of the (time, space) grid."""

    def __init__(self, dim, num_heads=8, qkv_bias=False, attn_drop=0., proj_drop=0.):
        super().__init__()
        assert dim % num_heads == 0, 'dim should be divisible by num_heads'
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scale = self.head_dim ** -0.5

        self.q = nn.Linear(dim, dim, bias=qkv_bias)
        self.kv = nn.Linear(dim, dim * 2, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x):
        B, N, C = x.shape
        q = self.q(x).reshape(B, self.num_heads, N, self.head_dim)
        kv = self.kv(x).reshape(B, N, 2, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        k, v = kv.unbind(0)

        attn = (q @ k.transpose(-2, -1)) * self.scale
        attn = attn.softmax(dim=-1)
        attn = self.attn_drop(attn)

        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        x = self.proj(x)
        x = self.proj_drop(x)
        return x


class DividedSpaceTimeBlock(nn.Module):
    def __init__(self, dim, num_heads, num_frames, mlp_ratio=4., qkv_bias=True, drop=0., norm_layer=nn.LayerNorm):
        super().__init__()
        self.num_frames = num_frames
        self.temporal_norm = norm_layer(dim)
        self.temporal_attn = FrameAttention(dim, num_heads=num_heads, qkv_bias=qkv_bias, attn_drop=drop)
        self.temporal_fc = nn.Linear(dim, dim)
        self.norm1 = norm_layer(dim)
        self.attn = FrameAttention(dim, num_heads=num_heads, qkv_bias=qkv_bias, attn_drop=drop)
        self.norm2 = norm_layer(dim)
        hidden = int(dim * mlp_ratio)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

    def forward(self, x):
        T = self.num_frames
        assert x.shape[1] % T == 0

        xt = rearrange(x, 'b (t s) c -> (b s) t c', t=T)
        res_t = self.temporal_fc(self.temporal_attn(self.temporal_norm(xt)))
        x = x + rearrange(res_t, '(b s) t c -> b (t s) c', b=x.shape[0])

        xs = rearrange(x, 'b (t s) c -> (b t) s c', t=T)
        res_s = self.attn(self.norm1(xs))
        x = x + rearrange(res_s, '(b t) s c -> b (t s) c', t=T)

        return x + self.mlp(self.norm2(x))
