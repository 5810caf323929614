"""Scores: the parts of an attention map, and its scores for any tile; never built as a whole.

    score_ij = cap(q_i · k_j scale) + bias_ij     -inf where the mask hides key j from query i
    cap(x) = cap tanh(x / cap)                    as in Gemma 2; most models have none
    weight_ij = exp(score_ij - lse_i)             lse_i = log (Σ_j exp(score_ij) + exp(sink_i))

A sink is one more logit in the softmax that belongs to no key, as in gpt-oss; few models have one.
With it, the weights of a row add up to less than one.
"""

import math
from collections.abc import Callable, Iterator
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
        biases: Added to the capped scores, one after the other; each broadcastable to (batch,
            heads, queries, keys). Not added up beforehand, which could take far more memory.
        scale: The factor on q · k.
        cap: The soft cap of the scores, or None.
        sink: The logit of each row that belongs to no key, or None.
        lse: The log-sum-exp of each row, if it is known. In float64 if float32 is too coarse.
        saturated: The rows whose bias swallows their scores, see `resolve_saturated`.
    """

    queries: Float[Tensor, "batch heads queries head_dim"]
    keys: Float[Tensor, "batch kv_heads keys head_dim"]
    mask: Mask | None
    biases: tuple[Float[Tensor, "#batch #heads #queries #keys"], ...]
    scale: float
    cap: float | None = None
    sink: Float[Tensor, "batch heads queries"] | None = None
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
        parts = (self.queries, self.keys, *self.biases, self.sink)
        return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in parts)

    def capped(self, x: Tensor) -> Tensor:
        """The products x = q · k scale after the soft cap."""
        return x if self.cap is None else self.cap * torch.tanh(x / self.cap)

    def with_sink(self, lse: Tensor, rows: slice) -> Float[Tensor, "batch heads rows"]:
        """The log-sum-exp of some rows over the keys, with the sink's logit if there is one."""
        if self.sink is None:
            return lse
        return torch.logaddexp(lse, self.sink[:, :, rows].to(lse.dtype))

    def to_sink(self) -> Float[Tensor, "batch heads queries"]:
        """The weight of each row that goes to the sink. `lse` must be known."""
        assert self.lse is not None
        if self.sink is None:
            return torch.zeros_like(self.lse, dtype=self.dtype)
        share = (self.sink.double() - self.lse.double()).exp()
        return share.masked_fill(self.lse.isneginf(), 0.0).to(self.dtype)

    def apply(self, function: Callable[[Tensor], Tensor]) -> "Scores":
        """The same scores with a function applied to every tensor, except those of the mask."""

        def of(x: Tensor | None) -> Tensor | None:
            return None if x is None else function(x)

        return replace(
            self,
            queries=function(self.queries),
            keys=function(self.keys),
            biases=tuple(map(function, self.biases)),
            sink=of(self.sink),
            lse=of(self.lse),
            saturated=of(self.saturated),
        )

    def resolve_saturated(self) -> "Scores":
        """Make the rows uniform whose bias is so low that it swallows their scores.

        Some models hide a key with the most negative number of a dtype. If they hide a whole row
        that way, rounding removes its scores, and softmax gives all its keys the same weight, or
        all weight to the sink if there is one. This reads values, so it synchronises with the
        device.
        """
        if not self.biases or self.device.type == "meta":
            return self
        bias, *others = self.biases
        highest = bias.amax(-1, keepdim=True)
        saturated = highest.isfinite() & (highest < HIDDEN)
        if not saturated.any():
            return self
        same = torch.zeros_like(bias).masked_fill(bias < highest, -torch.inf)
        if self.sink is not None:
            same = torch.full_like(bias, -torch.inf)
        return replace(
            self,
            queries=self.queries.masked_fill(saturated, 0.0),
            biases=(torch.where(saturated, same, bias), *others),
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
        return self.device.type != "meta" and (bool(tensors) or bool(self.biases))

    def visible(self, b: int, head: int, rows: slice, cols: slice) -> Tensor | None:
        """Which keys of a tile its queries may attend to; None means all of them."""
        _, _, queries, keys = self.shape
        one, found = slice(head, head + 1), None
        for bias in self.biases:
            above = part_of(bias, b, one, rows, cols)[0] > HIDDEN
            found = above if found is None else found & above
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
            for bias in self.biases:
                visible = visible & visible_in(_rows_of(bias, rows))
            if self.saturated is not None:
                visible = visible & ~_rows_of(self.saturated, rows)
            if self.mask is not None:
                tile = self.mask.tile(rows, slice(0, keys), queries, keys, self.device)
                visible = visible if tile is None else visible & tile
            yield rows, visible

    def of(
        self, b: int, heads: slice, dtype: torch.dtype, *, normalised: bool = False
    ) -> "HeadScores":
        """The scores of some heads of one sequence; the logarithms of the weights if `normalised`.

        `lse` must then be known. A row without a visible key or a sink has lse -inf. Its scores are
        left as they are, and its weights become 0.
        """
        q = self.queries[b, heads].to(dtype) * (self.scale / (self.cap or 1.0))
        which = torch.arange(heads.start, heads.stop, device=self.device) // self.group
        k = self.keys[b, heads if self.group == 1 else which].to(dtype)
        minus = None
        if normalised:
            assert self.lse is not None
            lse = self.lse[b, heads, :, None].to(dtype)
            minus = -lse.masked_fill(lse.isneginf(), 0.0)
            if self.cap is None:
                # One more column in the product is cheaper than a pass over a tile.
                q = torch.cat([q, minus], dim=2)
                k = torch.cat([k, k.new_ones(*k.shape[:2], 1)], dim=2)
        return HeadScores(self, b, heads, q, k.transpose(1, 2), minus)


@dataclass(frozen=True)
class HeadScores:
    """Scores of some heads of one sequence, ready to be multiplied tile by tile.

    The products of q and k are the scores plus `minus`; with a cap, they are its argument.
    """

    scores: Scores
    b: int
    heads: slice
    q: Float[Tensor, "heads queries width"]
    k: Float[Tensor, "heads width keys"]
    minus: Float[Tensor, "heads queries 1"] | None

    def tile(self, rows: slice, cols: slice, out: Tensor) -> Float[Tensor, "heads rows cols"]:
        """One tile, written into reused memory; `HIDDEN_SCORE` where hidden."""
        (_, _, queries, keys), cap = self.scores.shape, self.scores.cap
        tile = view(out, self.q.shape[0], rows.stop - rows.start, cols.stop - cols.start)
        torch.bmm(self.q[:, rows], self.k[:, :, cols], out=tile)
        if cap is not None:
            minus = tile.new_zeros(()) if self.minus is None else self.minus[:, rows]
            torch.add(minus, tile.tanh_(), alpha=cap, out=tile)
        for bias in self.scores.biases:
            part = part_of(bias, self.b, self.heads, rows, cols).to(tile.dtype)
            tile += part.clamp_min(HIDDEN_SCORE)
        if self.scores.mask is not None:
            visible = self.scores.mask.tile(rows, cols, queries, keys, self.q.device)
            if visible is not None:
                hidden = ~part_of(visible, self.b, self.heads, slice(None), slice(None))
                tile.masked_fill_(hidden, HIDDEN_SCORE)
        return tile


def view(memory: Tensor, *shape: int) -> Tensor:
    """The first part of `memory` in this shape. New memory for every tile costs page faults."""
    return memory[: math.prod(shape)].view(shape)


def visible_in(bias: Tensor) -> Bool[Tensor, "#batch #heads #queries #keys"]:
    """Where a bias hides nothing."""
    # The most negative number of a small dtype lies above HIDDEN, and also hides.
    return bias > max(HIDDEN, torch.finfo(bias.dtype).min)


def _rows_of(x: Tensor, rows: slice) -> Tensor:
    """x[:, :, rows], where an axis of size 1 is broadcast."""
    return x[:, :, rows] if x.shape[2] > 1 else x


def part_of(x: Tensor, b: int, heads: slice, rows: slice, cols: slice) -> Tensor:
    """x[b, heads, rows, cols], where an axis of size 1 is broadcast."""
    return x[
        b if x.shape[0] > 1 else 0,
        heads if x.shape[1] > 1 else slice(None),
        rows if x.shape[2] > 1 else slice(None),
        cols if x.shape[3] > 1 else slice(None),
    ]
