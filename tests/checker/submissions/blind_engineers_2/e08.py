# expect: correct
# what: DiT with adaLN, QK-RMSNorm, fused or manual, factory kwargs, partials
import math
from functools import partial
from typing import Callable, Optional, Type

import torch
import torch.nn as nn
import torch.nn.functional as F


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class RmsNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6, affine: bool = True, device=None, dtype=None):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim, device=device, dtype=dtype)) if affine else None

    def forward(self, x):
        x = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + self.eps)
        return x if self.weight is None else x * self.weight


class Attention(nn.Module):
    fused_attn: bool = True

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        qkv_bias: bool = True,
        qk_norm: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        norm_layer: Type[nn.Module] = RmsNorm,
        device=None,
        dtype=None,
    ) -> None:
        dd = {"device": device, "dtype": dtype}
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scale = self.head_dim**-0.5

        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias, **dd)
        self.q_norm = norm_layer(self.head_dim, **dd) if qk_norm else nn.Identity()
        self.k_norm = norm_layer(self.head_dim, **dd) if qk_norm else nn.Identity()
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim, **dd)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: torch.Tensor, attn_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """attn_mask: bool with True = attend, or additive float; broadcast to (B, heads, N, N)."""
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)

        if self.fused_attn:
            x = F.scaled_dot_product_attention(
                q, k, v,
                attn_mask=attn_mask,
                dropout_p=self.attn_drop.p if self.training else 0.0,
            )
        else:
            attn = (q * self.scale) @ k.transpose(-2, -1)
            if attn_mask is not None:
                if attn_mask.dtype == torch.bool:
                    attn = attn.masked_fill(~attn_mask, float("-inf"))
                else:
                    attn = attn + attn_mask
            x = self.attn_drop(attn.softmax(dim=-1)) @ v

        x = x.transpose(1, 2).reshape(B, N, C)
        return self.proj_drop(self.proj(x))


class TimestepEmbedder(nn.Module):
    def __init__(self, hidden_size, frequency_embedding_size=64):
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(frequency_embedding_size, hidden_size), nn.SiLU(), nn.Linear(hidden_size, hidden_size)
        )
        self.frequency_embedding_size = frequency_embedding_size

    def forward(self, t, max_period=10000):
        half = self.frequency_embedding_size // 2
        freqs = torch.exp(-math.log(max_period) * torch.arange(half, device=t.device).float() / half)
        args = t[:, None].float() * freqs[None]
        return self.mlp(torch.cat([args.cos(), args.sin()], dim=-1))


class DiTBlock(nn.Module):
    def __init__(self, hidden_size, num_heads, mlp_ratio=4.0, attn_layer: Callable = Attention, **block_kwargs):
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden_size, elementwise_affine=False, eps=1e-6)
        self.attn = attn_layer(hidden_size, num_heads=num_heads, **block_kwargs)
        self.norm2 = nn.LayerNorm(hidden_size, elementwise_affine=False, eps=1e-6)
        hidden = int(hidden_size * mlp_ratio)
        self.mlp = nn.Sequential(nn.Linear(hidden_size, hidden), nn.GELU(approximate="tanh"), nn.Linear(hidden, hidden_size))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(hidden_size, 6 * hidden_size))
        nn.init.zeros_(self.adaLN_modulation[-1].weight)
        nn.init.zeros_(self.adaLN_modulation[-1].bias)

    def forward(self, x, c, attn_mask=None):
        s_a, g_a, a_a, s_m, g_m, a_m = self.adaLN_modulation(c).chunk(6, dim=1)
        x = x + a_a.unsqueeze(1) * self.attn(modulate(self.norm1(x), s_a, g_a), attn_mask)
        x = x + a_m.unsqueeze(1) * self.mlp(modulate(self.norm2(x), s_m, g_m))
        return x


class DiT(nn.Module):
    def __init__(self, in_channels=4, patch_size=2, hidden_size=48, depth=2, num_heads=4, qk_norm=True):
        super().__init__()
        self.patch_size, self.out_channels = patch_size, in_channels
        self.x_embedder = nn.Conv2d(in_channels, hidden_size, patch_size, stride=patch_size)
        self.t_embedder = TimestepEmbedder(hidden_size)
        attn_layer = partial(Attention, qk_norm=qk_norm, norm_layer=partial(RmsNorm, eps=1e-5))
        self.blocks = nn.ModuleList([DiTBlock(hidden_size, num_heads, attn_layer=attn_layer) for _ in range(depth)])
        self.final = nn.Linear(hidden_size, patch_size * patch_size * in_channels)

    def forward(self, x, t):
        x = self.x_embedder(x)
        _, _, gh, gw = x.shape
        x = x.flatten(2).transpose(1, 2)
        c = self.t_embedder(t)
        for block in self.blocks:
            x = block(x, c)
        x = self.final(x)
        p, ch = self.patch_size, self.out_channels
        x = x.view(x.shape[0], gh, gw, p, p, ch)
        return torch.einsum("nhwpqc->nchpwq", x).reshape(x.shape[0], ch, gh * p, gw * p)
