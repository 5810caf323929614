"""Pictures of a map: what a page, a figure and the terminal are given to show.

A page has every weight of one sequence. A figure and the terminal show a small map weight by
weight; of a large one a cell is the share of their attention that its queries give to its keys: the
sum of the weights divided by the number of queries.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead.drawing import Axis
from clearhead.drawing.heatmap import Heatmap
from clearhead.drawing.html_page import MOST_CELLS, MOST_CELLS_WITH_HIDDEN, TooLarge
from clearhead.maps.cells import HIDDEN, count_visible, weights_or_nan, whole
from clearhead.maps.indexing import Index, numbers
from clearhead.maps.page_layers import labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from clearhead.maps.attention_map import AttentionMap

_EXACT = 1024  # tokens; of more than these a figure shows shares: it has no dots for them
_CELLS = 512  # of a figure of shares, each way
_CELLS_IN_GRID = 192  # of a figure of many heads, whose pictures are small
EXACT, SHARES = "attention weight", "share of attention"  # what the colours of a figure mean
_QUICK = 2**22  # weights that are computed while somebody waits for `print`


def weights_and_hidden(
    m: AttentionMap, batch: int
) -> tuple[Float[Tensor, "heads queries keys"], Bool[Tensor, "heads queries keys"]]:
    """The weights of one sequence, and where there is nothing to be seen."""
    check_size([m], batch)
    one = m.select(batch=[batch])
    hidden = torch.stack([one.scores(0, head) < HIDDEN for head in range(m.shape[1])])
    return one[0], hidden


def check_batch(m: AttentionMap, batch: int) -> None:
    """Raise unless the map has this sequence."""
    if not -m.shape[0] <= batch < m.shape[0]:
        raise IndexError(f"batch: {batch} is not one of the {m.shape[0]} sequences of this map.")


def check_size(maps: Sequence[AttentionMap], batch: int) -> None:
    """Refuse what no page could hold, before it is computed."""
    for m in maps:
        check_batch(m, batch)
    cells = sum(math.prod(m.shape[1:]) for m in maps)
    if cells <= MOST_CELLS:
        return
    seen = 0
    for m in maps if cells <= MOST_CELLS_WITH_HIDDEN else ():
        seen += count_visible(m, batch, MOST_CELLS - seen)
    if cells > MOST_CELLS_WITH_HIDDEN or seen > MOST_CELLS:
        raise TooLarge(cells)


def plot(
    m: AttentionMap,
    head: Index | None,
    batch: int,
    ax: Axes | None,
    tokens: Sequence[str] | None,
    context_tokens: Sequence[str] | None,
    log: bool,
    show: bool = True,
    title: str = "",
) -> Figure:
    """See `AttentionMap.plot`."""
    from clearhead.drawing import figures

    chosen, rows_columns = _heads(m, head), _axes(m, batch, tokens, context_tokens)
    _, _, queries, keys = m.shape
    grid = grid_for(queries, keys, alone=len(chosen) == 1)
    cells = cells_of(m, batch, chosen, grid).numpy()
    panels = [
        figures.Panel(values, *rows_columns, title=f"head {m.head_numbers[one]}")
        for one, values in zip(chosen, cells, strict=True)
    ]
    if ax is not None:
        if len(panels) > 1:
            raise ValueError(
                f"ax: one set of axes takes one head, got {len(panels)} heads.\n"
                "  Say which: m.plot(head=0, ax=ax), or leave ax out for a grid."
            )
        figures.draw(ax, panels[0], log=log)
        return ax.figure  # type: ignore[return-value]  # a subfigure serves as well
    legend = EXACT if grid == (queries, keys) else SHARES
    return figures.figure(panels, legend=legend, log=log, show=show, title=title)


def save_figure(
    m: AttentionMap,
    path: str | os.PathLike[str],
    head: Index | None,
    batch: int,
    tokens: Sequence[str] | None,
    context_tokens: Sequence[str] | None,
    log: bool,
    title: str,
) -> None:
    """Write the figure that `plot` draws."""
    from clearhead.drawing import figures

    figures.check_path(Path(path))
    made = plot(m, head, batch, None, tokens, context_tokens, log, show=False, title=title)
    figures.write(made, path)


def draw(
    m: AttentionMap,
    head: int,
    batch: int,
    tokens: Sequence[str] | None,
    context_tokens: Sequence[str] | None,
    log: bool,
) -> Heatmap:
    """See `AttentionMap.draw`."""
    chosen, (rows, columns) = _heads(m, head), _axes(m, batch, tokens, context_tokens)

    def source(high: int, wide: int) -> Any:
        return cells_of(m, batch, chosen, (high, wide))[0].tolist()

    return Heatmap(source, rows, columns, title=f"head {m.head_numbers[chosen[0]]}", log=log)


def is_quick(m: AttentionMap) -> bool:
    """Whether drawing one head takes no noticeable time."""
    return 0 < m.shape[2] * m.shape[3] <= _QUICK and m.device.type != "meta"


def grid_for(queries: int, keys: int, *, alone: bool) -> tuple[int, int]:
    """How many cells a figure has: one a weight, or blocks if there are too many for that."""
    if max(queries, keys) <= (_EXACT if alone else _CELLS_IN_GRID):
        return queries, keys
    most = _CELLS if alone else _CELLS_IN_GRID
    return min(queries, most), min(keys, most)


@torch.no_grad()
def cells_of(m: AttentionMap, batch: int, heads: list[int], grid: tuple[int, int]) -> Tensor:
    """The cells of some heads of one sequence, (heads, rows, columns); NaN where hidden."""
    one = int(numbers(batch, m.shape[0], "batch")[0])
    _, _, queries, keys = m.shape
    if grid != (queries, keys):
        return whole(m.select(batch=one, heads=heads), grid)[0].cpu()
    rows, cols = slice(0, queries), slice(0, keys)
    found = [weights_or_nan(m, one, head, rows, cols) for head in heads]
    return torch.stack(found).cpu()


def _heads(m: AttentionMap, head: Index | None) -> list[int]:
    if head is None:
        return list(range(m.shape[1]))
    return [int(one) for one in numbers(head, m.shape[1], "head")[0]]


def _axes(
    m: AttentionMap, batch: int, tokens: Sequence[str] | None, context_tokens: Sequence[str] | None
) -> tuple[Axis, Axis]:
    _, _, queries, keys = m.shape
    if tokens is None and context_tokens is None:
        return Axis("query", queries), Axis("key", keys)
    check_batch(m, batch)
    rows, columns = labels(queries, keys, tokens, context_tokens, m._starts[batch])
    return Axis("query", queries, rows), Axis("key", keys, columns)
