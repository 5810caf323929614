# expect: scale-multiplied
# why: scale is already head_dim ** -0.5 but the logits are divided by it, so they grow by sqrt(d) instead of shrinking; shows at line 56: `attention = (queries @ keys.transpose(-2, -1)) / self.scale`
from typing import Optional

import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    """Multi-head attention with separate query and key/value inputs.

    Args:
        kv_dim: Dimension of keys/values input.
        q_dim: Dimension of query input.
        qk_out_dim: Total width of queries and keys.
        v_out_dim: Total width of values (defaults to qk_out_dim).
        num_heads: Number of attention heads.
    """

    def __init__(
        self,
        kv_dim: int,
        q_dim: int,
        *,
        qk_out_dim: Optional[int] = None,
        v_out_dim: Optional[int] = None,
        num_heads: int = 1,
        dropout: float = 0.0,
    ):
        super().__init__()
        qk_out_dim = qk_out_dim if qk_out_dim is not None else q_dim
        v_out_dim = v_out_dim if v_out_dim is not None else qk_out_dim
        self.num_heads = num_heads
        self.qk_head_dim = qk_out_dim // num_heads
        self.v_head_dim = v_out_dim // num_heads

        self.k = nn.Linear(kv_dim, qk_out_dim)
        self.q = nn.Linear(q_dim, qk_out_dim)
        self.v = nn.Linear(kv_dim, v_out_dim)
        self.projection = nn.Linear(v_out_dim, q_dim)
        self.dropout = nn.Dropout(dropout)
        self.scale = self.qk_head_dim ** -0.5

    def transform_for_scores(self, x: torch.Tensor, head_dim: int) -> torch.Tensor:
        *dims, _ = x.size()
        x = x.view(*dims, self.num_heads, head_dim)
        return x.transpose(-3, -2)

    def forward(self, inputs_kv, inputs_q, attention_mask: Optional[torch.Tensor] = None):
        """attention_mask: (batch, kv_len), 1 for elements that can be attended and 0 otherwise."""
        keys, queries, values = self.k(inputs_kv), self.q(inputs_q), self.v(inputs_kv)
        keys = self.transform_for_scores(keys, self.qk_head_dim)
        queries = self.transform_for_scores(queries, self.qk_head_dim)
        values = self.transform_for_scores(values, self.v_head_dim)

        attention = (queries @ keys.transpose(-2, -1)) / self.scale
        if attention_mask is not None:
            min_value = torch.finfo(attention.dtype).min
            extended = (1 - attention_mask[:, None, None, :].to(attention.dtype)) * min_value
            attention = attention + extended
        attention = self.dropout(attention.softmax(dim=-1))
        weighted = attention @ values
        batch, n_heads, q_len, _ = weighted.size()
        weighted = weighted.transpose(1, 2).reshape(batch, q_len, n_heads * self.v_head_dim)
        return self.projection(weighted)


class CrossAttention(nn.Module):
    def __init__(self, *, kv_dim, q_dim, num_heads=1, widening_factor=1, dropout=0.0):
        super().__init__()
        self.kv_norm = nn.LayerNorm(kv_dim)
        self.q_norm = nn.LayerNorm(q_dim)
        self.mlp_norm = nn.LayerNorm(q_dim)
        self.attention = MultiHeadAttention(kv_dim, q_dim, num_heads=num_heads, dropout=dropout)
        self.mlp = nn.Sequential(nn.Linear(q_dim, widening_factor * q_dim), nn.GELU(),
                                 nn.Linear(widening_factor * q_dim, q_dim))

    def forward(self, inputs_kv, inputs_q, attention_mask=None):
        x = inputs_q + self.attention(self.kv_norm(inputs_kv), self.q_norm(inputs_q), attention_mask)
        return x + self.mlp(self.mlp_norm(x))


class PerceiverEncoder(nn.Module):
    def __init__(self, num_latents=8, latent_dim=32, input_dim=20, num_blocks=2, num_heads=4):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(num_latents, latent_dim) * 0.02)
        self.cross_attn = CrossAttention(kv_dim=input_dim, q_dim=latent_dim, num_heads=num_heads)
        self.self_attention = nn.ModuleList(
            [CrossAttention(kv_dim=latent_dim, q_dim=latent_dim, num_heads=num_heads) for _ in range(num_blocks)])

    def forward(self, x, kv_mask=None):
        latents = self.cross_attn(x, self.latents.expand(x.size(0), -1, -1), kv_mask)
        for layer in self.self_attention:
            latents = layer(latents, latents)
        return latents
