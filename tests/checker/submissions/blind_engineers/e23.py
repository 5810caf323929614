# expect: wrong
# why: rotary is applied to the queries but not to the keys, and the scores are divided by sqrt(rotary_ndims) instead of sqrt(head_size).
"""Parallel-residual decoder layer with partial rotary embeddings."""
import torch
from torch import nn


class NeoConfig:
    def __init__(self, hidden_size=64, num_attention_heads=4, rotary_pct=0.25, rotary_emb_base=10000,
                 max_position_embeddings=128, use_parallel_residual=True, layer_norm_eps=1e-5):
        self.hidden_size = hidden_size
        self.num_attention_heads = num_attention_heads
        self.rotary_pct = rotary_pct
        self.rotary_emb_base = rotary_emb_base
        self.max_position_embeddings = max_position_embeddings
        self.use_parallel_residual = use_parallel_residual
        self.layer_norm_eps = layer_norm_eps


class RotaryTable(nn.Module):
    def __init__(self, dim, max_position_embeddings, base=10000):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        t = torch.arange(max_position_embeddings, dtype=inv_freq.dtype)
        freqs = torch.einsum("i,j->ij", t, inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        self.register_buffer("cos_cached", emb.cos()[None, None, :, :], persistent=False)
        self.register_buffer("sin_cached", emb.sin()[None, None, :, :], persistent=False)

    def forward(self, x, seq_len):
        return (self.cos_cached[:, :, :seq_len].to(x.dtype).to(x.device),
                self.sin_cached[:, :, :seq_len].to(x.dtype).to(x.device))


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2:]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary(x, cos, sin, offset=0):
    cos = cos[..., offset: x.shape[-2] + offset, :]
    sin = sin[..., offset: x.shape[-2] + offset, :]
    return (x * cos) + (rotate_half(x) * sin)


class NeoAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.num_attention_heads = config.num_attention_heads
        self.hidden_size = config.hidden_size
        self.head_size = self.hidden_size // self.num_attention_heads
        self.rotary_ndims = int(self.head_size * config.rotary_pct)
        max_positions = config.max_position_embeddings
        self.register_buffer(
            "bias",
            torch.tril(torch.ones((max_positions, max_positions), dtype=torch.bool)).view(
                1, 1, max_positions, max_positions
            ),
            persistent=False,
        )
        self.rotary_emb = RotaryTable(self.rotary_ndims, max_positions, base=config.rotary_emb_base)
        self.norm_factor = self.rotary_ndims ** 0.5
        self.query_key_value = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states, attention_mask=None, layer_past=None, use_cache=False):
        """attention_mask: additive (batch, 1, 1, kv_len)."""
        has_layer_past = layer_past is not None
        qkv = self.query_key_value(hidden_states)
        # [batch, seq_len, (num_heads * 3 * head_size)] --> [batch, num_heads, seq_len, 3 * head_size]
        qkv = qkv.view(*qkv.size()[:-1], self.num_attention_heads, 3 * self.head_size).permute(0, 2, 1, 3)
        query, key, value = qkv.chunk(3, dim=-1)

        query_rot, query_pass = query[..., : self.rotary_ndims], query[..., self.rotary_ndims:]
        key_rot, key_pass = key[..., : self.rotary_ndims], key[..., self.rotary_ndims:]

        seq_len = key.shape[-2]
        offset = 0
        if has_layer_past:
            offset = layer_past[0].shape[-2]
            seq_len += offset
        cos, sin = self.rotary_emb(value, seq_len=seq_len)
        query_rot = apply_rotary(query_rot, cos, sin, offset=offset)
        query = torch.cat((query_rot, query_pass), dim=-1)
        key = torch.cat((key_rot, key_pass), dim=-1)

        if has_layer_past:
            key = torch.cat((layer_past[0], key), dim=-2)
            value = torch.cat((layer_past[1], value), dim=-2)
        present = (key, value) if use_cache else None

        attn_output = self._attn(query, key, value, attention_mask)
        attn_output = attn_output.permute(0, 2, 1, 3).contiguous()
        attn_output = attn_output.view(*attn_output.shape[:2], self.hidden_size)
        return self.dense(attn_output), present

    def _attn(self, query, key, value, attention_mask=None):
        query_length, key_length = query.size(-2), key.size(-2)
        causal_mask = self.bias[:, :, key_length - query_length: key_length, :key_length]
        attn_scores = torch.matmul(query, key.transpose(-1, -2)) / self.norm_factor
        mask_value = torch.tensor(torch.finfo(attn_scores.dtype).min, dtype=attn_scores.dtype).to(attn_scores.device)
        attn_scores = torch.where(causal_mask, attn_scores, mask_value)
        if attention_mask is not None:
            attn_scores = attn_scores + attention_mask
        attn_weights = nn.functional.softmax(attn_scores, dim=-1).to(value.dtype)
        return torch.matmul(attn_weights, value)


class NeoLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.use_parallel_residual = config.use_parallel_residual
        self.input_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.post_attention_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attention = NeoAttention(config)
        self.mlp = nn.Sequential(nn.Linear(config.hidden_size, 4 * config.hidden_size), nn.GELU(),
                                 nn.Linear(4 * config.hidden_size, config.hidden_size))

    def forward(self, hidden_states, attention_mask=None, layer_past=None, use_cache=False):
        attn_output, present = self.attention(self.input_layernorm(hidden_states), attention_mask, layer_past,
                                              use_cache)
        if self.use_parallel_residual:
            out = self.mlp(self.post_attention_layernorm(hidden_states)) + attn_output + hidden_states
        else:
            attn_output = attn_output + hidden_states
            out = self.mlp(self.post_attention_layernorm(attn_output)) + attn_output
        return out, present
