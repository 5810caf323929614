"""Scores: the parts of an attention map, and its scores for any tile; never built as a whole.

score_ij = q_i · k_j scale + bias_ij          -inf where the mask hides key j from query i
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead.masks import Mask, as_mask

# A bias or a score below this hides the key. Models hide keys with -inf or with the most negative
# number of their dtype; no real score comes near either.
HIDDEN = -1e20
# The score of a hidden cell in a tile. Finite, so that weight 0 times its logarithm is 0, not NaN.
HIDDEN_SCORE = -1e30

_STRIP = 2**24  # cells of the mask that are read together


@dataclass(frozen=True)
class Scores:
    """The parts of an attention map, from which any of its scores can be computed.

    Attributes:
        queries: (batch, heads, queries, head_dim).
        keys: (batch, kv_heads, keys, head_dim).
        mask: Who may attend to whom; None lets every query attend to every key.
        bias: Added to the scores; broadcastable to (batch, heads, queries, keys).
        scale: The factor on q · k.
        lse: The log-sum-exp of each row, if it is known. In float64 if float32 is too coarse.
        saturated: The rows whose bias swallows their scores, see `resolve_saturated`.
    """

    queries: Float[Tensor, "batch heads queries head_dim"]
    keys: Float[Tensor, "batch kv_heads keys head_dim"]
    mask: Mask | None
    bias: Float[Tensor, "#batch #heads #queries #keys"] | None
    scale: float
    lse: Float[Tensor, "batch heads queries"] | None = None
    saturated: Bool[Tensor, "#batch #heads #queries 1"] | None = None

    def __post_init__(self) -> None:
        if self.mask is not None:
            as_mask(self.mask).check(*self.shape)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys)."""
        batch, heads, queries, _ = self.queries.shape
        return batch, heads, queries, self.keys.shape[2]

    @property
    def device(self) -> torch.device:
        """The device of queries and keys."""
        return self.queries.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights: float32, or float64 for float64 queries."""
        return torch.float64 if self.queries.dtype == torch.float64 else torch.float32

    @property
    def sum_dtype(self) -> torch.dtype:
        """The dtype of sums over weights: `dtype`, or float64 where the log-sum-exp needs it."""
        wide = self.lse is not None and self.lse.dtype == torch.float64
        return torch.float64 if wide else self.dtype

    @property
    def group(self) -> int:
        """How many query heads share one head of keys."""
        return self.queries.shape[1] // self.keys.shape[1]

    @property
    def requires_grad(self) -> bool:
        """Whether autograd records what is computed from these scores."""
        parts = (self.queries, self.keys, self.bias)
        return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in parts)

    def resolve_saturated(self) -> "Scores":
        """Make the rows uniform whose bias is so low that it swallows their scores.

        Some models hide a key with the most negative number of a dtype. If they hide a whole row
        that way, rounding removes its scores, and softmax gives all its keys the same weight. This
        reads values, so it synchronises with the device.
        """
        if self.bias is None or self.device.type == "meta":
            return self
        highest = self.bias.amax(-1, keepdim=True)
        saturated = highest.isfinite() & (highest < HIDDEN)
        if not saturated.any():
            return self
        uniform = torch.zeros_like(self.bias).masked_fill(self.bias < highest, -torch.inf)
        return replace(
            self,
            queries=self.queries.masked_fill(saturated, 0.0),
            bias=torch.where(saturated, uniform, self.bias),
            lse=None,
            saturated=saturated,
        )

    def reach(self, rows: slice) -> slice:
        """A range of keys outside of which the mask hides everything from these rows."""
        _, _, queries, keys = self.shape
        return slice(0, keys) if self.mask is None else self.mask.reach(rows, queries, keys)

    def can_hide(self) -> bool:
        """Whether a bias or a mask may hide a key from all queries, which a band never does."""
        tensors: list[Tensor] = []
        if self.mask is not None:
            self.mask.encode(tensors)
        return self.device.type != "meta" and (bool(tensors) or self.bias is not None)

    def visible(self, b: int, head: int, rows: slice, cols: slice) -> Tensor | None:
        """Which keys of a tile its queries may attend to; None means all of them."""
        _, _, queries, keys = self.shape
        one, found = slice(head, head + 1), None
        if self.bias is not None:
            found = part_of(self.bias, b, one, rows, cols)[0] > HIDDEN
        if self.mask is not None:
            tile = self.mask.tile(rows, cols, queries, keys, self.device)
            if tile is not None:
                tile = part_of(tile, b, one, slice(None), slice(None))[0]
                found = tile if found is None else found & tile
        return found

    def visible_strips(self) -> Iterator[tuple[slice, Bool[Tensor, "#batch #heads #rows #keys"]]]:
        """Strips of rows, from the last to the first, and the keys they may attend to.

        A saturated row counts as one that may attend to nothing.
        """
        batch, _, queries, keys = self.shape
        step = max(1, _STRIP // max(1, keys * batch))
        for stop in range(queries, 0, -step):
            rows = slice(max(0, stop - step), stop)
            visible = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=self.device)
            if self.bias is not None:
                here = rows if self.bias.shape[2] > 1 else slice(None)
                # The most negative number of a small dtype lies above HIDDEN, and also hides.
                lowest = max(HIDDEN, torch.finfo(self.bias.dtype).min)
                visible = self.bias[:, :, here] > lowest
                if self.saturated is not None:
                    visible = visible & ~self.saturated[:, :, here]
            if self.mask is not None:
                tile = self.mask.tile(rows, slice(0, keys), queries, keys, self.device)
                visible = visible if tile is None else visible & tile
            yield rows, visible

    def of(
        self, b: int, heads: slice, dtype: torch.dtype, less: Tensor | None = None
    ) -> "HeadScores":
        """The scores of some heads of one sequence, minus `less` (heads, queries)."""
        q = self.queries[b, heads].to(dtype) * self.scale
        which = torch.arange(heads.start, heads.stop, device=self.device) // self.group
        k = self.keys[b, heads if self.group == 1 else which].to(dtype)
        if less is not None:  # one more column in the product is cheaper than a pass over a tile
            q = torch.cat([q, -less[..., None]], dim=2)
            k = torch.cat([k, k.new_ones(*k.shape[:2], 1)], dim=2)
        return HeadScores(self, b, heads, q, k.transpose(1, 2))


@dataclass(frozen=True)
class HeadScores:
    """Scores of some heads of one sequence, ready to be multiplied tile by tile."""

    scores: Scores
    b: int
    heads: slice
    q: Float[Tensor, "heads queries width"]
    k: Float[Tensor, "heads width keys"]

    def tile(self, rows: slice, cols: slice, out: Tensor) -> Float[Tensor, "heads rows cols"]:
        """One tile, written into reused memory; `HIDDEN_SCORE` where hidden."""
        _, _, queries, keys = self.scores.shape
        tile = view(out, self.q.shape[0], rows.stop - rows.start, cols.stop - cols.start)
        torch.bmm(self.q[:, rows], self.k[:, :, cols], out=tile)
        if self.scores.bias is not None:
            bias = part_of(self.scores.bias, self.b, self.heads, rows, cols)
            tile += bias.clamp_min(HIDDEN_SCORE)
        if self.scores.mask is not None:
            visible = self.scores.mask.tile(rows, cols, queries, keys, self.q.device)
            if visible is not None:
                hidden = ~part_of(visible, self.b, self.heads, slice(None), slice(None))
                tile.masked_fill_(hidden, HIDDEN_SCORE)
        return tile


def view(memory: Tensor, *shape: int) -> Tensor:
    """The first part of `memory` in this shape. New memory for every tile costs page faults."""
    return memory[: math.prod(shape)].view(shape)


def part_of(x: Tensor, b: int, heads: slice, rows: slice, cols: slice) -> Tensor:
    """x[b, heads, rows, cols], where an axis of size 1 is broadcast."""
    return x[
        b if x.shape[0] > 1 else 0,
        heads if x.shape[1] > 1 else slice(None),
        rows if x.shape[2] > 1 else slice(None),
        cols if x.shape[3] > 1 else slice(None),
    ]
