"""What a map of attention weights says, computed tile by tile: memory O(tokens), any device.

    weight_ij = exp(q_i · k_j scale + bias_ij - lse_i)          lse_i = log Σ_j exp(score_ij)

`Scores` gives any tile of the scores, `log_sum_exp` the row normalisers, and `stream` walks over
all tiles once and shows each to every statistic that was asked for. A statistic takes what it needs
from a tile and forgets the tile.
"""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.kernels import attend_with_lse, blocked
from clearhead.kernels.scores import HIDDEN, Scores, view
from clearhead.masks import as_band

# One head's tile of float32 stays in a core's second-level cache on the CPU. The tiles of all heads
# are computed together, so that every core has some: one at a time, two cores were 1.6x slower.
_ROWS, _COLS = 256, 512
_CELLS = {"cpu": 2**21, "cuda": 2**25}


@dataclass
class Tile:
    """One tile of weights, and where it stands. `logs` may be overwritten by the last reader."""

    b: int
    heads: slice
    rows: slice
    cols: slice
    weights: Float[Tensor, "heads rows cols"]
    logs: Float[Tensor, "heads rows cols"]  # log of the weights
    column_sums: Float[Tensor, "heads cols"] | None = None  # of the weights, if somebody has them


def triton_arguments(scores: Scores) -> dict[str, Any] | None:
    """What our Triton kernel takes for these scores, or None where it cannot run."""
    if not _has_triton(scores.q.device):
        return None
    if scores.bias is not None or scores.wide or scores.scale <= 0:
        return None
    if scores.q.shape[-1] not in (16, 32, 64, 128) or scores.q.dtype == torch.float64:
        return None
    batch, _, queries, keys = scores.shape
    band = as_band(scores.mask, queries, keys, scores.q.device)
    if band is not None and band["key_valid"] is not None:
        band["key_valid"] = band["key_valid"].expand(batch, -1)  # one row may serve all
    return None if band is None else {"scale": scores.scale, **band}


def _has_triton(device: torch.device) -> bool:
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


def log_sum_exp(scores: Scores, rows: slice | None = None) -> Float[Tensor, "batch heads rows"]:
    """The row normalisers, for the rows asked; -inf for a row that sees nothing."""
    batch, heads, queries, _ = scores.shape
    rows = slice(0, queries) if rows is None else rows
    whole = rows.start == 0 and rows.stop == queries
    if whole and (arguments := triton_arguments(scores)) is not None:
        from clearhead.kernels import triton_statistics

        return triton_statistics.log_sum_exp(scores.q, scores.k, **arguments)
    if scores.bias is None and whole and scores.q.device.type == "cpu" and queries > _ROWS:
        # PyTorch's fused kernel is as fast with its second product as plain torch without. Half
        # precision is widened first: the kernel's exponential is then off by up to 6e-5.
        q, k = scores.q.to(scores.dtype), scores.k.to(scores.dtype)
        known = attend_with_lse(q, k, k, scores.mask, scale=scores.scale)[1]
        if known is not None:
            return known
        return blocked.attend_with_lse(q, k, k, scores.mask, scores.scale)[1]
    # Added up in float64: with many tiles the roundings of float32 would add up too.
    shape = (batch, heads, rows.stop - rows.start)
    lse = torch.full(shape, -torch.inf, dtype=torch.float64, device=scores.q.device)
    plan = _Plan(scores, rows)
    memory = plan.memory()
    for b, some in plan.heads():
        mine = scores.of(b, some)
        for block, cols in plan.tiles():
            total = mine.tile(block, cols, memory).logsumexp(-1).double()
            here = slice(block.start - rows.start, block.stop - rows.start)
            lse[b, some, here] = torch.logaddexp(lse[b, some, here], total)
    return lse.masked_fill_(lse < HIDDEN / 2, -torch.inf).to(scores.dtype)


def stream_on_triton(
    scores: Scores,
    lse: Float[Tensor, "batch heads queries"],
    *,
    entropy: bool,
    received: bool,
    thumbnail: tuple[int, int] | None,
) -> dict[str, Tensor]:
    """These three in one launch, where Triton can; else nothing, and `stream` does them."""
    arguments = triton_arguments(scores)
    if arguments is None or not (entropy or received or thumbnail):
        return {}
    from clearhead.kernels import triton_statistics

    return triton_statistics.statistics(
        scores.q,
        scores.k,
        lse,
        entropy=entropy,
        received=received,
        thumbnail=thumbnail,
        **arguments,
    )


def stream(
    scores: Scores,
    lse: Float[Tensor, "batch heads queries"],
    statistics: "Sequence[Statistic]",
    on_progress: Callable[[float], None] | None = None,
) -> None:
    """Show every tile of the weights to every statistic, once."""
    batch, heads, queries, _ = scores.shape
    # A row that sees nothing has lse -inf; with 0 instead its weights come out as 0.
    lse = lse.to(scores.dtype).masked_fill(lse.isneginf(), 0.0)
    # Who writes over the logs comes last; whose column sums others can use, first.
    ordered = sorted(statistics, key=lambda s: (s.rewrites_logs, not isinstance(s, Thumbnail)))
    plan = _Plan(scores, slice(0, queries))
    memory, more_memory = plan.memory(), plan.memory()
    done, total, last = 0, batch * heads * queries, None
    for b, some in plan.heads():
        mine = scores.of(b, some, lse[b, some])
        for rows, cols in plan.tiles():
            if on_progress is not None and (b, some, rows) != last:
                if last is not None:
                    on_progress(done / total)
                done += (some.stop - some.start) * (rows.stop - rows.start)
                last = (b, some, rows)
            logs = mine.tile(rows, cols, memory)
            weights = torch.exp(logs, out=view(more_memory, *logs.shape))
            tile = Tile(b, some, rows, cols, weights, logs)
            for statistic in ordered:
                statistic.add(tile)
    if on_progress is not None:
        on_progress(1.0)


class _Plan:
    """Which tiles a map is walked in: sized for the cache, none that is wholly hidden."""

    def __init__(self, scores: Scores, rows: slice) -> None:
        _, heads, _, keys = scores.shape
        cells = _CELLS.get(scores.q.device.type, 2**22)
        self.scores, self.rows = scores, rows
        on_cpu = scores.q.device.type == "cpu"
        self.height = min(_ROWS if on_cpu else 1024, max(1, rows.stop - rows.start))
        self.width = max(1, min((_ROWS * _COLS if on_cpu else cells) // self.height, keys))
        self.together = max(1, min(heads, cells // (self.height * self.width)))

    def memory(self) -> Tensor:
        """Room for the largest tile."""
        size = self.together * self.height * self.width
        return torch.empty(size, dtype=self.scores.dtype, device=self.scores.q.device)

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
            for col in range(reach.start, reach.stop, self.width):
                yield block, slice(col, min(col + self.width, reach.stop))


class Statistic:
    """Something that is gathered from the tiles of a map."""

    rewrites_logs = False

    def add(self, tile: Tile) -> None:
        """Take from one tile what is needed."""
        raise NotImplementedError

    def result(self) -> Tensor:
        """What all tiles together say."""
        raise NotImplementedError


class _Zeros(Statistic):
    """A statistic that adds up in a tensor of zeros."""

    def __init__(self, scores: Scores, *shape: int) -> None:
        batch, heads, _, _ = scores.shape
        self.scores = scores
        self.sum = torch.zeros(batch, heads, *shape, dtype=scores.dtype, device=scores.q.device)

    def result(self) -> Tensor:
        """The sums."""
        return self.sum


class Entropy(_Zeros):
    """-Σ_j weight log weight, a row: 0 when a query looks at one key, log(keys) at most."""

    rewrites_logs = True

    def __init__(self, scores: Scores) -> None:
        super().__init__(scores, scores.shape[2])

    def add(self, tile: Tile) -> None:
        """Take from one tile what is needed."""
        self.sum[tile.b, tile.heads, tile.rows] -= tile.logs.mul_(tile.weights).sum(-1)


class Received(_Zeros):
    """Σ_i weight, a column: how much all queries together look at a key."""

    def __init__(self, scores: Scores) -> None:
        super().__init__(scores, scores.shape[3])

    def add(self, tile: Tile) -> None:
        """Take from one tile what is needed."""
        sums = tile.weights.sum(1) if tile.column_sums is None else tile.column_sums
        self.sum[tile.b, tile.heads, tile.cols] += sums


class Thumbnail(_Zeros):
    """The sum of the weights in each cell of a coarse grid laid over the whole map."""

    def __init__(self, scores: Scores, rows: int, cols: int) -> None:
        super().__init__(scores, rows, cols)
        self.rows, self.cols = rows, cols
        self._known: dict[tuple[int, int, int, int], tuple[int, Tensor]] = {}

    def add(self, tile: Tile) -> None:
        """Take from one tile what is needed."""
        _, _, queries, keys = self.scores.shape
        top, by_row = self._cells(tile.rows, queries, self.rows)
        left, by_col = self._cells(tile.cols, keys, self.cols)
        sums = by_row @ tile.weights
        tile.column_sums = sums.sum(1)
        sums = sums @ by_col.T
        here = self.sum[tile.b, tile.heads]
        here[:, top : top + sums.shape[1], left : left + sums.shape[2]] += sums

    def _cells(self, part: slice, size: int, cells: int) -> tuple[int, Tensor]:
        """The first cell of the part, and a matrix (cells, part) with a 1 where it belongs."""
        name = (part.start, part.stop, size, cells)
        if name not in self._known:
            at = torch.arange(part.start, part.stop, device=self.sum.device)
            first = part.start * cells // size
            count = (part.stop - 1) * cells // size - first + 1
            one_hot = torch.zeros(count, len(at), dtype=self.sum.dtype, device=self.sum.device)
            one_hot[at * cells // size - first, at - part.start] = 1
            self._known[name] = first, one_hot
        return self._known[name]


class Top(Statistic):
    """The k largest weights of each row, and the keys they belong to."""

    def __init__(self, scores: Scores, k: int) -> None:
        batch, heads, queries, _ = scores.shape
        self.k = k
        shape, device = (batch, heads, queries, k), scores.q.device
        self.weights = torch.full(shape, -1.0, dtype=scores.dtype, device=device)
        self.keys = torch.full(shape, -1, device=device)

    def add(self, tile: Tile) -> None:
        """Take from one tile what is needed."""
        where = (tile.b, tile.heads, tile.rows)
        best, index = tile.weights.topk(min(self.k, tile.weights.shape[-1]), dim=-1)
        both = torch.cat([self.weights[where], best], -1)
        keys = torch.cat([self.keys[where], index + tile.cols.start], -1)
        best, index = both.topk(self.k, dim=-1)
        self.weights[where] = best
        self.keys[where] = keys.gather(-1, index)

    def result(self) -> Tensor:
        """The weights; `keys` has the indices. -1 where a row was shown fewer than k keys."""
        empty = self.weights <= 0
        self.keys.masked_fill_(empty, -1)
        return self.weights.masked_fill_(empty, 0.0)


class Distance(_Zeros):
    """How far the weights look: the total weight at each distance |query position - key|.

    Args:
        scores: The map.
        starts: The position of each sequence's first query among the keys.
    """

    def __init__(self, scores: Scores, starts: Sequence[int]) -> None:
        _, _, queries, keys = scores.shape
        # From the first query to the last key, or from the last query to the first key.
        farthest = max((max(keys - 1 - s, s + queries - 1) for s in starts), default=0)
        super().__init__(scores, farthest + 1)
        self.starts = starts
        self.mean = torch.zeros(*scores.shape[:3], dtype=scores.dtype, device=scores.q.device)

    def add(self, tile: Tile) -> None:
        """Take from one tile what is needed."""
        heads, rows, cols = tile.weights.shape
        # Shear the tile so that each of its diagonals becomes a column, then add up the columns.
        sheared = tile.weights.new_zeros(heads, rows, rows + cols)
        sheared[:, :, :cols] = tile.weights.flip(1)
        sheared = sheared.flatten(1)[:, : rows * (rows + cols - 1)].view(heads, rows, -1)
        first = tile.rows.start + self.starts[tile.b]  # the position of the first query
        diagonal = torch.arange(rows + cols - 1, device=self.sum.device) - (rows - 1)
        distance = (diagonal + tile.cols.start - first).abs()
        self.sum[tile.b, tile.heads].index_add_(1, distance, sheared.sum(1))
        position = torch.arange(rows, device=self.sum.device)[:, None] + first
        key = torch.arange(tile.cols.start, tile.cols.stop, device=self.sum.device)
        far = (position - key).abs().to(self.sum.dtype)
        self.mean[tile.b, tile.heads, tile.rows] += (tile.weights * far).sum(-1)


class Matching(_Zeros):
    """The weight of each row on the keys before it whose label equals the row's label.

    Args:
        scores: The map.
        rows: A label for each query.
        cols: A label for each key.
        starts: The position of each sequence's first query among the keys.
        ahead: How far past "strictly before" a key may stand.
    """

    def __init__(
        self,
        scores: Scores,
        rows: Int[Tensor, "batch queries"],
        cols: Int[Tensor, "batch keys"],
        starts: Sequence[int],
        ahead: int = 0,
    ) -> None:
        super().__init__(scores, scores.shape[2])
        self.rows, self.cols, self.starts, self.ahead = rows, cols, starts, ahead

    def add(self, tile: Tile) -> None:
        """Take from one tile what is needed."""
        row, col = self.rows[tile.b, tile.rows], self.cols[tile.b, tile.cols]
        position = torch.arange(tile.rows.start, tile.rows.stop, device=row.device)
        position = position[:, None] + self.starts[tile.b]
        key = torch.arange(tile.cols.start, tile.cols.stop, device=row.device)
        same = (row[:, None] == col) & (key < position + self.ahead)
        self.sum[tile.b, tile.heads, tile.rows] += (tile.weights * same).sum(-1)
