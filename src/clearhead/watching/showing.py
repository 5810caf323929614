"""The maps of a watched model, as what a page or a figure shows of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead import pages
from clearhead.drawing.axes import Axis
from clearhead.drawing.page import Layer, Page
from clearhead.maps import AttentionMap, pictures
from clearhead.maps.cells import heights, weights_or_nan
from clearhead.shapes import ShapeError
from clearhead.watching.heads import continues

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from clearhead.drawing.figures import Panel

_STRIP = 2**20  # weights at a time


def page_of(
    layers: Mapping[str, Sequence[AttentionMap]],
    tokens: Sequence[str] | None,
    batch: int,
    title: str,
) -> Page:
    """The page of these layers, each with the maps of its calls."""
    chosen = _shown(layers)
    pictures.check_size([m for maps in chosen.values() for m in maps], batch)
    if tokens is not None:
        _check_tokens(chosen, tokens)
    made = tuple(_layer(name, maps, tokens, batch) for name, maps in chosen.items())
    return Page(title, made)


def _layer(
    name: str, maps: Sequence[AttentionMap], tokens: Sequence[str] | None, batch: int
) -> Layer:
    """The rows of all calls, one below the other; what a later call added was not there before."""
    queries, keys = _size(maps)
    weights = torch.zeros(maps[0].shape[1], queries, keys, dtype=maps[0].dtype)
    hidden = torch.ones_like(weights, dtype=torch.bool)
    start = 0
    for m in maps:
        part = (slice(None), slice(start, start + m.shape[2]), slice(0, m.shape[3]))
        weights[part], hidden[part] = pictures.weights_and_hidden(m, batch)
        start += m.shape[2]
    fitting = tokens is not None and len(tokens) in (queries, keys)
    numbers = maps[0].head_numbers
    return pages.layer(name, weights, hidden, tokens if fitting else None, numbers=numbers)


def figure_of(
    layers: Mapping[str, Sequence[AttentionMap]],
    tokens: Sequence[str] | None,
    batch: int,
    title: str,
    log: bool,
) -> Figure:
    """The figure of these layers: a row a layer; long maps in blocks, with memory O(tokens)."""
    from clearhead.drawing import figures

    panels, legend = panels_of(layers, tokens, batch)
    heads = {maps[-1].shape[1] for maps in layers.values()}
    wide = heads.pop() if len(layers) > 1 and len(heads) == 1 else None
    return figures.figure(panels, wide=wide, legend=legend, log=log, title=title)


def panels_of(
    layers: Mapping[str, Sequence[AttentionMap]], tokens: Sequence[str] | None, batch: int
) -> tuple[list[Panel], str]:
    """What the figure shows, head by head, and what its colours mean."""
    from clearhead.drawing.figures import Panel

    chosen = _shown(layers)
    if tokens is not None:
        _check_tokens(chosen, tokens)
    alone = sum(maps[0].shape[1] for maps in chosen.values()) == 1
    # One legend for all: if one map is too long for its weights, all are shown in shares.
    sizes = {name: _size(maps) for name, maps in chosen.items()}
    exact = all(pictures.grid_for(*size, alone=alone) == size for size in sizes.values())
    panels = []
    for name, maps in chosen.items():
        queries, keys = sizes[name]
        fitting = tokens is not None and len(tokens) in (queries, keys)
        labels = pages.labels(queries, keys, tokens) if fitting else (None, None)
        axes = Axis("query", queries, labels[0]), Axis("key", keys, labels[1])
        cells = _cells(maps, batch, pictures.grid_for(queries, keys, alone=alone))
        for values, number in zip(cells.numpy(), maps[0].head_numbers, strict=True):
            words = f"{name} {number}" if len(chosen) > 1 else f"head {number}"
            panels.append(Panel(values, *axes, title=words))
    return panels, pictures.EXACT if exact else pictures.SHARES


@torch.no_grad()
def _cells(
    maps: Sequence[AttentionMap], batch: int, grid: tuple[int, int]
) -> Float[Tensor, "heads rows cols"]:
    """The cells of a grid over all calls of a layer; NaN where nothing can be seen."""
    heads = maps[0].shape[1]
    for m in maps:
        pictures.check_batch(m, batch)
    if len(maps) == 1:
        return pictures.cells_of(maps[0], batch, list(range(heads)), grid)
    queries, keys = _size(maps)
    sums = torch.zeros(heads, *grid, dtype=torch.float64)
    seen = torch.zeros_like(sums)
    col = torch.arange(keys) * grid[1] // keys
    start = 0
    for m in maps:
        step = max(1, _STRIP // m.shape[3])
        for begin in range(0, m.shape[2], step):
            rows = slice(begin, min(begin + step, m.shape[2]))
            row = torch.arange(start + rows.start, start + rows.stop) * grid[0] // queries
            for head in range(heads):
                w = weights_or_nan(m, batch, head, rows, slice(0, m.shape[3])).cpu().double()
                for into, values in ((sums, w.nan_to_num(0.0)), (seen, (~w.isnan()).double())):
                    across = into.new_zeros(len(row), grid[1])
                    across.index_add_(1, col[: m.shape[3]], values)
                    into[head].index_add_(0, row, across)
        start += m.shape[2]
    shares = sums / heights(queries, grid[0])[:, None]
    return shares.masked_fill(seen == 0, torch.nan)


def _shown(
    layers: Mapping[str, Sequence[AttentionMap]],
) -> dict[str, Sequence[AttentionMap]]:
    """The calls that are shown: all that continue each other, else the last."""
    return {name: maps if continues(maps) else maps[-1:] for name, maps in layers.items()}


def _size(maps: Sequence[AttentionMap]) -> tuple[int, int]:
    return sum(m.shape[2] for m in maps), maps[-1].shape[3]


def _check_tokens(layers: Mapping[str, Sequence[AttentionMap]], tokens: Sequence[str]) -> None:
    sizes = {size for maps in layers.values() for size in _size(maps)}
    if isinstance(tokens, str) or len(tokens) not in sizes:
        got = "one string" if isinstance(tokens, str) else f"{len(tokens)}"
        raise ShapeError(
            f"tokens: expected {' or '.join(map(str, sorted(sizes)))} labels, one per token, "
            f"got {got}.\n  Were the labels made by the same tokenizer as the ids?"
        )
