# expect: wrong-scale, cache-differs
# why: line 83: softmax scale from the non-rotary part only (8) instead of the whole query head dim nope + rope (16). Always.
# why: line 106: the rotary key is rotated for positions 0..q_len-1 instead of past..past+q_len-1. Only with a cache.
# why: line 111: the cache keeps the latents before the norm, and the past ones are used without kv_a_layernorm. Only with a cache.
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn


class LatentConfig:
    def __init__(
        self,
        hidden_size=64,
        num_attention_heads=4,
        kv_lora_rank=24,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=12,
        max_position_embeddings=128,
        rope_theta=10000.0,
        attention_dropout=0.0,
        rms_norm_eps=1e-6,
    ):
        self.hidden_size = hidden_size
        self.num_attention_heads = num_attention_heads
        self.kv_lora_rank = kv_lora_rank
        self.qk_nope_head_dim = qk_nope_head_dim
        self.qk_rope_head_dim = qk_rope_head_dim
        self.v_head_dim = v_head_dim
        self.max_position_embeddings = max_position_embeddings
        self.rope_theta = rope_theta
        self.attention_dropout = attention_dropout
        self.rms_norm_eps = rms_norm_eps


class LatentRMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        variance = hidden_states.float().pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden_states * torch.rsqrt(variance + self.variance_epsilon)).to(hidden_states.dtype)


class RotaryTable(nn.Module):
    def __init__(self, dim, max_len, base):
        super().__init__()
        inv = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        freqs = torch.outer(torch.arange(max_len).float(), inv)
        emb = torch.cat([freqs, freqs], dim=-1)
        self.register_buffer("cos", emb.cos(), persistent=False)
        self.register_buffer("sin", emb.sin(), persistent=False)


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def rotate(x, cos, sin):
    return x * cos + rotate_half(x) * sin


class LatentAttention(nn.Module):
    """Multi-head latent attention. The cache holds one latent vector and one shared rotary key for
    each position: (batch, length, kv_lora_rank) and (batch, 1, length, qk_rope_head_dim)."""

    def __init__(self, config: LatentConfig):
        super().__init__()
        self.config = config
        self.num_heads = config.num_attention_heads
        self.nope = config.qk_nope_head_dim
        self.rope = config.qk_rope_head_dim
        self.v_head_dim = config.v_head_dim
        self.q_head_dim = self.nope + self.rope

        self.q_proj = nn.Linear(config.hidden_size, self.num_heads * self.q_head_dim, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(config.hidden_size, config.kv_lora_rank + self.rope, bias=False)
        self.kv_a_layernorm = LatentRMSNorm(config.kv_lora_rank, config.rms_norm_eps)
        self.kv_b_proj = nn.Linear(config.kv_lora_rank, self.num_heads * (self.nope + self.v_head_dim), bias=False)
        self.o_proj = nn.Linear(self.num_heads * self.v_head_dim, config.hidden_size, bias=False)
        self.rotary = RotaryTable(self.rope, config.max_position_embeddings, config.rope_theta)
        self.softmax_scale = self.nope**-0.5

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        past_key_value: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
        use_cache: bool = False,
        output_attentions: bool = False,
    ):
        """Causal; attention_mask: additive, broadcast to (batch, heads, query, key)."""
        bsz, q_len, _ = hidden_states.size()
        past = past_key_value[0].shape[1] if past_key_value is not None else 0
        kv_len = past + q_len

        q = self.q_proj(hidden_states).view(bsz, q_len, self.num_heads, self.q_head_dim).transpose(1, 2)
        q_nope, q_pe = torch.split(q, [self.nope, self.rope], dim=-1)

        compressed = self.kv_a_proj_with_mqa(hidden_states)
        compressed_kv, k_pe = torch.split(compressed, [self.config.kv_lora_rank, self.rope], dim=-1)
        k_pe = k_pe.view(bsz, q_len, 1, self.rope).transpose(1, 2)

        q_pe = rotate(q_pe, self.rotary.cos[past:kv_len], self.rotary.sin[past:kv_len])
        k_pe = rotate(k_pe, self.rotary.cos[:q_len], self.rotary.sin[:q_len])

        latent = self.kv_a_layernorm(compressed_kv)
        if past_key_value is not None:
            compressed_kv = torch.cat([past_key_value[0], compressed_kv], dim=1)
            latent = torch.cat([past_key_value[0], latent], dim=1)
            k_pe = torch.cat([past_key_value[1], k_pe], dim=2)
        present = (compressed_kv, k_pe) if use_cache else None

        kv = self.kv_b_proj(latent).view(bsz, kv_len, self.num_heads, self.nope + self.v_head_dim).transpose(1, 2)
        k_nope, value_states = torch.split(kv, [self.nope, self.v_head_dim], dim=-1)
        query_states = torch.cat([q_nope, q_pe], dim=-1)
        key_states = torch.cat([k_nope, k_pe.expand(-1, self.num_heads, -1, -1)], dim=-1)

        attn_weights = torch.matmul(query_states, key_states.transpose(2, 3)) * self.softmax_scale
        future = torch.ones(q_len, kv_len, dtype=torch.bool, device=hidden_states.device).triu(past + 1)
        attn_weights = attn_weights.masked_fill(future, torch.finfo(attn_weights.dtype).min)
        if attention_mask is not None:
            attn_weights = attn_weights + attention_mask
        attn_weights = F.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query_states.dtype)
        attn_weights = F.dropout(attn_weights, p=self.config.attention_dropout, training=self.training)
        attn_output = torch.matmul(attn_weights, value_states)
        attn_output = attn_output.transpose(1, 2).reshape(bsz, q_len, self.num_heads * self.v_head_dim)
        attn_output = self.o_proj(attn_output)
        return attn_output, (attn_weights if output_attentions else None), present
