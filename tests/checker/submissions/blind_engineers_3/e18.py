# expect: cache-differs
# why: The cache stores the latent before kv_norm (line 55: c_new), but cached latents are used without norm afterwards, so after the first step the old keys/values are computed from un-normalised latents.
# MLA layer for the 1B MoE runs. Cache = compressed kv + rope key, nothing per head.
import math
from collections import namedtuple

import torch
import torch.nn as nn

MLACache = namedtuple("MLACache", "c_kv k_rope")


class RMSNorm(nn.Module):
    def __init__(self, d, eps=1e-6):
        super().__init__()
        self.g, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x):
        return self.g * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


def rope(x, pos, base=10000.):
    """x (B, H, T, D), pos (T,)"""
    D = x.size(-1)
    inv = base ** (-torch.arange(0, D, 2, device=x.device) / D)
    ang = (pos[:, None] * inv).repeat(1, 2)
    x1, x2 = x[..., : D // 2], x[..., D // 2:]
    return x * ang.cos() + torch.cat((-x2, x1), -1) * ang.sin()


class LatentAttention(nn.Module):
    def __init__(self, d_model=64, n_heads=4, d_c=24, d_nope=16, d_rope=8, d_v=16):
        super().__init__()
        self.H, self.d_c, self.d_nope, self.d_rope, self.d_v = n_heads, d_c, d_nope, d_rope, d_v
        self.W_q = nn.Linear(d_model, n_heads * (d_nope + d_rope), bias=False)
        self.W_dkv = nn.Linear(d_model, d_c + d_rope, bias=False)
        self.kv_norm = RMSNorm(d_c)
        self.W_ukv = nn.Linear(d_c, n_heads * (d_nope + d_v), bias=False)
        self.W_o = nn.Linear(n_heads * d_v, d_model, bias=False)
        self.scale = 1.0 / math.sqrt(d_nope + d_rope)

    def forward(self, x, cache=None):
        B, T, _ = x.shape
        past = cache.c_kv.size(1) if cache is not None else 0
        pos = torch.arange(past, past + T, device=x.device, dtype=x.dtype)

        q = self.W_q(x).view(B, T, self.H, -1).transpose(1, 2)
        q_nope, q_rope = q[..., : self.d_nope], rope(q[..., self.d_nope:], pos)

        c_new, k_rope = self.W_dkv(x).split([self.d_c, self.d_rope], dim=-1)
        k_rope = rope(k_rope.unsqueeze(1), pos)                     # B, 1, T, d_rope
        c_kv = self.kv_norm(c_new)
        if cache is not None:
            c_kv = torch.cat([cache.c_kv, c_kv], dim=1)
            c_new = torch.cat([cache.c_kv, c_new], dim=1)
            k_rope = torch.cat([cache.k_rope, k_rope], dim=2)
        new_cache = MLACache(c_new, k_rope)

        S = c_kv.size(1)
        kv = self.W_ukv(c_kv).view(B, S, self.H, self.d_nope + self.d_v).transpose(1, 2)
        k_nope, v = kv[..., : self.d_nope], kv[..., self.d_nope:]

        # the rope key is shared by all heads
        att = q_nope @ k_nope.mT + q_rope @ k_rope.mT
        att = att * self.scale
        future = torch.arange(S, device=x.device)[None, :] > pos[:, None]
        att = att.masked_fill(future, -torch.inf).softmax(-1)
        y = (att @ v).transpose(1, 2).reshape(B, T, self.H * self.d_v)
        return self.W_o(y), new_cache


@torch.no_grad()
def decode(layer, prompt, steps):
    """Feeds the layer its own output; only used for the latency benchmark."""
    y, cache = layer(prompt)
    outs = [y[:, -1:]]
    for _ in range(steps):
        y, cache = layer(outs[-1], cache)
        outs.append(y)
    return torch.cat(outs, dim=1)


if __name__ == "__main__":
    import time
    layer = LatentAttention().eval()
    t0 = time.time()
    out = decode(layer, torch.randn(1, 128, 64), 32)
    print(out.shape, f"{(time.time() - t0) * 1e3:.1f} ms")
