"""The maps of a watched model, as what a page or a figure shows of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from clearhead import pages
from clearhead.drawing.page import Layer, Page
from clearhead.maps import AttentionMap, pictures
from clearhead.shapes import ShapeError
from clearhead.watching.heads import continues


def page_of(
    layers: Mapping[str, Sequence[AttentionMap]],
    tokens: Sequence[str] | None,
    batch: int,
    title: str,
) -> Page:
    """The page of these layers, each with the maps of its calls."""
    chosen = {name: maps if continues(maps) else maps[-1:] for name, maps in layers.items()}
    pictures.check_size([m for maps in chosen.values() for m in maps])
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
