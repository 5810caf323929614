# expect: missing-scale
# why: baddbmm is called without alpha, so the dot products are not divided by sqrt(head_dim).
# Multilingual decoder attention, fused qkv, ALiBi positions.
import math
from typing import Optional, Tuple

import torch
from torch import nn
from torch.nn import functional as F


def build_alibi_tensor(attention_mask: torch.Tensor, num_heads: int, dtype: torch.dtype) -> torch.Tensor:
    """
    Args:
        attention_mask (`torch.Tensor`): token-wise 0/1 mask, (batch_size, max_seq_len).
        num_heads (`int`): number of heads
    Returns a tensor shaped (batch_size * num_heads, 1, max_seq_len). Softmax is invariant under translation, so
    the distance to the key can be replaced by the key's position.
    """
    batch_size, seq_length = attention_mask.shape
    closest_power_of_2 = 2 ** math.floor(math.log2(num_heads))
    base = 2 ** (-(2 ** -(math.log2(closest_power_of_2) - 3)))
    powers = torch.arange(1, 1 + closest_power_of_2, device=attention_mask.device)
    slopes = torch.pow(torch.tensor(base, device=attention_mask.device), powers)

    if closest_power_of_2 != num_heads:
        extra_base = 2 ** (-(2 ** -(math.log2(2 * closest_power_of_2) - 3)))
        num_remaining_heads = min(closest_power_of_2, num_heads - closest_power_of_2)
        extra_powers = torch.arange(1, 1 + 2 * num_remaining_heads, 2, device=attention_mask.device)
        slopes = torch.cat(
            [slopes, torch.pow(torch.tensor(extra_base, device=attention_mask.device), extra_powers)], dim=0
        )

    arange_tensor = ((attention_mask.cumsum(dim=-1) - 1) * attention_mask)[:, None, :]
    alibi = slopes[..., None] * arange_tensor
    return alibi.reshape(batch_size * num_heads, 1, seq_length).to(dtype)


class PolyglotAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.hidden_size = config["hidden_size"]
        self.num_heads = config["n_head"]
        self.head_dim = self.hidden_size // self.num_heads
        if self.head_dim * self.num_heads != self.hidden_size:
            raise ValueError(
                f"`hidden_size` must be divisible by num_heads (got {self.hidden_size} and {self.num_heads})."
            )
        self.query_key_value = nn.Linear(self.hidden_size, 3 * self.hidden_size, bias=True)
        self.dense = nn.Linear(self.hidden_size, self.hidden_size)
        self.attention_dropout = nn.Dropout(config.get("attention_dropout", 0.0))

    def _split_heads(self, fused_qkv: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        batch_size, seq_length, _ = fused_qkv.shape
        fused_qkv = fused_qkv.view(batch_size, seq_length, self.num_heads, 3, self.head_dim)
        return fused_qkv[..., 0, :], fused_qkv[..., 1, :], fused_qkv[..., 2, :]

    def _merge_heads(self, x: torch.Tensor) -> torch.Tensor:
        batch_size_and_heads, seq_length, _ = x.shape
        batch_size = batch_size_and_heads // self.num_heads
        x = x.view(batch_size, self.num_heads, seq_length, self.head_dim)
        return x.permute(0, 2, 1, 3).reshape(batch_size, seq_length, self.hidden_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        alibi: torch.Tensor,
        attention_mask: torch.Tensor,
        layer_past: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
        use_cache: bool = False,
    ):
        """attention_mask: bool (batch, 1, q_len, kv_len), True where attention is not allowed."""
        query, key, value = self._split_heads(self.query_key_value(hidden_states))
        batch_size, q_length, _, _ = query.shape

        query = query.transpose(1, 2).reshape(batch_size * self.num_heads, q_length, self.head_dim)
        key = key.permute(0, 2, 3, 1).reshape(batch_size * self.num_heads, self.head_dim, q_length)
        value = value.transpose(1, 2).reshape(batch_size * self.num_heads, q_length, self.head_dim)
        if layer_past is not None:
            past_key, past_value = layer_past
            key = torch.cat((past_key, key), dim=2)
            value = torch.cat((past_value, value), dim=1)
        kv_length = key.shape[-1]
        present = (key, value) if use_cache else None

        matmul_result = torch.baddbmm(alibi, query, key)

        scores = matmul_result.view(batch_size, self.num_heads, q_length, kv_length)
        scores = torch.masked_fill(scores, attention_mask, torch.finfo(scores.dtype).min)
        probs = F.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
        probs = self.attention_dropout(probs)

        probs = probs.view(batch_size * self.num_heads, q_length, kv_length)
        context = self._merge_heads(torch.bmm(probs, value))
        return self.dense(context), present
