# expect: correct
from dataclasses import dataclass
import math

import torch
import torch.nn as nn


@dataclass
class ModelConfig:
    hidden_size: int = 64
    head_dim: int = 16
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    sliding_window: int = 4
    rope_theta: float = 150000.0


class RotaryEmbedding(nn.Module):
    def __init__(self, head_dim: int, base: float, device=None):
        super().__init__()
        self.head_dim = head_dim
        self.base = base

    def _compute_cos_sin(self, num_tokens: int, device, dtype):
        freq = self.base ** (torch.arange(0, self.head_dim, 2, dtype=torch.float32, device=device) / self.head_dim)
        t = torch.arange(num_tokens, dtype=torch.float32, device=device)
        freqs = torch.einsum("i,j->ij", t, 1.0 / freq)
        return freqs.cos().to(dtype), freqs.sin().to(dtype)

    @staticmethod
    def _rotate(x, cos, sin):
        # x: (n_tokens, heads..., head_dim)
        while cos.ndim < x.ndim:
            cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        x1, x2 = torch.chunk(x, 2, dim=-1)
        return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)

    def forward(self, query, key):
        cos, sin = self._compute_cos_sin(query.shape[0], query.device, query.dtype)
        return self._rotate(query, cos, sin), self._rotate(key, cos, sin)


def sdpa(Q, K, V, S, sm_scale, sliding_window=0):
    # sliding_window == 0 means no sliding window
    n_tokens, n_heads, q_mult, d_head = Q.shape
    assert K.shape == (n_tokens, n_heads, d_head)
    assert V.shape == (n_tokens, n_heads, d_head)
    K = K[:, :, None, :].expand(-1, -1, q_mult, -1)
    V = V[:, :, None, :].expand(-1, -1, q_mult, -1)
    S = S.reshape(n_heads, q_mult, 1, 1).expand(-1, -1, n_tokens, -1)
    mask = torch.triu(Q.new_full((n_tokens, n_tokens), -float("inf")), diagonal=1)
    if sliding_window > 0:
        mask += torch.tril(mask.new_full((n_tokens, n_tokens), -float("inf")), diagonal=-sliding_window)
    QK = torch.einsum("qhmd,khmd->hmqk", Q, K)
    QK *= sm_scale
    QK += mask[None, None, :, :]
    QK = torch.cat([QK, S.to(QK.dtype)], dim=-1)
    W = torch.softmax(QK, dim=-1)
    W = W[..., :-1]
    attn = torch.einsum("hmqk,khmd->qhmd", W, V)
    return attn.reshape(n_tokens, -1)


class AttentionBlock(nn.Module):
    """Pre-norm attention with a learned sink logit per head; even layers use the sliding window."""

    def __init__(self, config: ModelConfig, layer_idx: int = 0, device=None):
        super().__init__()
        self.head_dim = config.head_dim
        self.num_attention_heads = config.num_attention_heads
        self.num_key_value_heads = config.num_key_value_heads
        self.sliding_window = config.sliding_window if layer_idx % 2 == 0 else 0
        self.sinks = nn.Parameter(torch.randn(config.num_attention_heads, device=device))
        self.norm = nn.RMSNorm(config.hidden_size, eps=1e-5)
        qkv_dim = config.head_dim * (config.num_attention_heads + 2 * config.num_key_value_heads)
        self.qkv = nn.Linear(config.hidden_size, qkv_dim, device=device)
        self.out = nn.Linear(config.head_dim * config.num_attention_heads, config.hidden_size, device=device)
        self.sm_scale = 1 / math.sqrt(config.head_dim)
        self.rope = RotaryEmbedding(config.head_dim, config.rope_theta, device=device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (n_tokens, hidden_size), one unbatched sequence."""
        t = self.norm(x)
        qkv = self.qkv(t)
        q_size = self.num_attention_heads * self.head_dim
        kv_size = self.num_key_value_heads * self.head_dim
        q, k, v = torch.split(qkv, [q_size, kv_size, kv_size], dim=-1)
        q = q.view(-1, self.num_key_value_heads, self.num_attention_heads // self.num_key_value_heads, self.head_dim)
        k = k.view(-1, self.num_key_value_heads, self.head_dim)
        v = v.view(-1, self.num_key_value_heads, self.head_dim)
        q, k = self.rope(q, k)
        t = sdpa(q, k, v, self.sinks, self.sm_scale, self.sliding_window)
        return x + self.out(t)
