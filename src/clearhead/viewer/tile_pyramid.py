"""Pyramid: one head of a map at every zoom level, from one small picture to single weights.

A cell of any grid is a share of attention: the sum of its weights divided by the number of its
queries. A row of cells thus adds up to 1 at every level, and a first token that receives much
attention stays bright.

    overview    the whole map in one pass (`AttentionMap.cells`): 2,048 or 4,096 cells per side
    coarser     each cell combines two by two cells of the next finer grid
    finer       twice as many cells per side, computed on demand; the finest grid is exact
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from clearhead.maps import AttentionMap
from clearhead.maps.grid_cells import heights, shares

TILE = 256  # cells per side

_OVERVIEW = 2048
_OVERVIEW_OF_LONG = 4096
_LONG = 2**15  # longer maps have the finer overview, computed in steps that can be cancelled
_MOST_TOKENS = 2048  # tokens per side of a tile that is computed on demand


@dataclass(frozen=True)
class Grid:
    """One zoom level of a map.

    Attributes:
        rows: Cells from top to bottom.
        cols: Cells from left to right.
        row_scale: Cells per number of queries. Not always whole: the last cell may be cut off.
        col_scale: Cells per number of keys.
        halvings: How often the overview was halved; negative if finer than the overview.
    """

    rows: int
    cols: int
    row_scale: float
    col_scale: float
    halvings: int

    def tiles(self) -> tuple[int, int]:
        """The number of tiles from top to bottom and from left to right."""
        return math.ceil(self.rows / TILE), math.ceil(self.cols / TILE)


def grids(queries: int, keys: int) -> list[Grid]:
    """All zoom levels, coarsest first, without those whose tiles would cover too many tokens."""
    longest = max(queries, keys)
    most = _OVERVIEW if longest <= _LONG else _OVERVIEW_OF_LONG
    base = tuple(max(1, min(size, round(size * most / longest))) for size in (queries, keys))
    found = []
    for halvings in reversed(range(((max(base) - 1) // TILE).bit_length() + 1)):
        high, wide = (size / 2**halvings for size in base)
        found.append(Grid(math.ceil(high), math.ceil(wide), high, wide, halvings))
    doublings = 0
    while (found[-1].rows, found[-1].cols) != (queries, keys):
        doublings += 1
        rows, cols = min(queries, base[0] * 2**doublings), min(keys, base[1] * 2**doublings)
        if max(queries / rows, keys / cols) * TILE <= _MOST_TOKENS:
            found.append(Grid(rows, cols, rows, cols, -doublings))
        elif (rows, cols) == (queries, keys):
            break
    return found


class Pyramid:
    """One head: its overview, everything coarser, and finer tiles on demand.

    Args:
        one: A map of one sequence and one head.
        on_progress: Called repeatedly with the share that is done. May raise to cancel.
    """

    def __init__(
        self, one: AttentionMap, on_progress: Callable[[float], None] | None = None
    ) -> None:
        _, _, queries, keys = one.shape
        self.map = one
        self.grids = grids(queries, keys)
        base = next(grid for grid in self.grids if grid.halvings == 0)
        counts = heights(queries, base.rows).float()
        with torch.no_grad():
            stoppable = max(queries, keys) > _LONG and one.device.type == "cpu"
            one.normalise(on_progress if stoppable else None)
            cells = one.cells((base.rows, base.cols), on_progress=on_progress)[0].float().cpu()
        self._levels = [cells]
        while max(cells.shape) > TILE:
            cells, counts = _halved(cells, counts)
            self._levels.append(cells)

    @property
    def nbytes(self) -> int:
        """The memory of its cells. The map itself is shared."""
        return sum(level.nbytes for level in self._levels) + self.map.lse.nbytes

    def tile(self, level: int, row: int, col: int) -> NDArray[np.float32]:
        """The cells of one tile, NaN if hidden. Tiles at the edges are smaller."""
        grid = self.grids[level]
        rows = slice(row * TILE, min((row + 1) * TILE, grid.rows))
        cols = slice(col * TILE, min((col + 1) * TILE, grid.cols))
        if grid.halvings >= 0:
            found = self._levels[grid.halvings][rows, cols]
        else:
            with torch.no_grad():
                found = shares(self.map.lazy_scores, 0, 0, rows, cols, (grid.rows, grid.cols)).cpu()
        return np.ascontiguousarray(found.numpy(), dtype="<f4")


@torch.no_grad()
def strongest(one: AttentionMap, query: int, count: int) -> tuple[list[int], list[float]]:
    """The keys with the largest weights of a query, and these weights.

    The keys are read in parts, so that memory stays small.

    Args:
        one: A map of one sequence and one head.
        query: The index of the query.
        count: The maximum number of keys.
    """
    keys = one.shape[3]
    best, where = torch.zeros(0, dtype=one.dtype), torch.zeros(0, dtype=torch.int64)
    for start in range(0, keys, 2**16):
        stop = min(start + 2**16, keys)
        weights = one[0, 0, query, start:stop].cpu()
        best = torch.cat([best, weights])
        where = torch.cat([where, torch.arange(start, stop)])
        best, kept = best.topk(min(count, len(best)))
        where = where[kept]
    real = best > 0
    return where[real].tolist(), best[real].tolist()


def _halved(
    cells: Float[Tensor, "rows cols"], counts: Float[Tensor, " rows"]
) -> tuple[Tensor, Tensor]:
    """Combine two by two cells: the mean over rows, weighted by queries; the sum over columns."""
    rows, cols = cells.shape
    pad = (0, cols % 2, 0, rows % 2)
    padded = torch.nn.functional.pad(cells, pad, value=torch.nan)
    counts = torch.nn.functional.pad(counts, (0, rows % 2))
    hidden = padded.isnan()
    sums = (padded.nan_to_num(0.0) * counts[:, None]).view(len(counts) // 2, 2, -1).sum(1)
    sums = sums.view(len(sums), -1, 2).sum(2)
    hidden = hidden.view(len(sums), 2, -1).all(1).view(len(sums), -1, 2).all(2)
    counts = counts.view(-1, 2).sum(1)
    return (sums / counts[:, None]).masked_fill(hidden, torch.nan), counts
