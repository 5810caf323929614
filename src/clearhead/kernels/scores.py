"""Scores: the scores of a map, any tile of them when it is asked for, never built as a whole."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.masks import Mask, as_mask

# The score of a hidden cell. Finite, so that weight 0 times its logarithm is 0 and not NaN.
HIDDEN = -1e30


@dataclass(frozen=True)
class Scores:
    """The scores of a map, never built as a whole.

    Attributes:
        q: The queries, (batch, heads, queries, head_dim).
        k: The keys, (batch, kv_heads, keys, head_dim).
        mask: Who may attend to whom; None = everybody to everybody.
        bias: What the model adds to the scores, broadcastable to (batch, heads, queries, keys).
        scale: What q · k is multiplied with.
        wide: Whether to compute in float64 whatever the dtype of q. A weight is the exponential of
            a difference, so scores and log-sum-exp in the thousands leave float32 no decimals.
    """

    q: Float[Tensor, "batch heads queries head_dim"]
    k: Float[Tensor, "batch kv_heads keys head_dim"]
    mask: Mask | None
    bias: Float[Tensor, "#batch #heads #queries #keys"] | None
    scale: float
    wide: bool = False

    def __post_init__(self) -> None:
        if self.mask is not None:
            as_mask(self.mask).check(*self.shape)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys)."""
        batch, heads, queries, _ = self.q.shape
        return batch, heads, queries, self.k.shape[2]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of sums: float32, or float64 for float64 input and for wide scores."""
        return torch.float64 if self.wide or self.q.dtype == torch.float64 else torch.float32

    def reach(self, rows: slice) -> slice:
        """The keys outside which these rows certainly see nothing."""
        _, _, queries, keys = self.shape
        return slice(0, keys) if self.mask is None else self.mask.reach(rows, queries, keys)

    def of(self, b: int, heads: slice, less: Tensor | None = None) -> "HeadScores":
        """The scores of some heads of one sequence, minus `less` (heads, queries)."""
        shared = self.q.shape[1] // self.k.shape[1]
        q = self.q[b, heads].to(self.dtype) * self.scale
        which = torch.arange(heads.start, heads.stop, device=self.k.device) // shared
        k = self.k[b, heads if shared == 1 else which].to(self.dtype)
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
        """One tile, written into memory that is used again; very negative where hidden."""
        _, _, queries, keys = self.scores.shape
        tile = view(out, self.q.shape[0], rows.stop - rows.start, cols.stop - cols.start)
        torch.bmm(self.q[:, rows], self.k[:, :, cols], out=tile)
        if self.scores.bias is not None:
            bias = part_of(self.scores.bias, self.b, self.heads, rows, cols)
            tile += bias.clamp_min(HIDDEN)
        if self.scores.mask is not None:
            visible = self.scores.mask.tile(rows, cols, queries, keys, self.q.device)
            if visible is not None:
                whole = slice(None)
                tile.masked_fill_(~part_of(visible, self.b, self.heads, whole, whole), HIDDEN)
        return tile


def view(memory: Tensor, *shape: int) -> Tensor:
    """The first part of `memory`, in this shape. New memory for every tile costs page faults."""
    return memory[: math.prod(shape)].view(shape)


def part_of(x: Tensor, b: int, heads: slice, rows: slice, cols: slice) -> Tensor:
    """x[b, heads, rows, cols], where an axis of size 1 stands for all."""
    return x[
        b if x.shape[0] > 1 else 0,
        heads if x.shape[1] > 1 else slice(None),
        rows if x.shape[2] > 1 else slice(None),
        cols if x.shape[3] > 1 else slice(None),
    ]
