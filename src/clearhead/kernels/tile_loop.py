"""The tile loop: iterate over the weights of a map in tiles, in O(tokens) memory, on any device.

    weight_ij = exp(score_ij - lse_i)          lse_i = log (Σ_j exp(score_ij) + exp(sink_i))

`log_sum_exp` computes the row normalisers. `stream` computes every tile of the weights once and
passes it to each reader, which must not keep it: its memory is reused. On CUDA, `on_triton`
computes the most common statistics in one launch instead.
"""

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.kernels import attend_with_lse, blocked
from clearhead.kernels.scores import HIDDEN, Scores, view
from clearhead.masks import as_band

# On the CPU, one head's tile of float32 fits into a core's second-level cache. The tiles of all
# heads are computed together, so that every core has work: one at a time was 1.6x slower on two
# cores.
_ROWS, _COLS = 256, 512
_CELLS = {"cpu": 2**21, "cuda": 2**25}
# What the Triton kernels support.
_TRITON_STATISTICS = ("entropy", "received", "thumbnail")
_TRITON_HEAD_DIMS = (16, 32, 64, 128)


@dataclass
class Tile:
    """One tile of weights and its position in the map.

    The last reader may overwrite the logarithms of the weights. A reader that computes the column
    sums stores them here for later readers.
    """

    b: int
    heads: slice
    rows: slice
    cols: slice
    weights: Float[Tensor, "heads rows cols"]
    logs: Float[Tensor, "heads rows cols"]
    column_sums: Float[Tensor, "heads cols"] | None = None


class TileReader(Protocol):
    """Gathers something from the tiles of a map. Readers of lower `order` come first."""

    order: int

    def reach(self, rows: slice, reach: slice) -> slice:
        """The keys that it reads in these rows. `reach` is where the mask of the map ends."""

    def add(self, tile: Tile) -> None:
        """Read one tile. It may extend beyond what the reader asked for."""


def triton_arguments(scores: Scores) -> dict[str, Any] | None:
    """The arguments of the Triton kernels for these scores, or None if they cannot run."""
    if not _has_triton(scores.device):
        return None
    if scores.biases or scores.sum_dtype == torch.float64 or scores.scale <= 0:
        return None
    q, k = scores.queries, scores.keys
    if q.shape[-1] not in _TRITON_HEAD_DIMS or q.dtype != k.dtype:
        return None
    batch, _, queries, keys = scores.shape
    band = as_band(scores.mask, queries, keys, scores.device)
    if band is not None and band["key_valid"] is not None:
        band["key_valid"] = band["key_valid"].expand(batch, -1)
    return None if band is None else {"scale": scores.scale, "cap": scores.cap, **band}


def _has_triton(device: torch.device) -> bool:
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


def log_sum_exp(
    scores: Scores, rows: slice | None = None, dtype: torch.dtype | None = None
) -> Float[Tensor, "batch heads rows"]:
    """The row normalisers of some rows; -inf for a row that attends to nothing, not to a sink.

    Args:
        scores: The map.
        rows: Which rows; all by default.
        dtype: The dtype to compute and return; that of the weights by default.
    """
    rows = slice(0, scores.shape[2]) if rows is None else rows
    dtype = scores.dtype if dtype is None else dtype
    return scores.with_sink(_over_the_keys(scores, rows, dtype), rows)


def _over_the_keys(
    scores: Scores, rows: slice, dtype: torch.dtype
) -> Float[Tensor, "batch heads rows"]:
    """The log-sum-exp of some rows without the sink."""
    batch, heads, queries, _ = scores.shape
    whole = rows.start == 0 and rows.stop == queries
    if whole and dtype != torch.float64 and (arguments := triton_arguments(scores)) is not None:
        from clearhead.kernels import triton_statistics

        return triton_statistics.log_sum_exp(scores.queries, scores.keys, **arguments)
    plain = not scores.biases and scores.cap is None
    if plain and whole and scores.device.type == "cpu" and queries > _ROWS:
        # PyTorch's fused kernel also multiplies with values, yet is as fast as plain torch without.
        # In half precision its exponential has errors of up to 6e-5, so the inputs are widened.
        q, k = scores.queries.to(dtype), scores.keys.to(dtype)
        known = attend_with_lse(q, k, k, scores.mask, scale=scores.scale)[1]
        if known is not None:
            return known
        return blocked.attend_with_lse(q, k, k, scores.mask, scores.scale)[1]
    # Summed in float64: over many tiles, the rounding errors of float32 would add up.
    shape = (batch, heads, rows.stop - rows.start)
    lse = torch.full(shape, -torch.inf, dtype=torch.float64, device=scores.device)
    plan = _Plan(scores, rows, dtype)
    memory = plan.memory()
    for b, some in plan.heads():
        mine = scores.of(b, some, dtype)
        for block, cols in plan.tiles():
            total = mine.tile(block, cols, memory).logsumexp(-1).double()
            here = slice(block.start - rows.start, block.stop - rows.start)
            lse[b, some, here] = torch.logaddexp(lse[b, some, here], total)
    return lse.masked_fill_(lse < HIDDEN, -torch.inf).to(dtype)


def on_triton(scores: Scores, requests: Mapping[str, Any]) -> dict[str, Tensor]:
    """The requested statistics that Triton supports here, in one launch; often none."""
    arguments = triton_arguments(scores)
    asked = {
        name: requests[name]
        for name in _TRITON_STATISTICS
        if name in requests and not isinstance(requests[name], Tensor)  # query weights
    }
    if arguments is None or not asked:
        return {}
    from clearhead.kernels import triton_statistics

    return triton_statistics.statistics(
        scores.queries, scores.keys, scores.lse, **asked, **arguments
    )


def stream(
    scores: Scores,
    readers: Sequence[TileReader],
    on_progress: Callable[[float], None] | None = None,
) -> None:
    """Pass the tiles of the weights to every reader, once. `scores.lse` must be known.

    Tiles that no reader asks for are not computed.
    """
    batch, heads, queries, _ = scores.shape
    dtype = scores.sum_dtype
    ordered = sorted(readers, key=lambda reader: reader.order)
    plan = _Plan(scores, slice(0, queries), dtype, readers)
    memory, more_memory = plan.memory(), plan.memory()
    done, total, last = 0, batch * heads * queries, None
    for b, some in plan.heads():
        mine = scores.of(b, some, dtype, normalised=True)
        for rows, cols in plan.tiles():
            if on_progress is not None and (b, some, rows) != last:
                if last is not None:
                    on_progress(done / total)
                done += (some.stop - some.start) * (rows.stop - rows.start)
                last = (b, some, rows)
            logs = mine.tile(rows, cols, memory)
            weights = torch.exp(logs, out=view(more_memory, *logs.shape))
            tile = Tile(b, some, rows, cols, weights, logs)
            for reader in ordered:
                reader.add(tile)
    if on_progress is not None:
        on_progress(1.0)


class _Plan:
    """The tiles of a map: sized for the cache, without those that are entirely hidden or unread."""

    def __init__(
        self,
        scores: Scores,
        rows: slice,
        dtype: torch.dtype,
        readers: Sequence[TileReader] = (),
    ) -> None:
        _, heads, _, keys = scores.shape
        cells = _CELLS.get(scores.device.type, 2**22)
        self.scores, self.rows, self.dtype, self.readers = scores, rows, dtype, readers
        on_cpu = scores.device.type == "cpu"
        self.height = min(_ROWS if on_cpu else 1024, max(1, rows.stop - rows.start))
        self.width = max(1, min((_ROWS * _COLS if on_cpu else cells) // self.height, keys))
        self.together = max(1, min(heads, cells // (self.height * self.width)))

    def memory(self) -> Tensor:
        """Memory for the largest tile."""
        size = self.together * self.height * self.width
        return torch.empty(size, dtype=self.dtype, device=self.scores.device)

    def heads(self) -> Iterator[tuple[int, slice]]:
        """(sequence, some of its heads)."""
        batch, heads, _, _ = self.scores.shape
        for b in range(batch):
            for head in range(0, heads, self.together):
                yield b, slice(head, min(head + self.together, heads))

    def tiles(self) -> Iterator[tuple[slice, slice]]:
        """(rows, keys), rows outermost."""
        for row in range(self.rows.start, self.rows.stop, self.height):
            block = slice(row, min(row + self.height, self.rows.stop))
            reach = self.scores.reach(block)
            parts = [reader.reach(block, reach) for reader in self.readers] or [reach]
            parts = [part for part in parts if part.start < part.stop]
            stop = max((part.stop for part in parts), default=0)
            for col in range(min((part.start for part in parts), default=0), stop, self.width):
                yield block, slice(col, min(col + self.width, stop))
