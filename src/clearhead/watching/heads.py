"""HeadTable: what every head of a model looks at, as numbers and in words."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Bool, Int
from rich.console import Group, RenderableType
from rich.text import Text
from torch import Tensor

from clearhead import drawing
from clearhead.maps import AttentionMap
from clearhead.pages import in_words
from clearhead.shapes import ShapeError, describe
from clearhead.watching import filling

# Of the columns, those that a narrow window misses least: what a head looks at says the rest.
_LEAST_FIRST = ("away", "entropy", "same", "first", "induction", "previous")


@dataclass(frozen=True)
class Head:
    """One head, its numbers averaged over all queries that have such a key.

    Attributes:
        layer: The name of the module.
        head: Its number in the layer.
        entropy: How widely it looks, in nats; exp(entropy) is a number of tokens.
        distance: How many tokens away it looks.
        previous: Its weight on the token before.
        sink: Its weight on the first token.
        same_token: Its weight on earlier copies of the query's token; None without ids.
        induction: Its weight on what followed these copies; None without ids.
        looks_at: The same in words.
    """

    layer: str
    head: int
    entropy: float | None
    distance: float | None
    previous: float | None
    sink: float | None
    same_token: float | None
    induction: float | None
    looks_at: str


@dataclass(frozen=True)
class HeadTable:
    """What each head of each layer looks at; `print` it, or take its `rows`."""

    rows: tuple[Head, ...]
    model: str = ""

    def to_json(self) -> dict[str, Any]:
        """Everything, for programs."""
        return {"schema": 1, "model": self.model, "heads": [asdict(row) for row in self.rows]}

    def to_csv(self) -> str:
        """The rows as comma-separated values, under a head line; an unknown number is empty."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(Head)])
        for row in self.rows:
            cells = asdict(row).values()
            writer.writerow(
                [drawing.guarded(cell) if isinstance(cell, str) else cell for cell in cells]
            )
        return file.getvalue()

    def __rich__(self) -> RenderableType:
        names = ["entropy", "distance", "previous", "sink"]
        if any(row.same_token is not None or row.induction is not None for row in self.rows):
            names += ["same_token", "induction"]
        titles = {"distance": "away", "sink": "first", "same_token": "same"}
        head = ["head", "looks at", *(titles.get(name, name) for name in names)]
        cells, layers = [], {}
        for place, row in enumerate(self.rows):
            numbers = [getattr(row, name) for name in names]
            shown = [drawing.HIDDEN if n is None else drawing.number(n, 2) for n in numbers]
            cells.append([f"{row.head:>4}", row.looks_at, *shown])
            if place == 0 or row.layer != self.rows[place - 1].layer:
                layers[place] = drawing.visible(row.layer)  # long: on a line of its own
        drop = [head.index(title) for title in _LEAST_FIRST if title in head]
        more = "--json has all, and so has .rows in Python."
        fitting = drawing.FittingTable(head, cells, left=2, drop=drop, titles=layers, more=more)
        words = "Means over all queries. entropy in nats, away in tokens; the rest is weight: "
        words += "on the token before, on the first token"
        words += ", on earlier copies, on what followed these." if len(names) > 4 else "."
        return Group(fitting, Text(words))

    def __str__(self) -> str:
        return drawing.plain(self.__rich__(), width=120)

    def _repr_html_(self) -> str:
        return drawing.html(self.__rich__(), width=120)


def measure(
    layers: Mapping[str, Sequence[AttentionMap]],
    ids: Int[Tensor, "batch tokens"] | None = None,
    attention_mask: Int[Tensor, "batch tokens"] | Bool[Tensor, "batch tokens"] | None = None,
    *,
    model: str = "",
    on_progress: Callable[[float], None] | None = None,
) -> HeadTable:
    """The table of these layers, each with the maps of its calls.

    Args:
        layers: The maps of each layer, in order.
        ids: The token ids, for `same_token` and `induction`.
        attention_mask: 1 for a real token, 0 for filling; None to find filling in the maps.
        model: What the model is called.
        on_progress: Called with the share that is done, now and then.
    """
    if ids is not None:
        _check_ids(layers, ids)
    if attention_mask is not None:
        filling.check(layers, attention_mask)
    rows: list[Head] = []
    for place, (name, maps) in enumerate(layers.items()):

        def report(share: float, done: int = place) -> None:
            if on_progress is not None:
                on_progress((done + share) / len(layers))

        scores = _scores(maps, ids, attention_mask, report)
        for head, number in enumerate(maps[0].head_numbers):
            one = {key: None if math.isnan(s[head]) else s[head] for key, s in scores.items()}
            rows.append(Head(name, number, **one, looks_at=in_words(one)))
    return HeadTable(tuple(rows), model)


def _check_ids(layers: Mapping[str, Sequence[AttentionMap]], ids: Tensor) -> None:
    if not any(_fits(m, ids) for maps in layers.values() for m in maps):
        batch, _, _, keys = next(iter(layers.values()))[-1].shape
        raise ShapeError(
            f"ids: expected one id per key, (batch={batch}, keys={keys}), got {describe(ids)}.\n"
            "  Give the ids that the model was given; after generation, all of them."
        )
    for name, maps in layers.items():
        if sum(_fits(m, ids) for m in maps) > 1 and not continues(maps):
            raise ValueError(
                f"ids: {name} was called {len(maps)} times with different texts, "
                "and ids belong to one of them.\n"
                "  Watch one forward pass at a time, or leave ids out."
            )


def _fits(m: AttentionMap, ids: Tensor) -> bool:
    batch, _, queries, keys = m.shape
    return ids.ndim == 2 and ids.shape[0] == batch and queries <= keys <= ids.shape[1]


def continues(maps: Sequence[AttentionMap]) -> bool:
    """Whether each call added its queries to the keys of the one before, as a cache does."""
    return all(b.shape[3] == a.shape[3] + b.shape[2] for a, b in pairwise(maps))


def _scores(
    maps: Sequence[AttentionMap],
    ids: Tensor | None,
    attention_mask: Tensor | None,
    on_progress: Callable[[float], None],
) -> dict[str, list[float]]:
    """Each score's mean over batch and queries, one number per head; NaN where there is none."""
    names = ("entropy", "distance", "previous", "sink", "same_token", "induction")
    heads = maps[0].shape[1]
    sums = {name: torch.zeros(heads, dtype=torch.float64) for name in names}
    counts = {name: torch.zeros(heads, dtype=torch.float64) for name in names}
    going_on = continues(maps)
    first = None
    fillings = filling.filling(maps, attention_mask, going_on)
    for place, (m, filled) in enumerate(zip(maps, fillings, strict=True)):

        def report(share: float, done: int = place) -> None:
            on_progress((done + share) / len(maps))

        known = None
        if ids is not None and _fits(m, ids):
            known = ids[:, : m.shape[3]]
            known = known if filled is None else filling.apart(known, filled)
        found = m.summary(
            entropy=True,
            received=True,
            distance=True,
            previous=True,
            same_token=known,
            induction=known,
            on_progress=report,
        )
        if first is None or not going_on:
            first = _first_token(found.received, filled)
        assert found.distance is not None
        values = {
            "entropy": found.entropy,
            "distance": found.distance.mean,
            "previous": _after_real(found.previous, filled),
            "sink": m.sink(first),
            "same_token": found.same_token,
            "induction": found.induction,
        }
        blind = m.lse.isneginf()
        same = m.shape[2] == m.shape[3] or (going_on and len(maps) > 1)  # not cross-attention
        if filled is not None and same:
            blind = blind | filled[:, None, m.shape[3] - m.shape[2] :]
        for name, value in values.items():
            if value is not None:
                value = value.detach().double().masked_fill(blind, math.nan)
                sums[name] += value.nansum(dim=(0, 2)).cpu()
                counts[name] += (~value.isnan()).sum(dim=(0, 2)).cpu()
    return {name: (sums[name] / counts[name]).tolist() for name in names}


def _first_token(received: Tensor | None, filled: Tensor | None) -> Int[Tensor, " batch"]:
    """The first key that is real, or that anybody looks at: with filling on the left not key 0."""
    assert received is not None
    looked_at = (received > 0).any(1) if filled is None else ~filled
    return looked_at.int().argmax(-1)


def _after_real(previous: Tensor | None, filled: Tensor | None) -> Tensor | None:
    """The weights on the token before, NaN where that is filling."""
    if previous is None or filled is None or previous.shape[2] > filled.shape[1]:
        return previous
    before = torch.cat([filled[:, :1], filled[:, :-1]], 1)[:, -previous.shape[2] :]
    return previous.masked_fill(before[:, None], math.nan)
