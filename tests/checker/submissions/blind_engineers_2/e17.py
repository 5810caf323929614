# expect: correct
# what: Qwen3-Next like gated output, QK-norm with 1+w, partial RoPE, function registry, dict config
from typing import Callable, Dict, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn


class Config(dict):
    """A dict with attribute access, as loaded from config.json."""

    def __getattr__(self, k):
        try:
            return self[k]
        except KeyError as e:
            raise AttributeError(k) from e


DEFAULTS = dict(
    hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6,
    partial_rotary_factor=0.5, rope_theta=10000.0, attention_bias=False, attention_dropout=0.0,
)


def make_config(**overrides) -> Config:
    return Config({**DEFAULTS, **overrides})


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        out = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (out * (1.0 + self.weight.float())).type_as(x)


def rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def apply_partial_rotary(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    rot = cos.shape[-1]
    out = []
    for t in (q, k):
        t_rot, t_pass = t[..., :rot], t[..., rot:]
        out.append(torch.cat([t_rot * cos + rotate_half(t_rot) * sin, t_pass], dim=-1))
    return out


def eager_attention(module, q, k, v, attention_mask, scaling, dropout):
    w = torch.matmul(q, k.transpose(2, 3)) * scaling
    if attention_mask is not None:
        w = w + attention_mask
    w = F.softmax(w, dim=-1, dtype=torch.float32).to(q.dtype)
    w = F.dropout(w, p=dropout, training=module.training)
    return torch.matmul(w, v).transpose(1, 2).contiguous()


def sdpa_attention(module, q, k, v, attention_mask, scaling, dropout):
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=attention_mask, scale=scaling, dropout_p=dropout if module.training else 0.0
    )
    return out.transpose(1, 2).contiguous()


ATTENTION_FUNCTIONS: Dict[str, Callable] = {"eager": eager_attention, "sdpa": sdpa_attention}


class GatedAttention(nn.Module):
    """Attention whose output is gated, per channel, by a sigmoid of the layer input."""

    def __init__(self, config: Config, layer_idx: int = 0):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim
        self.num_kv_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = self.head_dim**-0.5
        self.attention_dropout = config.attention_dropout
        inner = config.num_attention_heads * self.head_dim
        kv_inner = config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, inner * 2, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.hidden_size, kv_inner, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.hidden_size, kv_inner, bias=config.attention_bias)
        self.o_proj = nn.Linear(inner, config.hidden_size, bias=config.attention_bias)
        self.q_norm = RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = RMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: Tuple[torch.Tensor, torch.Tensor],
        attention_mask: Optional[torch.Tensor] = None,
        past_key_values: Optional[dict] = None,
    ):
        """attention_mask: additive, broadcast to (b, heads, q, k)."""
        input_shape = hidden_states.shape[:-1]
        hidden_shape = (*input_shape, -1, self.head_dim)

        q, gate = torch.chunk(self.q_proj(hidden_states).view(*input_shape, -1, self.head_dim * 2), 2, dim=-1)
        gate = gate.reshape(*input_shape, -1)
        q = self.q_norm(q).transpose(1, 2)
        k = self.k_norm(self.k_proj(hidden_states).view(hidden_shape)).transpose(1, 2)
        v = self.v_proj(hidden_states).view(hidden_shape).transpose(1, 2)

        cos, sin = position_embeddings
        q, k = apply_partial_rotary(q, k, cos, sin)
        if past_key_values is not None:
            if self.layer_idx in past_key_values:
                pk, pv = past_key_values[self.layer_idx]
                k, v = torch.cat([pk, k], dim=2), torch.cat([pv, v], dim=2)
            past_key_values[self.layer_idx] = (k, v)

        k = k.repeat_interleave(self.num_kv_groups, dim=1)
        v = v.repeat_interleave(self.num_kv_groups, dim=1)
        fn = ATTENTION_FUNCTIONS[self.config.get("attn_implementation", "eager")]
        out = fn(self, q, k, v, attention_mask, self.scaling, self.attention_dropout)
        out = out.reshape(*input_shape, -1) * torch.sigmoid(gate)
        return self.o_proj(out)


class Rotary(nn.Module):
    def __init__(self, config):
        super().__init__()
        dim = int(config.head_dim * config.partial_rotary_factor)
        inv_freq = 1.0 / (config.rope_theta ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, position_ids):
        f = position_ids[:, :, None].float() * self.inv_freq[None, None, :]
        emb = torch.cat((f, f), dim=-1)
        return emb.cos(), emb.sin()


class GatedDecoderLayer(nn.Module):
    def __init__(self, config, layer_idx=0):
        super().__init__()
        self.rotary = Rotary(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = GatedAttention(config, layer_idx)

    def forward(self, x, past_key_values=None):
        n = x.shape[1]
        past = 0
        if past_key_values is not None and self.self_attn.layer_idx in past_key_values:
            past = past_key_values[self.self_attn.layer_idx][0].shape[2]
        pos = torch.arange(past, past + n, device=x.device)[None]
        mask = torch.full((n, past + n), float("-inf"), device=x.device).triu(past + 1)
        return x + self.self_attn(self.norm(x), self.rotary(pos), mask, past_key_values)
