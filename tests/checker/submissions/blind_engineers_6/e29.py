# expect: mask-fill-too-small
# why: the mask is added before the tanh soft cap, so masked logits become -cap and get weight
"""Attention layers with logit soft-capping, alternating local and global."""
import dataclasses
from typing import Optional

import torch
from torch import nn


@dataclasses.dataclass
class CapConfig:
    hidden_size: int = 128
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    query_pre_attn_scalar: float = 32.0
    attn_logit_softcapping: Optional[float] = 5.0
    sliding_window: int = 16
    rms_norm_eps: float = 1e-6


class ZeroCenteredRMSNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * (1.0 + self.weight.float())).type_as(x)


class SoftCapAttention(nn.Module):
    """Causal grouped-query attention, logits squashed to (-cap, cap) with a tanh.

    Layers with an even index only see the last ``sliding_window`` tokens (the current one included),
    odd ones the whole past. No positional encoding inside (the embedding adds it).

    Args (forward):
        x: (B, T, hidden_size)
        padding_mask: bool (B, T), True = real token. May be None.
    """

    def __init__(self, config: CapConfig, layer_idx: int):
        super().__init__()
        self.config = config
        self.is_local = layer_idx % 2 == 0
        self.scaling = config.query_pre_attn_scalar ** -0.5
        nh, nkv, hd = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, nh * hd, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, nkv * hd, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, nkv * hd, bias=False)
        self.o_proj = nn.Linear(nh * hd, config.hidden_size, bias=False)

    def make_mask(self, T: int, device, padding_mask: Optional[torch.Tensor]) -> torch.Tensor:
        pos = torch.arange(T, device=device)
        delta = pos[:, None] - pos[None, :]
        keep = delta >= 0
        if self.is_local:
            keep = keep & (delta < self.config.sliding_window)
        keep = keep[None, None]
        if padding_mask is not None:
            keep = keep & padding_mask[:, None, None, :]
        # padding rows may end up with nothing to look at
        return torch.zeros_like(keep, dtype=torch.float32).masked_fill(~keep, torch.finfo(torch.float32).min)

    def forward(self, x: torch.Tensor, padding_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        c = self.config
        B, T, _ = x.shape
        groups = c.num_attention_heads // c.num_key_value_heads
        q = self.q_proj(x).view(B, T, c.num_attention_heads, c.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(B, T, c.num_key_value_heads, c.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(B, T, c.num_key_value_heads, c.head_dim).transpose(1, 2)
        k = k.repeat_interleave(groups, dim=1)
        v = v.repeat_interleave(groups, dim=1)

        logits = torch.matmul(q, k.transpose(2, 3)).float() * self.scaling
        logits = logits + self.make_mask(T, x.device, padding_mask)
        if c.attn_logit_softcapping is not None:
            logits = torch.tanh(logits / c.attn_logit_softcapping) * c.attn_logit_softcapping
        probs = torch.softmax(logits, dim=-1).to(v.dtype)
        out = torch.matmul(probs, v).transpose(1, 2).reshape(B, T, -1)
        return self.o_proj(out)


class DecoderLayer(nn.Module):
    """Sandwich norms: before and after both sublayers."""

    def __init__(self, config: CapConfig, layer_idx: int):
        super().__init__()
        d, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = SoftCapAttention(config, layer_idx)
        self.norms = nn.ModuleList(ZeroCenteredRMSNorm(d, eps) for _ in range(4))
        self.gate_up = nn.Linear(d, 6 * d, bias=False)
        self.down = nn.Linear(3 * d, d, bias=False)

    def forward(self, x, padding_mask=None):
        x = x + self.norms[1](self.self_attn(self.norms[0](x), padding_mask))
        g, u = self.gate_up(self.norms[2](x)).chunk(2, dim=-1)
        return x + self.norms[3](self.down(nn.functional.gelu(g, approximate="tanh") * u))
