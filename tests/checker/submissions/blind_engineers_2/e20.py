# expect: cached-mask-misaligned
# why: line 83: is_causal is True whenever q_len > 1, also with a cache; SDPA aligns its causal mask top left, so new tokens see only the first keys of the past. Only with a cache and several new tokens at once.
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class AttnConfig:
    num_heads: int = 4
    num_kv_heads: int = 4
    dropout: float = 0.0
    bias: bool = False


@dataclass
class DecoderConfig:
    d_model: int = 32
    n_layers: int = 2
    vocab_size: int = 64
    max_len: int = 64
    attn: AttnConfig = field(default_factory=AttnConfig)


class Cache:
    """Grows by concatenation along the sequence axis, one entry for each layer."""

    def __init__(self) -> None:
        self.key_cache: List[torch.Tensor] = []
        self.value_cache: List[torch.Tensor] = []

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.key_cache[layer_idx].shape[-2] if len(self.key_cache) > layer_idx else 0

    def update(self, k: torch.Tensor, v: torch.Tensor, layer_idx: int) -> Tuple[torch.Tensor, torch.Tensor]:
        if len(self.key_cache) <= layer_idx:
            self.key_cache.append(k)
            self.value_cache.append(v)
        else:
            self.key_cache[layer_idx] = torch.cat([self.key_cache[layer_idx], k], dim=-2)
            self.value_cache[layer_idx] = torch.cat([self.value_cache[layer_idx], v], dim=-2)
        return self.key_cache[layer_idx], self.value_cache[layer_idx]


class SdpaAttention(nn.Module):
    def __init__(self, config: DecoderConfig, layer_idx: int):
        super().__init__()
        self.layer_idx = layer_idx
        self.num_heads = config.attn.num_heads
        self.num_kv_heads = config.attn.num_kv_heads
        self.head_dim = config.d_model // self.num_heads
        self.attention_dropout = config.attn.dropout
        self.q_proj = nn.Linear(config.d_model, self.num_heads * self.head_dim, bias=config.attn.bias)
        self.k_proj = nn.Linear(config.d_model, self.num_kv_heads * self.head_dim, bias=config.attn.bias)
        self.v_proj = nn.Linear(config.d_model, self.num_kv_heads * self.head_dim, bias=config.attn.bias)
        self.o_proj = nn.Linear(self.num_heads * self.head_dim, config.d_model, bias=config.attn.bias)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        past_key_value: Optional[Cache] = None,
        **kwargs: Dict[str, Any],
    ) -> torch.Tensor:
        """Without `attention_mask` the attention is causal; a given mask is additive and complete."""
        bsz, q_len, _ = hidden_states.size()
        query = self.q_proj(hidden_states).view(bsz, q_len, self.num_heads, self.head_dim).transpose(1, 2)
        key = self.k_proj(hidden_states).view(bsz, q_len, self.num_kv_heads, self.head_dim).transpose(1, 2)
        value = self.v_proj(hidden_states).view(bsz, q_len, self.num_kv_heads, self.head_dim).transpose(1, 2)

        if past_key_value is not None:
            key, value = past_key_value.update(key, value, self.layer_idx)

        rep = self.num_heads // self.num_kv_heads
        if rep > 1:
            key = key[:, :, None].expand(-1, -1, rep, -1, -1).flatten(1, 2)
            value = value[:, :, None].expand(-1, -1, rep, -1, -1).flatten(1, 2)

        if attention_mask is not None:
            attention_mask = attention_mask[:, :, :, : key.shape[-2]]

        is_causal = attention_mask is None and q_len > 1
        out = F.scaled_dot_product_attention(
            query.contiguous(), key.contiguous(), value.contiguous(),
            attn_mask=attention_mask,
            dropout_p=self.attention_dropout if self.training else 0.0,
            is_causal=is_causal,
        )
        out = out.transpose(1, 2).reshape(bsz, q_len, -1)
        return self.o_proj(out)


class DecoderLayer(nn.Module):
    def __init__(self, config: DecoderConfig, layer_idx: int):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(config.d_model), nn.LayerNorm(config.d_model)
        self.self_attn = SdpaAttention(config, layer_idx)
        self.mlp = nn.Sequential(
            nn.Linear(config.d_model, 4 * config.d_model), nn.GELU(), nn.Linear(4 * config.d_model, config.d_model)
        )

    def forward(self, x, attention_mask=None, past_key_value=None):
        x = x + self.self_attn(self.ln1(x), attention_mask, past_key_value)
        return x + self.mlp(self.ln2(x))


class Decoder(nn.Module):
    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.tok = nn.Embedding(config.vocab_size, config.d_model)
        self.pos = nn.Embedding(config.max_len, config.d_model)
        self.layers = nn.ModuleList(DecoderLayer(config, i) for i in range(config.n_layers))
        self.head = nn.Linear(config.d_model, config.vocab_size)

    def forward(self, ids, past: Optional[Cache] = None):
        start = past.get_seq_length() if past is not None else 0
        x = self.tok(ids) + self.pos(torch.arange(start, start + ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x, None, past)
        return self.head(x)
