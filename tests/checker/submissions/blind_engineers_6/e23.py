# expect: correct
# why: right though the scores are not scaled: T5
# Encoder/decoder attention in the style of T5: no 1/sqrt(d) scaling (it is folded into the
# initialisation), bucketed relative position bias owned by the first layer and handed on.
import math
from typing import Optional, Tuple

import torch
from torch import nn, Tensor


def relative_position_bucket(relative_position: Tensor, bidirectional: bool = True,
                             num_buckets: int = 32, max_distance: int = 128) -> Tensor:
    """Map ``memory_position - query_position`` to a bucket id.

    Half of the buckets hold exact offsets, the other half are logarithmically wider up to
    ``max_distance``. With ``bidirectional=False`` only positions in the past get own buckets.
    """
    ret = torch.zeros_like(relative_position)
    n = relative_position
    if bidirectional:
        num_buckets //= 2
        ret = ret + (n > 0).long() * num_buckets
        n = n.abs()
    else:
        n = -torch.minimum(n, torch.zeros_like(n))
    max_exact = num_buckets // 2
    is_small = n < max_exact
    large = max_exact + (
        torch.log(n.float().clamp(min=1) / max_exact)
        / math.log(max_distance / max_exact) * (num_buckets - max_exact)
    ).long()
    large = large.clamp(max=num_buckets - 1)
    return ret + torch.where(is_small, n, large)


class T5StyleAttention(nn.Module):
    """Multi-head attention for the encoder, the decoder and the cross-attention.

    forward args:
        hidden: (B, T, d_model) queries
        key_value_states: (B, S, d_model) for cross attention
        mask: additive float mask broadcastable to (B, 1, T, S); the caller supplies it
            (padding, and the causal triangle in the decoder)
        position_bias: (1, H, T, S) bias of an earlier layer, without the mask
        past_key_value: (k, v), each (B, H, S_past, d_kv), self attention only
    returns ``(output, position_bias, present_key_value)``
    """

    def __init__(self, d_model: int, d_kv: int, num_heads: int, dropout: float = 0.1,
                 has_relative_bias: bool = False, is_decoder: bool = False,
                 num_buckets: int = 32, max_distance: int = 128):
        super().__init__()
        inner = num_heads * d_kv
        self.d_kv, self.n_heads = d_kv, num_heads
        self.is_decoder = is_decoder
        self.num_buckets, self.max_distance = num_buckets, max_distance
        self.dropout = nn.Dropout(dropout)
        self.q = nn.Linear(d_model, inner, bias=False)
        self.k = nn.Linear(d_model, inner, bias=False)
        self.v = nn.Linear(d_model, inner, bias=False)
        self.o = nn.Linear(inner, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads) if has_relative_bias else None
        self._init_weights(d_model)

    def _init_weights(self, d_model: int):
        nn.init.normal_(self.q.weight, std=(d_model * self.d_kv) ** -0.5)
        for lin in (self.k, self.v):
            nn.init.normal_(lin.weight, std=d_model ** -0.5)
        nn.init.normal_(self.o.weight, std=(self.n_heads * self.d_kv) ** -0.5)
        if self.relative_attention_bias is not None:
            nn.init.normal_(self.relative_attention_bias.weight, std=d_model ** -0.5)

    def compute_bias(self, q_len: int, k_len: int, device) -> Tensor:
        """Bias for the last ``q_len`` of ``k_len`` positions, (1, H, q_len, k_len)."""
        context = torch.arange(k_len - q_len, k_len, device=device)[:, None]
        memory = torch.arange(k_len, device=device)[None, :]
        bucket = relative_position_bucket(memory - context, not self.is_decoder,
                                          self.num_buckets, self.max_distance)
        return self.relative_attention_bias(bucket).permute(2, 0, 1).unsqueeze(0)

    def _split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], -1, self.n_heads, self.d_kv).transpose(1, 2)

    def forward(self, hidden: Tensor, key_value_states: Optional[Tensor] = None,
                mask: Optional[Tensor] = None, position_bias: Optional[Tensor] = None,
                past_key_value: Optional[Tuple[Tensor, Tensor]] = None):
        B, T, _ = hidden.shape
        src = hidden if key_value_states is None else key_value_states
        q, k, v = self._split(self.q(hidden)), self._split(self.k(src)), self._split(self.v(src))
        if past_key_value is not None and key_value_states is None:
            k = torch.cat([past_key_value[0], k], dim=2)
            v = torch.cat([past_key_value[1], v], dim=2)
        present = (k, v) if self.is_decoder and key_value_states is None else None

        scores = torch.matmul(q, k.transpose(-1, -2))
        if position_bias is None and self.relative_attention_bias is not None:
            position_bias = self.compute_bias(T, k.shape[2], hidden.device)
        if position_bias is not None:
            scores = scores + position_bias
        if mask is not None:
            scores = scores + mask
        probs = torch.softmax(scores.float(), dim=-1).type_as(scores)
        out = torch.matmul(self.dropout(probs), v)
        out = out.transpose(1, 2).reshape(B, T, self.n_heads * self.d_kv)
        return self.o(out), position_bias, present
