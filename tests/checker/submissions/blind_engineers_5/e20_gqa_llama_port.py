# expect: kv-heads-in-other-order
# why: key/value heads are tiled (0,1,0,1,...) instead of repeated in order (0,0,...,1,1,...), so query heads read the wrong group, against the docstring and the checkpoints; shows at line 46: `k = k.repeat(1, self.n_rep, 1, 1)` and the same for v
# Minimal port of a grouped-query decoder layer, loads HF checkpoints after renaming the keys.
import math
from typing import Optional

import torch
from torch import nn


class GroupedQueryAttention(nn.Module):
    """
    num_kv_heads < num_heads. Query heads are grouped in order: with n_rep = num_heads // num_kv_heads,
    query heads g * n_rep ... (g + 1) * n_rep - 1 read key/value head g, as in the released checkpoints.
    """

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: Optional[int] = None):
        super().__init__()
        if num_heads % num_kv_heads:
            raise ValueError(f"{num_heads=} must be a multiple of {num_kv_heads=}")
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim or hidden_size // num_heads
        self.n_rep = num_heads // num_kv_heads
        self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * self.head_dim, hidden_size, bias=False)

    @staticmethod
    def _split(x: torch.Tensor, n: int) -> torch.Tensor:
        b, s, _ = x.shape
        return x.view(b, s, n, -1).transpose(1, 2)

    def forward(self, hidden_states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
                attention_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        b, s, _ = hidden_states.shape
        q = self._split(self.q_proj(hidden_states), self.num_heads)
        k = self._split(self.k_proj(hidden_states), self.num_kv_heads)
        v = self._split(self.v_proj(hidden_states), self.num_kv_heads)

        q = q * cos + self._rotate_half(q) * sin
        k = k * cos + self._rotate_half(k) * sin

        # expand key/value heads to the number of query heads
        k = k.repeat(1, self.n_rep, 1, 1)
        v = v.repeat(1, self.n_rep, 1, 1)

        weights = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.head_dim)
        causal = torch.ones(s, s, dtype=torch.bool, device=q.device).tril()
        if attention_mask is not None:
            causal = causal & attention_mask[:, None, None, :].bool()
        weights = weights.masked_fill(~causal, torch.finfo(weights.dtype).min)
        weights = nn.functional.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
        out = torch.matmul(weights, v).transpose(1, 2).contiguous().view(b, s, -1)
        return self.o_proj(out)

    @staticmethod
    def _rotate_half(x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def rotary_tables(seq_len: int, head_dim: int, theta: float = 500000.0):
    inv_freq = 1.0 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.outer(torch.arange(seq_len).float(), inv_freq)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


class DecoderLayer(nn.Module):
    def __init__(self, hidden_size=64, num_heads=8, num_kv_heads=2, intermediate=128):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(hidden_size, eps=1e-5)
        self.self_attn = GroupedQueryAttention(hidden_size, num_heads, num_kv_heads)
        self.post_attention_layernorm = nn.RMSNorm(hidden_size, eps=1e-5)
        self.gate_proj = nn.Linear(hidden_size, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden_size, bias=False)

    def forward(self, x, attention_mask=None):
        cos, sin = rotary_tables(x.shape[1], self.self_attn.head_dim)
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, attention_mask)
        h = self.post_attention_layernorm(x)
        return x + self.down_proj(nn.functional.silu(self.gate_proj(h)) * self.up_proj(h))
