# expect: mask-fill-too-small
# why: The logit soft cap is applied after the mask, so masked logits become -softcap instead of -inf and future / out-of-window keys leak.
from dataclasses import dataclass
from typing import Optional

import torch
from torch import nn


@dataclass
class GemmaishConfig:
    hidden_size: int = 64
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 16
    query_pre_attn_scalar: float = 16.0
    attn_logit_softcapping: Optional[float] = 5.0
    sliding_window: int = 4
    rope_theta: float = 10000.0


def repeat_kv(x: torch.Tensor, n_rep: int) -> torch.Tensor:
    b, h, s, d = x.shape
    if n_rep == 1:
        return x
    return x[:, :, None].expand(b, h, n_rep, s, d).reshape(b, h * n_rep, s, d)


class GemmaRMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x):
        y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * (1.0 + self.weight.float())).type_as(x)


class RotaryEmbedding(nn.Module):
    def __init__(self, dim: int, theta: float):
        super().__init__()
        self.register_buffer("inv_freq", theta ** (-torch.arange(0, dim, 2).float() / dim), persistent=False)

    def forward(self, position_ids):
        ang = position_ids[..., None].float() * self.inv_freq
        ang = torch.cat([ang, ang], -1)
        return ang.cos(), ang.sin()


def rotate_half(x):
    x1, x2 = x.chunk(2, -1)
    return torch.cat([-x2, x1], -1)


class SoftCappedAttention(nn.Module):
    """Even layers are local (sliding window), odd layers are global."""

    def __init__(self, config: GemmaishConfig, layer_idx: int):
        super().__init__()
        c = config
        self.cfg = c
        self.n_rep = c.num_attention_heads // c.num_key_value_heads
        self.scaling = c.query_pre_attn_scalar ** -0.5
        self.window = c.sliding_window if layer_idx % 2 == 0 else None
        self.q_proj = nn.Linear(c.hidden_size, c.num_attention_heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, bias=False)
        self.rotary = RotaryEmbedding(c.head_dim, c.rope_theta)

    def forward(self, x: torch.Tensor, attention_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """attention_mask: (batch, seq), 1 = keep."""
        b, t, _ = x.shape
        hd = self.cfg.head_dim
        q = self.q_proj(x).view(b, t, -1, hd).transpose(1, 2)
        k = self.k_proj(x).view(b, t, -1, hd).transpose(1, 2)
        v = self.v_proj(x).view(b, t, -1, hd).transpose(1, 2)
        pos = torch.arange(t, device=x.device)
        cos, sin = self.rotary(pos)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        k, v = repeat_kv(k, self.n_rep), repeat_kv(v, self.n_rep)

        logits = torch.matmul(q, k.transpose(2, 3)) * self.scaling
        gap = pos[:, None] - pos[None, :]
        keep = gap >= 0
        if self.window is not None:
            keep = keep & (gap < self.window)
        keep = keep[None, None]
        if attention_mask is not None:
            keep = keep & attention_mask[:, None, None, :].bool()
        logits = logits.masked_fill(~keep, torch.finfo(logits.dtype).min)
        if self.cfg.attn_logit_softcapping is not None:
            cap = self.cfg.attn_logit_softcapping
            logits = cap * torch.tanh(logits / cap)
        probs = torch.softmax(logits, dim=-1, dtype=torch.float32).to(q.dtype)
        out = torch.matmul(probs, v).transpose(1, 2).contiguous()
        return self.o_proj(out.view(b, t, -1))


class DecoderLayer(nn.Module):
    """Sandwich norms around both branches."""

    def __init__(self, config, layer_idx):
        super().__init__()
        d = config.hidden_size
        self.attn = SoftCappedAttention(config, layer_idx)
        self.pre_attn, self.post_attn = GemmaRMSNorm(d), GemmaRMSNorm(d)
        self.pre_ff, self.post_ff = GemmaRMSNorm(d), GemmaRMSNorm(d)
        self.gate, self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x, attention_mask=None):
        x = x + self.post_attn(self.attn(self.pre_attn(x), attention_mask))
        h = self.pre_ff(x)
        h = self.down(nn.functional.gelu(self.gate(h), approximate="tanh") * self.up(h))
        return x + self.post_ff(h)
