"""The maps of a watched model as a page or a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.drawing import Axis
from clearhead.drawing.html_page import Layer, Page
from clearhead.maps import AttentionMap, map_figures, page_layers
from clearhead.maps.axis_labels import axis_labels, check_labels
from clearhead.maps.exact_weights import weights_and_hidden, weights_or_nan
from clearhead.maps.grid_cells import heights
from clearhead.maps.indexing import check_batch
from clearhead.watcher.calls import Run, Step, runs

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
    page_layers.check_size([step.map.lazy_scores for run in chosen.values() for step in run], batch)
    if tokens is not None:
        _check_tokens(chosen, tokens)
    made = tuple(_layer(name, run, tokens, batch) for name, run in chosen.items())
    return Page(title, made)


def _layer(name: str, run: Run, tokens: Sequence[str] | None, batch: int) -> Layer:
    """The rows of all calls, one below the other; later keys are hidden from earlier rows."""
    queries, keys = _size(run)
    first = run[0].map
    weights = torch.zeros(first.shape[1], queries, keys, dtype=first.dtype)
    hidden = torch.ones_like(weights, dtype=torch.bool)
    row = 0
    for step in run:
        part = (slice(None), slice(row, row + step.map.shape[2]), _columns(step, keys))
        shown = slice(0, part[2].stop - part[2].start)
        w, h = weights_and_hidden(step.map.lazy_scores, batch)
        weights[part], hidden[part] = w[..., shown], h[..., shown]
        row += step.map.shape[2]
    return page_layers.layer(
        *(name, weights, hidden, tokens if _fit(run, tokens) else None),
        numbers=first.head_numbers,
        start=first.first_positions[batch],
    )


def figure_of(
    layers: Mapping[str, Sequence[AttentionMap]],
    tokens: Sequence[str] | None,
    batch: int,
    title: str,
    log: bool,
) -> Figure:
    """The figure of these layers, one row per layer; long maps in blocks, with O(tokens) memory."""
    from clearhead.drawing import figures

    panels, legend = panels_of(layers, tokens, batch)
    heads = {maps[-1].shape[1] for maps in layers.values()}
    wide = heads.pop() if len(layers) > 1 and len(heads) == 1 else None
    return figures.figure(panels, wide=wide, legend=legend, log=log, title=title)


def panels_of(
    layers: Mapping[str, Sequence[AttentionMap]], tokens: Sequence[str] | None, batch: int
) -> tuple[list[Panel], str]:
    """The panels of the figure, one per head, and the meaning of its colours."""
    from clearhead.drawing.figures import Panel

    chosen = _shown(layers)
    if tokens is not None:
        _check_tokens(chosen, tokens)
    alone = sum(run[0].map.shape[1] for run in chosen.values()) == 1
    # One legend for all: if one map is too long for its weights, all are shown in shares.
    sizes = {name: _size(run) for name, run in chosen.items()}
    exact = all(map_figures.grid_for(*size, alone=alone) == size for size in sizes.values())
    panels = []
    for name, run in chosen.items():
        queries, keys = sizes[name]
        check_batch(batch, run[0].map.shape[0])
        start = run[0].map.first_positions[batch]
        fitting = _fit(run, tokens)
        labels = axis_labels(queries, keys, tokens, start=start) if fitting else (None, None)
        axes = Axis("query", queries, labels[0]), Axis("key", keys, labels[1])
        cells = _cells(run, batch, map_figures.grid_for(queries, keys, alone=alone))
        for values, number in zip(cells.numpy(), run[0].map.head_numbers, strict=True):
            words = f"{name} {number}" if len(chosen) > 1 else f"head {number}"
            panels.append(Panel(values, *axes, title=words))
    return panels, map_figures.EXACT if exact else map_figures.SHARES


@torch.no_grad()
def _cells(run: Run, batch: int, grid: tuple[int, int]) -> Float[Tensor, "heads rows cols"]:
    """The cells of a grid over all calls of a layer; NaN where no key is visible."""
    heads = run[0].map.shape[1]
    for step in run:
        check_batch(batch, step.map.shape[0])
    if len(run) == 1:
        return run[0].map.cells(grid, batch=batch).cpu()
    queries, keys = _size(run)
    sums = torch.zeros(heads, *grid, dtype=torch.float64)
    seen = torch.zeros_like(sums)
    col = torch.arange(keys) * grid[1] // keys
    start = 0
    for step in run:
        m, columns = step.map, _columns(step, keys)
        shown = slice(0, columns.stop - columns.start)
        some = max(1, _STRIP // m.shape[3])
        for begin in range(0, m.shape[2], some):
            rows = slice(begin, min(begin + some, m.shape[2]))
            row = torch.arange(start + rows.start, start + rows.stop) * grid[0] // queries
            for head in range(heads):
                w = weights_or_nan(m.lazy_scores, batch, head, rows, shown).cpu().double()
                for into, values in ((sums, w.nan_to_num(0.0)), (seen, (~w.isnan()).double())):
                    across = into.new_zeros(len(row), grid[1])
                    across.index_add_(1, col[columns], values)
                    into[head].index_add_(0, row, across)
        start += m.shape[2]
    shares = sums / heights(queries, grid[0])[:, None]
    return shares.masked_fill(seen == 0, torch.nan)


def _shown(layers: Mapping[str, Sequence[AttentionMap]]) -> dict[str, Run]:
    """The calls that are shown: all that continue each other, else the last."""
    found = {name: runs(maps) for name, maps in layers.items()}
    return {n: found[n][0] if len(found[n]) == 1 else runs(layers[n][-1:])[0] for n in layers}


def _size(run: Run) -> tuple[int, int]:
    """(queries, keys) of all calls; empty slots of a cache are shown for a single call only."""
    keys = run[-1].end if len(run) > 1 else run[0].map.shape[3]
    return sum(step.map.shape[2] for step in run), keys


def _columns(step: Step, keys: int) -> slice:
    """The columns of a call among all keys."""
    return slice(step.origin, min(step.origin + step.map.shape[3], keys))


def _lengths(run: Run) -> set[int]:
    """The numbers of labels that fit: one per query, per key or per token."""
    return {*_size(run), run[-1].end}


def _fit(run: Run, tokens: Sequence[str] | None) -> bool:
    return tokens is not None and len(tokens) in _lengths(run)


def _check_tokens(layers: Mapping[str, Run], tokens: Sequence[str]) -> None:
    sizes = {size for run in layers.values() for size in _lengths(run)}
    check_labels("tokens", tokens, sizes)
