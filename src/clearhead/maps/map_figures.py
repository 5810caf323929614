"""Cells of a map -> a matplotlib figure.

A small map is drawn weight by weight. In a large one a cell is a share of attention: the sum of its
weights divided by the number of its queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.drawing import Axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EXACT, SHARES = "attention weight", "share of attention"  # what the colours of a figure mean

_EXACT = 1024  # tokens; longer maps are drawn as shares, since a figure has too few pixels
_CELLS = 512  # per side, in a figure of shares
_CELLS_IN_GRID = 192  # per side of each head, in a figure of several heads
_QUICK = 2**22  # weights that `print` computes without a noticeable delay


def grid_for(queries: int, keys: int, *, alone: bool) -> tuple[int, int]:
    """How many cells a figure has: one per weight, or blocks if there are too many weights."""
    if max(queries, keys) <= (_EXACT if alone else _CELLS_IN_GRID):
        return queries, keys
    most = _CELLS if alone else _CELLS_IN_GRID
    return min(queries, most), min(keys, most)


def is_quick(shape: torch.Size, device: torch.device) -> bool:
    """Whether one head of such a map can be drawn without a noticeable delay."""
    return 0 < shape[2] * shape[3] <= _QUICK and device.type != "meta"


def plot(
    cells: Float[Tensor, "heads rows cols"],
    rows_and_columns: tuple[Axis, Axis],
    head_numbers: Sequence[int],
    *,
    ax: Axes | None,
    log: bool,
    show: bool,
    title: str,
) -> Figure:
    """Draw some heads as a figure, or one head into the given axes."""
    from clearhead.drawing import figures

    rows, columns = rows_and_columns
    panels = [
        figures.Panel(values, rows, columns, title=f"head {number}")
        for values, number in zip(cells.numpy(), head_numbers, strict=True)
    ]
    if ax is not None:
        if len(panels) > 1:
            raise ValueError(
                f"ax: one set of axes takes one head, got {len(panels)} heads.\n"
                "  Choose one: m.plot(head=0, ax=ax), or leave ax out for a grid."
            )
        figures.draw(ax, panels[0], log=log)
        return ax.figure  # type: ignore[return-value]  # may be a subfigure
    legend = EXACT if tuple(cells.shape[1:]) == (rows.size, columns.size) else SHARES
    return figures.figure(panels, legend=legend, log=log, show=show, title=title)
