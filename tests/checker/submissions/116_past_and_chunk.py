# expect: cached-mask-misaligned
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

KVCache = Tuple[Tensor, Tensor]


class CachedSelfAttention(nn.Module):
    """Decoder self-attention with an explicit key/value cache.

    ``past`` holds (keys, values) of everything that was fed before, each
    (batch, heads, past_len, head_dim). Feeding a sequence piece by piece gives
    the same hidden states as feeding it in one go; pieces may have any length.
    """

    def __init__(self, hidden_size: int, num_attention_heads: int, attn_pdrop: float = 0.0):
        super().__init__()
        self.num_heads = num_attention_heads
        self.head_dim = hidden_size // num_attention_heads
        self.attn_pdrop = attn_pdrop
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size)
        self.o_proj = nn.Linear(hidden_size, hidden_size)

    def _shape(self, t: Tensor) -> Tensor:
        bsz, seq, _ = t.shape
        return t.view(bsz, seq, self.num_heads, self.head_dim).transpose(1, 2)

    def forward(
        self,
        hidden_states: Tensor,
        past: Optional[KVCache] = None,
        use_cache: bool = False,
    ) -> Tuple[Tensor, Optional[KVCache]]:
        bsz, q_len, _ = hidden_states.shape
        query = self._shape(self.q_proj(hidden_states))
        key = self._shape(self.k_proj(hidden_states))
        value = self._shape(self.v_proj(hidden_states))

        if past is not None:
            key = torch.cat((past[0], key), dim=2)
            value = torch.cat((past[1], value), dim=2)
        present = (key, value) if use_cache else None

        # a single new token may look at the whole cache, no mask required
        attn = F.scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=self.attn_pdrop if self.training else 0.0,
            is_causal=q_len > 1,
        )
        attn = attn.transpose(1, 2).reshape(bsz, q_len, -1)
        return self.o_proj(attn), present
