# expect: cache-differs
# why: line 28: the query positions start at 0 even if key_length > query_length, and the distance is taken as an absolute value, so with a cache the distance penalty is measured from the wrong place (favouring the oldest keys). Only with a cache (layer_past).
import math
from typing import List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn


class AlibiConfig(NamedTuple):
    hidden_size: int = 64
    n_head: int = 8
    attention_dropout: float = 0.0
    causal: bool = True


def get_slopes(n: int) -> List[float]:
    def power_of_two(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(n).is_integer():
        return power_of_two(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_two(closest) + get_slopes(2 * closest)[0::2][: n - closest]


def build_alibi(slopes: Tensor, query_length: int, key_length: int) -> Tensor:
    """Linear distance penalty, (1, heads, query_length, key_length)."""
    rows = torch.arange(query_length, device=slopes.device)
    cols = torch.arange(key_length, device=slopes.device)
    distance = (rows[:, None] - cols[None, :]).abs()
    return -slopes.view(1, -1, 1, 1) * distance


class AlibiAttention(nn.Module):
    def __init__(self, config: AlibiConfig):
        super().__init__()
        self.hidden_size = config.hidden_size
        self.num_heads = config.n_head
        self.head_dim = self.hidden_size // self.num_heads
        self.causal = config.causal
        self.inv_norm_factor = 1.0 / math.sqrt(self.head_dim)

        self.query_key_value = nn.Linear(self.hidden_size, 3 * self.hidden_size, bias=True)
        self.dense = nn.Linear(self.hidden_size, self.hidden_size)
        self.attention_dropout = nn.Dropout(config.attention_dropout)
        self.register_buffer("slopes", torch.tensor(get_slopes(self.num_heads)), persistent=False)

    def _split_heads(self, fused_qkv: Tensor):
        b, n, _ = fused_qkv.shape
        fused_qkv = fused_qkv.view(b, n, self.num_heads, 3, self.head_dim)
        return tuple(fused_qkv[..., i, :].transpose(1, 2) for i in range(3))

    def _merge_heads(self, x: Tensor) -> Tensor:
        b, h, n, d = x.shape
        return x.permute(0, 2, 1, 3).reshape(b, n, h * d)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Optional[Tensor] = None,
        layer_past: Optional[Tuple[Tensor, Tensor]] = None,
        use_cache: bool = False,
    ):
        """attention_mask: (batch, key_length), 1 for tokens and 0 for padding."""
        q, k, v = self._split_heads(self.query_key_value(hidden_states))
        if layer_past is not None:
            k = torch.cat((layer_past[0], k), dim=2)
            v = torch.cat((layer_past[1], v), dim=2)
        present = (k, v) if use_cache else None
        q_len, k_len = q.shape[2], k.shape[2]

        scores = torch.matmul(q, k.transpose(-1, -2)) * self.inv_norm_factor
        scores = scores + build_alibi(self.slopes, q_len, k_len).to(scores.dtype)

        blocked = torch.zeros(1, 1, q_len, k_len, dtype=torch.bool, device=scores.device)
        if self.causal:
            ones = torch.ones(q_len, k_len, dtype=torch.bool, device=scores.device)
            blocked = blocked | torch.triu(ones, diagonal=1 + k_len - q_len)
        if attention_mask is not None:
            blocked = blocked | (attention_mask[:, None, None, :] == 0)
        scores = scores.masked_fill(blocked, torch.finfo(scores.dtype).min)

        probs = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        probs = self.attention_dropout(probs)
        context = self._merge_heads(torch.matmul(probs, v))
        return self.dense(context), present


class AlibiBlock(nn.Module):
    def __init__(self, config: AlibiConfig):
        super().__init__()
        self.input_layernorm = nn.LayerNorm(config.hidden_size)
        self.self_attention = AlibiAttention(config)
        self.post_attention_layernorm = nn.LayerNorm(config.hidden_size)
        self.mlp = nn.Sequential(
            nn.Linear(config.hidden_size, 4 * config.hidden_size), nn.GELU(),
            nn.Linear(4 * config.hidden_size, config.hidden_size),
        )

    def forward(self, x, attention_mask=None, layer_past=None, use_cache=False):
        a, present = self.self_attention(self.input_layernorm(x), attention_mask, layer_past, use_cache)
        x = x + a
        return x + self.mlp(self.post_attention_layernorm(x)), present
