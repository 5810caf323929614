# expect: cached-mask-misaligned
from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class CachedCausalAttention(nn.Module):
    """
    Causal self-attention with an optional (key, value) cache.
    The prompt may be fed in several chunks; pass the returned cache to the next call.
    """

    def __init__(self, hidden_size: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.c_attn = nn.Linear(hidden_size, hidden_size * 3)
        self.c_proj = nn.Linear(hidden_size, hidden_size)

    def _heads(self, t: torch.Tensor) -> torch.Tensor:
        return t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def forward(
        self,
        hidden_states: torch.Tensor,
        layer_past: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
        use_cache: bool = False,
    ):
        q, k, v = map(self._heads, self.c_attn(hidden_states).chunk(3, dim=-1))
        if layer_past is not None:
            pk, pv = layer_past
            k = torch.cat((pk, k), dim=-2)
            v = torch.cat((pv, v), dim=-2)
        present = (k, v) if use_cache else None

        T = q.size(-2)
        # a single new token may look at everything, so no mask is needed then
        out = F.scaled_dot_product_attention(q, k, v, is_causal=T > 1)
        out = self.c_proj(out.transpose(1, 2).flatten(2))
        return out, present
