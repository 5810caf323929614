# expect: wrong
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass(frozen=True)
class GatedAttnCfg:
    d_model: int
    n_heads: int
    n_kv: int
    d_head: int
    rope_base: float = 1e4
    norm_eps: float = 1e-6


class GatedAttention(nn.Module):
    """Causal GQA with qk-norm and a sigmoid gate on the attention output. The gate is one scalar
    per token and head, computed from the layer input, applied before the output projection.

    x (B, T, d_model); kv_cache: None or (k, v) of shape (B, n_kv, S, d_head)
    -> y, (k, v)
    """

    def __init__(self, cfg: GatedAttnCfg):
        super().__init__()
        self.cfg = cfg
        self.q = nn.Linear(cfg.d_model, cfg.n_heads * cfg.d_head, bias=False)
        self.kv = nn.Linear(cfg.d_model, 2 * cfg.n_kv * cfg.d_head, bias=False)
        self.gate = nn.Linear(cfg.d_model, cfg.n_heads)
        self.o = nn.Linear(cfg.n_heads * cfg.d_head, cfg.d_model, bias=False)
        self.qn = nn.RMSNorm(cfg.d_head, eps=cfg.norm_eps)
        self.kn = nn.RMSNorm(cfg.d_head, eps=cfg.norm_eps)
        inv = cfg.rope_base ** (-torch.arange(0, cfg.d_head, 2).float() / cfg.d_head)
        self.register_buffer("inv", inv, persistent=False)

    def rope(self, t, start):
        ang = torch.arange(start, start + t.size(-2), device=t.device)[:, None] * self.inv
        cos, sin = ang.cos().to(t.dtype), ang.sin().to(t.dtype)
        a, b = t.chunk(2, -1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)

    def forward(self, x, kv_cache=None):
        c = self.cfg
        B, T, _ = x.shape
        past = 0 if kv_cache is None else kv_cache[0].size(2)

        q = self.q(x).view(B, T, c.n_heads, c.d_head).transpose(1, 2)
        k, v = self.kv(x).view(B, T, 2, c.n_kv, c.d_head).permute(2, 0, 3, 1, 4)
        q = self.rope(self.qn(q), past)
        k = self.rope(self.kn(k), past)
        if kv_cache is not None:
            k = torch.cat((kv_cache[0], k), 2)
            v = torch.cat((kv_cache[1], v), 2)

        see = torch.ones(T, past + T, dtype=torch.bool, device=x.device).tril(past)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=see, enable_gqa=True)

        g = torch.sigmoid(self.gate(x)).view(B, c.n_heads, T, 1)
        y = (y * g).transpose(1, 2).reshape(B, T, c.n_heads * c.d_head)
        return self.o(y), (k, v)
