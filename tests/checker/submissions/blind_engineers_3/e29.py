# expect: correct
"""GPT-NeoX layer; the parameter names of the attention match the EleutherAI checkpoints."""
import torch
import torch.nn as nn


class NeoXConfig:
    model_type = "gpt_neox"

    def __init__(self, hidden_size=96, num_attention_heads=6, rotary_pct=0.25, rotary_emb_base=10000,
                 max_position_embeddings=128, layer_norm_eps=1e-5, use_parallel_residual=True, **kwargs):
        self.hidden_size = hidden_size
        self.num_attention_heads = num_attention_heads
        self.rotary_pct = rotary_pct
        self.rotary_emb_base = rotary_emb_base
        self.max_position_embeddings = max_position_embeddings
        self.layer_norm_eps = layer_norm_eps
        self.use_parallel_residual = use_parallel_residual
        self.__dict__.update(kwargs)


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


class GPTNeoXAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.num_attention_heads = config.num_attention_heads
        self.head_size = config.hidden_size // config.num_attention_heads
        self.rotary_ndims = int(self.head_size * config.rotary_pct)
        self.norm_factor = self.head_size ** -0.5
        inv_freq = 1.0 / config.rotary_emb_base ** (torch.arange(0, self.rotary_ndims, 2).float() / self.rotary_ndims)
        emb = torch.outer(torch.arange(config.max_position_embeddings).float(), inv_freq)
        emb = torch.cat((emb, emb), dim=-1)
        self.register_buffer("cos_cached", emb.cos(), persistent=False)
        self.register_buffer("sin_cached", emb.sin(), persistent=False)
        self.query_key_value = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states, attention_mask=None, layer_past=None, use_cache=False):
        has_layer_past = layer_past is not None
        # [batch, seq, heads * 3 * head_size] --> [batch, heads, seq, 3 * head_size]; q, k, v sit next to each other per head
        qkv = self.query_key_value(hidden_states)
        qkv = qkv.view(*qkv.shape[:-1], self.num_attention_heads, 3 * self.head_size)
        query = qkv[..., : self.head_size].permute(0, 2, 1, 3)
        key = qkv[..., self.head_size : 2 * self.head_size].permute(0, 2, 1, 3)
        value = qkv[..., 2 * self.head_size :].permute(0, 2, 1, 3)

        offset = layer_past[0].shape[-2] if has_layer_past else 0
        seq_len = query.shape[-2]
        cos = self.cos_cached[offset : offset + seq_len].to(query.dtype)
        sin = self.sin_cached[offset : offset + seq_len].to(query.dtype)
        query, key = self._rotate(query, cos, sin), self._rotate(key, cos, sin)

        if has_layer_past:
            key = torch.cat((layer_past[0], key), dim=-2)
            value = torch.cat((layer_past[1], value), dim=-2)
        present = (key, value) if use_cache else None

        attn_output, attn_weights = self._attn(query, key, value, attention_mask)
        attn_output = attn_output.permute(0, 2, 1, 3).contiguous()
        attn_output = attn_output.view(*attn_output.shape[:2], -1)
        return self.dense(attn_output), present, attn_weights

    def _rotate(self, x, cos, sin):
        rot, rest = x[..., : self.rotary_ndims], x[..., self.rotary_ndims :]
        return torch.cat((rot * cos + rotate_half(rot) * sin, rest), dim=-1)

    def _attn(self, query, key, value, attention_mask):
        b, h, q_len, d = query.shape
        k_len = key.size(-2)
        scores = torch.zeros(b * h, q_len, k_len, dtype=query.dtype, device=query.device)
        scores = torch.baddbmm(
            scores, query.reshape(b * h, q_len, d), key.reshape(b * h, k_len, d).transpose(1, 2),
            beta=0.0, alpha=self.norm_factor,
        ).view(b, h, q_len, k_len)
        causal = torch.ones(k_len, k_len, dtype=torch.bool, device=query.device).tril()[k_len - q_len :]
        scores = torch.where(causal, scores, torch.finfo(scores.dtype).min)
        if attention_mask is not None:          # additive, [batch, 1, 1, k_len]
            scores = scores + attention_mask
        weights = nn.functional.softmax(scores, dim=-1).to(value.dtype)
        return torch.matmul(weights, value), weights


class GPTNeoXLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.use_parallel_residual = config.use_parallel_residual
        self.input_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.post_attention_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attention = GPTNeoXAttention(config)
        self.mlp = nn.Sequential(nn.Linear(config.hidden_size, 4 * config.hidden_size), nn.GELU(),
                                 nn.Linear(4 * config.hidden_size, config.hidden_size))

    def forward(self, x, **kw):
        attn, present, _ = self.attention(self.input_layernorm(x), **kw)
        if self.use_parallel_residual:
            return x + attn + self.mlp(self.post_attention_layernorm(x)), present
        x = x + attn
        return x + self.mlp(self.post_attention_layernorm(x)), present
