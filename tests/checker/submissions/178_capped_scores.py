# expect: correct
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class TextConfig:
    hidden_size: int = 64
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 16
    query_pre_attn_scalar: float = 32.0
    attn_logit_softcapping: float | None = 50.0
    sliding_window: int = 4096
    rope_theta: float = 10000.0


class CappedAttention(nn.Module):
    """Causal decoder attention, scores squashed with cap * tanh(s / cap).
    Even layers are local (sliding window), odd layers are global.

    attention_mask: (B, T) with 1 for tokens and 0 for padding.
    Returns (output, probs).
    """

    def __init__(self, layer_id, config):
        super().__init__()
        self.config = config
        self.is_local = layer_id % 2 == 0
        D = config.head_dim
        # not head_dim ** -0.5: the checkpoint says by what to scale
        self.scaling = config.query_pre_attn_scalar ** -0.5
        self.q_proj = nn.Linear(config.hidden_size, config.n_heads * D, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, config.n_kv_heads * D, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, config.n_kv_heads * D, bias=False)
        self.o_proj = nn.Linear(config.n_heads * D, config.hidden_size, bias=False)

    def rotary(self, x, position_ids):
        D = x.shape[-1]
        inv = self.config.rope_theta ** (-torch.arange(0, D, 2, device=x.device).float() / D)
        emb = position_ids[..., None].float() * inv            # (B, T, D/2)
        cos = emb.cos().repeat(1, 1, 2)[:, None]
        sin = emb.sin().repeat(1, 1, 2)[:, None]
        x1, x2 = x.float().chunk(2, -1)
        return (x.float() * cos + torch.cat([-x2, x1], -1) * sin).to(x.dtype)

    def forward(self, hidden_states, attention_mask=None, position_ids=None):
        cfg = self.config
        B, T, _ = hidden_states.shape
        if position_ids is None:
            position_ids = torch.arange(T, device=hidden_states.device).expand(B, T)

        q = self.q_proj(hidden_states).unflatten(-1, (cfg.n_heads, cfg.head_dim)).transpose(1, 2)
        k = self.k_proj(hidden_states).unflatten(-1, (cfg.n_kv_heads, cfg.head_dim)).transpose(1, 2)
        v = self.v_proj(hidden_states).unflatten(-1, (cfg.n_kv_heads, cfg.head_dim)).transpose(1, 2)
        q, k = self.rotary(q, position_ids), self.rotary(k, position_ids)

        rep = cfg.n_heads // cfg.n_kv_heads
        k = k[:, :, None].expand(-1, -1, rep, -1, -1).flatten(1, 2)
        v = v[:, :, None].expand(-1, -1, rep, -1, -1).flatten(1, 2)

        scores = torch.matmul(q * self.scaling, k.transpose(2, 3))
        if cfg.attn_logit_softcapping is not None:
            scores = torch.tanh(scores / cfg.attn_logit_softcapping) * cfg.attn_logit_softcapping

        keep = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
        if self.is_local:
            keep = keep.triu(1 - cfg.sliding_window)
        keep = keep[None, None]
        if attention_mask is not None:
            keep = keep & attention_mask[:, None, None, :].bool()
        scores = scores.masked_fill(~keep, torch.finfo(scores.dtype).min)

        probs = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        out = torch.matmul(probs, v).transpose(1, 2).flatten(2)
        return self.o_proj(out), probs
