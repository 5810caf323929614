# expect: cache-differs
# why: the decode mask uses the longest slot: shorter requests attend to stale cache entries
"""Decode-time attention of the inference server (continuous batching).

The server keeps a fixed number of slots. A request occupies a slot from its prefill until it is
finished; a slot is then reused without clearing the memory.
"""
from dataclasses import dataclass
from typing import List

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class EngineConfig:
    dim: int = 128
    n_heads: int = 4
    max_slots: int = 4
    max_len: int = 128
    rope_base: float = 10000.0


class SlotAttention(nn.Module):
    """Causal multi-head attention with one cache row per slot.

    * ``prefill(x, slot)``: x (T, dim), the prompt of one request; (re)starts the slot.
    * ``decode(x, slots)``: x (N, dim), one new token for each of the N slots, which may have
      different lengths.

    Both return the attention output for the tokens fed, (T, dim) / (N, dim). Feeding a request by
    ``prefill`` + ``decode`` gives the same outputs as prefilling all of its tokens at once, whatever
    the other slots contain.
    """

    def __init__(self, cfg: EngineConfig):
        super().__init__()
        self.cfg = cfg
        self.hd = cfg.dim // cfg.n_heads
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim, bias=False)
        self.o = nn.Linear(cfg.dim, cfg.dim, bias=False)
        shape = (cfg.max_slots, cfg.max_len, cfg.n_heads, self.hd)
        self.register_buffer("k_cache", torch.zeros(shape), persistent=False)
        self.register_buffer("v_cache", torch.zeros(shape), persistent=False)
        self.register_buffer("lengths", torch.zeros(cfg.max_slots, dtype=torch.long), persistent=False)
        self.register_buffer(
            "inv_freq", cfg.rope_base ** (-torch.arange(0, self.hd, 2).float() / self.hd), persistent=False)

    def _project(self, x: torch.Tensor, pos: torch.Tensor):
        """x (N, dim), pos (N,) -> q, k, v of shape (N, H, hd), q and k rotated."""
        q, k, v = self.qkv(x).view(x.shape[0], 3, self.cfg.n_heads, self.hd).unbind(1)
        ang = pos[:, None].float() * self.inv_freq
        cos, sin = ang.cos()[:, None], ang.sin()[:, None]

        def rot(t):
            a, b = t.float().chunk(2, dim=-1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(t.dtype)

        return rot(q), rot(k), v

    @torch.no_grad()
    def prefill(self, x: torch.Tensor, slot: int) -> torch.Tensor:
        n = x.shape[0]
        if n > self.cfg.max_len:
            raise ValueError("prompt too long")
        q, k, v = self._project(x, torch.arange(n, device=x.device))
        self.k_cache[slot, :n] = k
        self.v_cache[slot, :n] = v
        self.lengths[slot] = n
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), is_causal=True)
        return self.o(out.transpose(0, 1).reshape(n, -1))

    @torch.no_grad()
    def decode(self, x: torch.Tensor, slots: List[int]) -> torch.Tensor:
        slot_ids = torch.as_tensor(slots, device=x.device)
        pos = self.lengths[slot_ids]
        if int(pos.max()) >= self.cfg.max_len:
            raise ValueError("slot is full")
        q, k, v = self._project(x, pos)
        self.k_cache[slot_ids, pos] = k
        self.v_cache[slot_ids, pos] = v
        self.lengths[slot_ids] = pos + 1

        # only touch the part of the cache that is in use
        used = int(pos.max()) + 1
        keys = self.k_cache[slot_ids, :used].transpose(1, 2)      # (N, H, used, hd)
        values = self.v_cache[slot_ids, :used].transpose(1, 2)
        mask = torch.arange(used, device=x.device)[None, :] <= pos.max()
        out = F.scaled_dot_product_attention(q.unsqueeze(2), keys, values, attn_mask=mask[:, None, None, :])
        return self.o(out.squeeze(2).reshape(len(slots), -1))
