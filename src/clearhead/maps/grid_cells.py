"""A map in cells: sums of its weights over the blocks of a grid, as shares of attention.

A grid of `cells` lies over an axis of `size` positions as in `AttentionMap.thumbnail`: position i
falls into cell i * cells // size. With as many cells as positions, a cell is one weight.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.kernels.scores import Scores, part_of
from clearhead.maps.exact_weights import lse_at, weights_or_nan

_STRIP = 2**19  # weights at a time: two megabytes stay in the cache of a core


def shares(
    s: Scores, batch: int, head: int, rows: slice, cols: slice, grid: tuple[int, int]
) -> Float[Tensor, "rows cols"]:
    """The cells `rows` × `cols` of a grid, as shares of attention.

    A cell is the sum of its weights divided by the number of its queries, so that a row of cells
    adds up to 1 in any grid, or to less if the map has a sink. NaN if the whole cell is hidden.

    Args:
        s: The map; if its `lse` is not known, every call computes it for its rows.
        batch: Which sequence.
        head: Which head.
        rows: Which rows of cells.
        cols: Which columns of cells.
        grid: The number of rows and columns of cells over the whole map.
    """
    _, _, queries, keys = s.shape
    if grid == (queries, keys):
        return weights_or_nan(s, batch, head, rows, cols)
    dtype = s.sum_dtype
    top, left = positions_in(rows, queries, grid[0]), positions_in(cols, keys, grid[1])
    by_row = membership(top.start, top.stop, queries, grid[0], dtype, s.device)
    by_col = membership(left.start, left.stop, keys, grid[1], dtype, s.device)
    q = s.queries[batch, head, top].to(dtype) * s.scale
    k = s.keys[batch, head // s.group, left].to(dtype)
    lse = lse_at(s, batch, head, torch.arange(top.start, top.stop, device=s.device)).to(dtype)
    lse = lse.masked_fill(lse.isneginf(), 0.0)[:, None]
    sums = torch.zeros(len(by_row), len(k), dtype=dtype, device=s.device)
    seen = torch.zeros_like(sums)
    step = max(1, _STRIP // max(1, len(k)))
    for start in range(0, len(q), step):
        part = slice(start, min(start + step, len(q)))
        here = slice(top.start + part.start, top.start + part.stop)
        reach = s.reach(here)
        if reach.stop <= left.start or reach.start >= left.stop:
            continue
        if s.cap is None:
            logs = torch.addmm(-lse[part], q[part], k.T)
        else:
            logs = s.capped(q[part] @ k.T) - lse[part]
        cells = by_row[:, part].any(1).nonzero().flatten()  # few: the others would be zeros
        into = by_row[cells, part]
        visible = s.visible(batch, head, here, left)
        if visible is None:
            seen[cells] += 1
        else:
            logs.masked_fill_(~visible, -torch.inf)
            seen[cells] += into @ visible.expand_as(logs).to(dtype)
        for bias in s.biases:
            logs += part_of(bias, batch, slice(head, head + 1), here, left)[0].to(dtype)
        sums[cells] += into @ logs.exp_()
    found = sums @ by_col.T / by_row.sum(1, keepdim=True)  # (.., positions) @ (positions, cells)
    return found.masked_fill(seen @ by_col.T == 0, torch.nan)


def thumbnail_shares(
    s: Scores, thumbnail: Float[Tensor, "batch heads rows cols"]
) -> Float[Tensor, "batch heads rows cols"]:
    """A thumbnail of the whole map converted to shares of attention, as in `shares`.

    NaN for a cell beyond the reach of the mask. Within its reach, a hidden cell is 0.
    """
    _, _, queries, keys = s.shape
    rows, cols = thumbnail.shape[2:]
    found = thumbnail / heights(queries, rows).to(thumbnail)[:, None]
    for row in range(rows):
        reach = s.reach(positions_in(slice(row, row + 1), queries, rows))
        if reach.start >= reach.stop:
            found[:, :, row] = torch.nan
            continue
        found[:, :, row, : reach.start * cols // keys] = torch.nan
        found[:, :, row, (reach.stop - 1) * cols // keys + 1 :] = torch.nan
    return found


def count_visible(s: Scores, batch: int, most: int) -> int:
    """How many weights of one sequence are not hidden; counting stops beyond `most`."""
    _, heads, queries, keys = s.shape
    step = max(1, _STRIP // max(1, keys))
    count = 0
    for head in range(heads):
        for start in range(0, queries, step):
            rows = slice(start, min(start + step, queries))
            visible = s.visible(batch, head, rows, slice(0, keys))
            shape = (rows.stop - rows.start, keys)
            count += math.prod(shape) if visible is None else int(visible.expand(shape).sum())
            if count > most:
                return count
    return count


def heights(size: int, cells: int) -> Int[Tensor, " cells"]:
    """How many positions fall into each cell."""
    edges = -(-torch.arange(cells + 1) * size // cells)
    return edges.diff()


def positions_in(cells: slice, size: int, count: int) -> slice:
    """The positions that fall into these cells of a grid of `count` cells."""
    return slice(-(-cells.start * size // count), -(-cells.stop * size // count))


def membership(
    start: int, stop: int, size: int, cells: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "cells positions"]:
    """A matrix with a 1 where a position from `start` to `stop` belongs to a cell.

    Its first row is the cell of position `start`, its last row that of position `stop` - 1.
    """
    at = torch.arange(start, stop, device=device)
    first = start * cells // size
    found = torch.zeros((stop - 1) * cells // size - first + 1, len(at), dtype=dtype, device=device)
    found[at * cells // size - first, at - start] = 1
    return found
