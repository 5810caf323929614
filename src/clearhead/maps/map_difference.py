"""The difference of two maps of one shape, tile by tile."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.kernels import tile_loop
from clearhead.kernels.scores import HeadScores, Scores
from clearhead.kernels.tile_loop import Tile
from clearhead.validation import ByShape


@dataclass(frozen=True, repr=False)
class Difference(ByShape):
    """How far apart two maps are, per query.

    Attributes:
        total_variation: Half the sum of |difference| over the keys and the sink: the weight that
            would have to move, from 0 (the same) to 1 (no key in common).
        largest: The difference that is largest in size, with its sign: the first map minus the
            second.
        keys: The key where it is; -1 if the rows are equal.
    """

    total_variation: Float[Tensor, "batch heads queries"]
    largest: Float[Tensor, "batch heads queries"]
    keys: Int[Tensor, "batch heads queries"]


def difference(one: Scores, other: Scores) -> Difference:
    """The difference of two maps of the same shape, on the same device, whose `lse` is known."""
    assert one.lse is not None
    if other.sum_dtype == torch.float64:  # the tiles of both are computed in one dtype
        one = replace(one, lse=one.lse.double())
    reader = _Differences(one, other)
    tile_loop.stream(one, [reader])
    gap = reader.sum + (one.to_sink().double() - other.to_sink().double()).abs()
    keys = reader.keys.masked_fill(reader.largest == 0, -1)
    return Difference((gap / 2).to(one.dtype), reader.largest.to(one.dtype), keys)


class _Differences:
    """Reads the tiles of one map, and computes those of the other."""

    order = 0

    def __init__(self, one: Scores, other: Scores) -> None:
        shape = one.shape[:3]
        self.other, self.dtype = other, one.sum_dtype
        self.sum = torch.zeros(shape, dtype=self.dtype, device=one.device)
        self.largest = torch.zeros_like(self.sum)
        self.keys = torch.full(shape, -1, device=one.device)
        self._heads: HeadScores | None = None
        self._memory = torch.empty(0, dtype=self.dtype, device=one.device)

    def reach(self, rows: slice, reach: slice) -> slice:
        """A range of keys outside of which both maps hide everything."""
        theirs = self.other.reach(rows)
        return slice(min(reach.start, theirs.start), max(reach.stop, theirs.stop))

    def add(self, tile: Tile) -> None:
        """Compare one tile."""
        if self._heads is None or (self._heads.b, self._heads.heads) != (tile.b, tile.heads):
            self._heads = self.other.of(tile.b, tile.heads, self.dtype, normalised=True)
        if self._memory.numel() < tile.weights.numel():
            self._memory = torch.empty_like(tile.weights).flatten()
        theirs = self._heads.tile(tile.rows, tile.cols, self._memory).exp_()
        gap = torch.sub(tile.weights, theirs, out=theirs)
        size, at = gap.abs().max(-1, keepdim=True)
        where = (tile.b, tile.heads, tile.rows)
        self.sum[where] += gap.abs().sum(-1)
        larger = size[..., 0] > self.largest[where].abs()
        self.largest[where] = torch.where(larger, gap.gather(-1, at)[..., 0], self.largest[where])
        self.keys[where] = torch.where(larger, at[..., 0] + tile.cols.start, self.keys[where])
