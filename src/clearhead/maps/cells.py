"""A map in cells: exact weights, or their exact sums over the blocks of a grid.

A grid of `cells` lies over an axis of `size` positions as in `AttentionMap.thumbnail`: position i
falls into cell i * cells // size. With as many cells as positions, a cell is one weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.kernels import statistics
from clearhead.kernels.scores import part_of
from clearhead.maps.lazy_weights import LazyWeights

if TYPE_CHECKING:
    from clearhead.maps.attention_map import AttentionMap

# Scores below this are hidden, whether by -inf or by a very negative number.
HIDDEN = -1e20
_STRIP = 2**19  # weights at a time: two megabytes stay in the cache of a core
_STEP = 2**26  # weights between two reports of progress


def weights_or_nan(
    m: LazyWeights, batch: int, head: int, rows: slice, cols: slice
) -> Float[Tensor, "rows cols"]:
    """The exact weights of one tile, NaN where a query may not look."""
    i, j = (torch.arange(part.start, part.stop, device=m.device) for part in (rows, cols))
    scores = m._scores_at(batch, head, i, j)
    at = [torch.tensor([place], device=m.device) for place in (batch, head)]
    lse = m._lse_at(at[0], at[1], i)[0, 0, :, None]
    weights = (scores - lse).exp().to(m.dtype)
    return weights.masked_fill(scores < HIDDEN, torch.nan)


def shares(
    m: LazyWeights,
    batch: int,
    head: int,
    rows: slice,
    cols: slice,
    grid: tuple[int, int],
) -> Float[Tensor, "rows cols"]:
    """The cells `rows` × `cols` of a grid: the share of attention that goes from there to there.

    A cell is the sum of its weights divided by the number of its queries, so that a row of cells
    adds up to 1 at any grid. NaN where the whole cell is hidden by the mask.

    Args:
        m: The map; its `lse` should be known, or every call computes it for its rows.
        batch: Which sequence.
        head: Which head.
        rows: Which rows of cells.
        cols: Which columns of cells.
        grid: How many cells the whole map is high and wide.
    """
    _, _, queries, keys = m.shape
    if grid == (queries, keys):
        return weights_or_nan(m, batch, head, rows, cols)
    top, left = positions(rows, queries, grid[0]), positions(cols, keys, grid[1])
    s = m._scores
    i, j = (torch.arange(part.start, part.stop, device=m.device) for part in (top, left))
    by_row = _belongs(i * grid[0] // queries - rows.start, rows.stop - rows.start, s.dtype)
    by_col = _belongs(j * grid[1] // keys - cols.start, cols.stop - cols.start, s.dtype)
    q = s.q[batch, head, top].to(s.dtype) * s.scale
    k = s.k[batch, head * s.k.shape[1] // s.q.shape[1], left].to(s.dtype)
    at = [torch.tensor([place], device=m.device) for place in (batch, head)]
    lse = m._lse_at(at[0], at[1], i)[0, 0].to(s.dtype)
    lse = lse.masked_fill(lse.isneginf(), 0.0)[:, None]
    sums = torch.zeros(len(by_row), len(j), dtype=s.dtype, device=m.device)
    seen = torch.zeros_like(sums)
    step = max(1, _STRIP // max(1, len(j)))
    for start in range(0, len(i), step):
        part = slice(start, min(start + step, len(i)))
        here = slice(top.start + part.start, top.start + part.stop)
        reach = s.reach(here)
        if reach.stop <= left.start or reach.start >= left.stop:
            continue
        logs = torch.addmm(-lse[part], q[part], k.T)
        cells = by_row[:, part].any(1).nonzero().flatten()  # few: the rest would be zeros
        into = by_row[cells, part]
        visible = _visible(m, batch, head, here, left)
        if visible is None:
            seen[cells] += 1
        else:
            logs.masked_fill_(~visible, -torch.inf)
            seen[cells] += into @ visible.expand_as(logs).to(s.dtype)
        if s.bias is not None:
            logs += _part(s.bias, batch, head, here, left).to(s.dtype)
        sums[cells] += into @ logs.exp_()
    found = sums @ by_col.T / by_row.sum(1, keepdim=True)  # (.., positions) @ (positions, cells)
    return found.masked_fill(seen @ by_col.T == 0, torch.nan)


def normalise(m: LazyWeights, on_progress: Callable[[float], None]) -> None:
    """Give a map its row log-sum-exp, some rows at a time: slower than at once, but it can stop.

    Args:
        m: The map.
        on_progress: Called with the share that is done, now and then; may raise to stop.
    """
    if m._lse is not None:
        return
    m._settle()
    queries = m.shape[2]
    step = max(1, _STEP // m.shape[3])
    parts = []
    for start in range(0, queries, step):
        on_progress(start / queries)
        rows = slice(start, min(start + step, queries))
        parts.append(statistics.log_sum_exp(m._scores, rows))
    m._lse = torch.cat(parts, 2)


def whole(
    m: AttentionMap,
    grid: tuple[int, int],
    on_progress: Callable[[float], None] | None = None,
) -> Float[Tensor, "batch heads rows cols"]:
    """All cells of a grid over the whole map, as `shares` gives them; in one pass over all heads.

    NaN where the cell lies outside of what the mask lets anybody reach. Inside that a hidden cell
    is 0.
    """
    _, _, queries, keys = m.shape
    found = m.summary(thumbnail=grid, on_progress=on_progress).thumbnail
    assert found is not None
    found /= heights(queries, grid[0]).to(found)[:, None]
    for row in range(grid[0]):
        reach = m._scores.reach(positions(slice(row, row + 1), queries, grid[0]))
        if reach.start >= reach.stop:
            found[:, :, row] = torch.nan
            continue
        found[:, :, row, : reach.start * grid[1] // keys] = torch.nan
        found[:, :, row, (reach.stop - 1) * grid[1] // keys + 1 :] = torch.nan
    return found


def count_visible(m: LazyWeights, batch: int, most: int) -> int:
    """How many weights of one sequence can be seen; not counted on once there are more than `most`.

    Args:
        m: The map.
        batch: Which sequence.
        most: How many matter.
    """
    m._settle()
    _, heads, queries, keys = m.shape
    step = max(1, _STRIP // max(1, keys))
    count = 0
    for head in range(heads):
        for start in range(0, queries, step):
            rows = slice(start, min(start + step, queries))
            visible = _visible(m, batch, head, rows, slice(0, keys))
            shape = (rows.stop - rows.start, keys)
            count += math.prod(shape) if visible is None else int(visible.expand(shape).sum())
            if count > most:
                return count
    return count


def heights(size: int, cells: int) -> Int[Tensor, " cells"]:
    """How many positions fall into each cell."""
    edges = -(-torch.arange(cells + 1) * size // cells)
    return edges.diff()


def positions(cells: slice, size: int, count: int) -> slice:
    """The positions that fall into these cells of a grid of `count` cells."""
    return slice(-(-cells.start * size // count), -(-cells.stop * size // count))


def _belongs(cell: Tensor, cells: int, dtype: torch.dtype) -> Float[Tensor, "cells positions"]:
    """A matrix with a 1 where a position belongs to a cell."""
    found = torch.zeros(cells, len(cell), dtype=dtype, device=cell.device)
    found[cell, torch.arange(len(cell), device=cell.device)] = 1
    return found


def _visible(m: LazyWeights, batch: int, head: int, rows: slice, cols: slice) -> Tensor | None:
    """Where the mask and the bias let these queries look; None = everywhere."""
    s = m._scores
    found = None
    if s.bias is not None:
        found = _part(s.bias, batch, head, rows, cols) > HIDDEN
    if s.mask is not None:
        tile = s.mask.tile(rows, cols, m.shape[2], m.shape[3], m.device)
        if tile is not None:
            tile = _part(tile, batch, head, slice(None), slice(None))
            found = tile if found is None else found & tile
    return found


def _part(x: Tensor, batch: int, head: int, rows: slice, cols: slice) -> Tensor:
    return part_of(x, batch, slice(head, head + 1), rows, cols)[0]
