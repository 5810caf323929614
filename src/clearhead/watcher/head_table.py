"""HeadTable: what every head of a model attends to, as numbers and in words.

Each number comes with its chance level: the same number if attention were uniform over the visible
keys. Random weights give numbers near it, at any length of the text.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from jaxtyping import Float, Int, Shaped
from rich.console import Group, RenderableType
from rich.text import Text
from torch import Tensor

from clearhead import drawing
from clearhead.maps import AttentionMap, Summary
from clearhead.maps.head_patterns import SCORES, HeadMeans, pattern_name
from clearhead.maps.indexing import as_tensor
from clearhead.maps.positions import seen_before, unique_padding_ids
from clearhead.validation import ShapeError, describe
from clearhead.watcher import calls, padding
from clearhead.watcher.calls import Run, Step

_TITLES = {"distance": "away", "sink": "first", "same_token": "same"}  # of the columns
# The columns that a narrow window drops first: the name of the pattern says most of it.
_LEAST_FIRST = ("away", "entropy", "same", "first", "induction", "previous")


@dataclass(frozen=True)
class Head:
    """One head, its numbers averaged over all queries that have such a key.

    Attributes:
        layer: The name of the module.
        head: Its number in the layer.
        entropy: How widely it spreads, in nats; exp(entropy) is a number of tokens.
        distance: The mean distance of the keys, in tokens.
        previous: Its weight on the previous token.
        sink: Its weight on the first token.
        same_token: Its weight on earlier copies of the query's token; None without ids.
        induction: Its weight on what followed these copies; None without ids.
        looks_at: The name of its pattern.
        chance: The same numbers under uniform attention.
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
    chance: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class HeadTable(drawing.Drawn):
    """What each head of each layer attends to; `print` it, or take its `rows`."""

    rows: tuple[Head, ...]
    model: str = ""

    def sorted(self, column: str) -> HeadTable:
        """The same table, the largest number of a column first; heads without one come last.

        Args:
            column: As it is called in the table, or as the field of a row: "first" or "sink".
        """
        fields_of = {_TITLES.get(name, name): name for name in SCORES}
        name = fields_of.get(column, column)
        if name not in SCORES:
            raise ValueError(f"column: expected one of {', '.join(fields_of)}, got {column!r}.")

        def order(row: Head) -> float:
            number = getattr(row, name)
            return math.inf if number is None else -number

        return HeadTable(tuple(sorted(self.rows, key=order)), self.model)

    def to_json(self) -> dict[str, Any]:
        """Everything, for programs."""
        return {"schema": 1, "model": self.model, "heads": [asdict(row) for row in self.rows]}

    def to_csv(self) -> str:
        """The rows as comma-separated values, with a header; an unknown number is empty."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        names = [one.name for one in fields(Head) if one.name != "chance"]
        writer.writerow([*names, *(f"chance_{name}" for name in SCORES)])
        for row in self.rows:
            cells = [getattr(row, name) for name in names]
            cells += [row.chance.get(name) for name in SCORES]
            writer.writerow(
                [drawing.guarded(cell) if isinstance(cell, str) else cell for cell in cells]
            )
        return file.getvalue()

    def __rich__(self) -> RenderableType:
        names = ["entropy", "distance", "previous", "sink"]
        if any(row.same_token is not None or row.induction is not None for row in self.rows):
            names += ["same_token", "induction"]
        head = ["head", "attends to", *(_TITLES.get(name, name) for name in names)]
        cells: list[list[str]] = []
        layers: dict[int, str] = {}
        for i, row in enumerate(self.rows):
            scores = {name: getattr(row, name) for name in SCORES}
            if i == 0 or row.layer != self.rows[i - 1].layer:
                layers[len(cells)] = drawing.visible(row.layer)  # long: on a line of its own
                if row.chance:
                    shown = [_number(row.chance.get(name)) for name in names]
                    cells.append(["", "(chance)", *shown])
            shown = [_number(scores[name]) for name in names]
            cells.append([f"{row.head:>4}", pattern_name(scores, brief=True), *shown])
        drop = [head.index(title) for title in _LEAST_FIRST if title in head]
        more = "--json has all, and so has .rows in Python."
        fitting = drawing.FittingTable(head, cells, left=2, drop=drop, titles=layers, more=more)
        words = "Means over all queries. entropy in nats, away in tokens; the rest is weight: "
        words += "on the previous token, on the first token"
        words += ", on earlier copies, on what followed these." if len(names) > 4 else "."
        if any(row.chance for row in self.rows):
            words += " (chance): under uniform attention."
        return Group(fitting, Text(words))

    def __repr__(self) -> str:
        layers = len({row.layer for row in self.rows})
        return f"HeadTable({len(self.rows)} heads in {layers} layers): print it, or take .rows"


def measure(
    layers: Mapping[str, Sequence[AttentionMap]],
    ids: Int[Tensor, "batch tokens"] | Sequence[Sequence[int]] | None = None,
    attention_mask: Shaped[Tensor, "batch tokens"] | Sequence[Sequence[int]] | None = None,
    *,
    model: str = "",
    on_progress: Callable[[float], None] | None = None,
) -> HeadTable:
    """The table of these layers, each with the maps of its calls.

    Args:
        layers: The maps of each layer, in order.
        ids: The token ids, for `same_token` and `induction`.
        attention_mask: 1 for a real token, 0 for padding; None to find padding in the maps.
        model: What the model is called.
        on_progress: Called repeatedly with the share that is done.
    """
    runs = {name: calls.runs(maps) for name, maps in layers.items()}
    crossing = calls.crossing(layers)
    text = None if ids is None else as_tensor("ids", ids)
    read = {} if text is None else _reading(runs, crossing, text)
    real = None if attention_mask is None else as_tensor("attention_mask", attention_mask)
    masked = {} if real is None else padding.fitting(runs, crossing, real)
    rows: list[Head] = []
    for i, name in enumerate(layers):
        heads = layers[name][0].shape[1]
        means, chance = HeadMeans(heads), HeadMeans(heads)
        for number, run in enumerate(runs[name]):

            def report(share: float, done: float = i + number / len(runs[name])) -> None:
                if on_progress is not None:
                    on_progress((done + share / len(runs[name])) / len(layers))  # noqa: B023

            known = (
                text if number in read.get(name, ()) else None,
                real if number in masked.get(name, ()) else None,
                name not in crossing,
            )
            _add(means, run, *known, report)
            _add(chance, [replace(step, map=_uniform(step.map)) for step in run], *known)
        for head, one, even in zip(
            layers[name][0].head_numbers, means.per_head(), chance.per_head(), strict=True
        ):
            rows.append(Head(name, head, **one, looks_at=pattern_name(one), chance=even))
    return HeadTable(tuple(rows), model)


def _reading(
    runs: Mapping[str, Sequence[Run]], crossing: Collection[str], ids: Tensor
) -> dict[str, list[int]]:
    """The runs of self-attention that read these ids, by number; raise if that is ambiguous."""
    found = calls.about(
        *(runs, ids),
        lambda run: {run[-1].end},
        lambda run: {run[-1].end + 1},  # the last one was generated and not read
    )
    if not found:
        last = next(iter(runs.values()))[-1][-1]
        raise ShapeError(
            f"ids: expected one id per key, (batch={last.map.shape[0]}, keys={last.end}), got "
            f"{describe(ids)}.\n"
            "  Give the ids that the model was given; after generation, all of them."
        )
    found = {name: numbers for name, numbers in found.items() if name not in crossing}
    for name, numbers in found.items():
        if len(numbers) > 1:
            raise ValueError(
                f"ids: {name} was called {sum(map(len, runs[name]))} times with different texts, "
                "and ids belong to one of them.\n"
                "  Watch one forward pass at a time, or leave ids out."
            )
    calls.check_one_text("ids", runs, found)
    return found


def _add(
    means: HeadMeans,
    run: Run,
    ids: Tensor | None,
    attention_mask: Tensor | None,
    is_self: bool,
    on_progress: Callable[[float], None] = lambda share: None,
) -> None:
    """Add the calls that read one text to the means.

    Args:
        means: The means of the layer's heads.
        run: The calls.
        ids: The tokens of the text, if they are known.
        attention_mask: Which of them are real; None to derive it from the maps.
        is_self: Whether queries and keys are the same tokens. If not, no token is the previous one,
            and there are no distances.
        on_progress: Called with the share that is done.
    """
    first = None
    text = padding.padding_of(run, attention_mask, is_self)
    if ids is not None:
        ids = ids.to(run[0].map.device)
        if text is not None:
            ids = unique_padding_ids(ids, padding.part(text, 0, ids.shape[1]))
    for number, step in enumerate(run):
        m, keys = step.map, step.map.shape[3]
        padded = None if text is None else padding.part(text, step.origin, keys)

        def report(share: float, done: int = number) -> None:
            on_progress((done + share) / len(run))

        known = None if ids is None else padding.part(ids, step.origin, keys)
        found = m.summary(
            entropy=True,
            received=True,
            distance=is_self,
            previous=is_self,
            same_token=known,
            induction=known,
            on_progress=report,
        )
        if first is None:
            first = _first_token(found.received, padded)
        found = replace(found, sink=_sink(m, first - step.origin))
        if ids is not None and step.origin:
            found = _with_gone_copies(found, ids, step)
        means.add(found, m.blind, padded if is_self else None, m.query_positions)


def _uniform(m: AttentionMap) -> AttentionMap:
    """The map under uniform attention; of one head where the same keys are visible to all."""
    masks: list[Tensor] = []
    if m.mask is not None:
        m.mask.encode(masks)
    differ = any(t.ndim == 4 and t.shape[1] > 1 for t in masks)
    differ |= m.bias is not None and m.bias.shape[1] > 1
    return (m if differ else m.select(heads=[0])).uniform()


def _number(value: float | None) -> str:
    """Two decimals, or as many as two significant digits take."""
    if value is None:
        return drawing.HIDDEN
    small = 0 < abs(value) < 0.1
    return drawing.number(value, min(6, 1 - math.floor(math.log10(abs(value)))) if small else 2)


def _first_token(received: Tensor | None, padded: Tensor | None) -> Int[Tensor, " batch"]:
    """The first key that is real, or that any query attends to; with padding on the left not 0."""
    assert received is not None
    candidates = (received > 0).any(1) if padded is None else ~padded
    return candidates.int().argmax(-1)


def _sink(m: AttentionMap, first: Int[Tensor, " batch"]) -> Float[Tensor, "batch heads queries"]:
    """Each query's weight on the first token; 0 where a window has dropped that token."""
    return m.sink(first.clamp_min(0)).masked_fill((first < 0)[:, None, None], 0.0)


def _with_gone_copies(found: Summary, ids: Int[Tensor, "batch tokens"], step: Step) -> Summary:
    """The same where a window has dropped keys: copies among them count, with weight 0.

    What followed the last of the dropped keys is still there: it is the first key.
    """
    assert found.same_token is not None
    assert found.induction is not None
    own = step.map.query_positions + step.origin
    old = seen_before(ids).gather(1, own)[:, None]
    follows = (ids.gather(1, own) == ids[:, step.origin - 1, None])[:, None]
    same, induction = (
        x.masked_fill(x.isnan() & old, 0.0) for x in (found.same_token, found.induction)
    )
    return replace(found, same_token=same, induction=induction + follows * step.map.sink())
