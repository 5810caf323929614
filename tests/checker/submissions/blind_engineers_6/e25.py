# expect: correct
# why: right: ring-buffer cache, interleaved RoPE, SDPA with enable_gqa
"""Streaming transformer of the neural audio codec.

The encoder/decoder transformers see a bounded past (``context`` frames), so they can run forever on
a ring buffer. Offline and streaming runs give the same result for any chunking of the input.
"""
from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class RingState:
    k: torch.Tensor          # (B, H_kv, context, D), already rotated
    v: torch.Tensor          # (B, H_kv, context, D)
    positions: torch.Tensor  # (context,), absolute position in each slot, -1 when empty
    offset: int = 0          # number of frames seen so far


def rope(x: torch.Tensor, pos: torch.Tensor, max_period: float = 10_000.0) -> torch.Tensor:
    """Interleaved rotary embedding; x (B, H, T, D), pos (T,)."""
    B, H, T, D = x.shape
    ds = torch.arange(D // 2, device=x.device, dtype=torch.float32)
    freqs = torch.exp(ds * (-torch.log(torch.tensor(max_period)).item() * 2 / D))
    ang = pos.float()[:, None] * freqs
    re, im = x.float().view(B, H, T, D // 2, 2).unbind(-1)
    cos, sin = ang.cos(), ang.sin()
    return torch.stack([re * cos - im * sin, re * sin + im * cos], dim=-1).flatten(-2).to(x.dtype)


class StreamingLocalAttention(nn.Module):
    """Causal attention restricted to the last ``context`` frames (the current one included).

    Args:
        embed_dim, num_heads: usual; ``kv_heads`` (default num_heads) divides num_heads.
        context: number of visible frames.

    ``forward(x)`` is the offline run; ``forward(x, state)`` continues a stream (the state is updated
    in place). Get a state from :meth:`init_state`. Streaming is for inference only.
    """

    def __init__(self, embed_dim: int, num_heads: int, context: int, kv_heads: Optional[int] = None):
        super().__init__()
        self.num_heads, self.context = num_heads, context
        self.kv_heads = kv_heads or num_heads
        self.head_dim = embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.kv_proj = nn.Linear(embed_dim, 2 * self.kv_heads * self.head_dim, bias=False)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=False)

    def init_state(self, batch: int, device=None, dtype=torch.float32) -> RingState:
        shape = (batch, self.kv_heads, self.context, self.head_dim)
        return RingState(torch.zeros(shape, device=device, dtype=dtype),
                         torch.zeros(shape, device=device, dtype=dtype),
                         torch.full((self.context,), -1, dtype=torch.long, device=device))

    def forward(self, x: torch.Tensor, state: Optional[RingState] = None) -> torch.Tensor:
        B, T, _ = x.shape
        offset = 0 if state is None else state.offset
        pos = torch.arange(offset, offset + T, device=x.device)

        q = self.q_proj(x).view(B, T, self.num_heads, -1).transpose(1, 2)
        k, v = self.kv_proj(x).view(B, T, 2, self.kv_heads, -1).permute(2, 0, 3, 1, 4)
        q, k = rope(q, pos), rope(k, pos)

        keys, values, kpos = k, v, pos
        if state is not None:
            keys = torch.cat([state.k, k], dim=2)
            values = torch.cat([state.v, v], dim=2)
            kpos = torch.cat([state.positions, pos])

        delta = pos[:, None] - kpos[None, :]
        visible = (kpos[None, :] >= 0) & (delta >= 0) & (delta < self.context)
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=visible,
                                           enable_gqa=self.kv_heads != self.num_heads)
        if state is not None:
            self._write(state, k, v, pos)
        return self.out_proj(y.transpose(1, 2).flatten(2))

    @torch.no_grad()
    def _write(self, state: RingState, k, v, pos):
        # older frames of a long chunk would be overwritten anyway
        k, v, last = k[:, :, -self.context:], v[:, :, -self.context:], pos[-self.context:]
        slots = last % self.context
        state.k[:, :, slots] = k.to(state.k.dtype)
        state.v[:, :, slots] = v.to(state.v.dtype)
        state.positions[slots] = last
        state.offset += pos.numel()
