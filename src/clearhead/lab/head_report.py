"""A `HeadReport` as tables for the terminal and as a figure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from clearhead import drawing
from clearhead.drawing import Axis, figures
from clearhead.lab.head_scores import Estimate, HeadReport, HeadScore, RelationScore

Where = Callable[[HeadScore], str]

_MORE = "--json has all columns."


def draw_report(report: HeadReport) -> RenderableType:
    """Tables of attention, accuracy without heads, and feature values; then the grids."""

    def where(head: HeadScore) -> str:
        return f"{report.layers.index(head.layer)}.{head.head}"

    parts: list[RenderableType] = [
        Text(f"What the heads of {drawing.visible(report.model)} do", style="bold"),
        Text(
            "Heads are chosen in one half of the sentences and measured in the other; "
            "± is a 95 % interval.\n"
        ),
        _attention(report, where),
        Text(
            "head: layer.head, from 0. key: attention on the word that determines the next one; "
            "other: on a word that could be mistaken for it; uniform: an equal share; shuffled: "
            "at the key's position in another sentence; untrained: on the key, by the best head of "
            "an untrained model.\n"
        ),
    ]
    if any(score.accuracy is not None for score in report.relations):
        explained = "right: how often the right word gets the highest score."
        if any(score.without_few is not None for score in report.relations):
            explained += (
                " mean, zero: percentage points lost without the head, and without the best few "
                "together, their output replaced by its mean over other sentences or by zero."
            )
        parts += [_accuracy(report, where), Text(f"{explained}\n")]
    parts += [_values(report, where), Text()]
    for score in report.relations:
        parts += [_grid(score, report), Text()]
    parts += [Text(f"Note: {note}.") for note in report.notes]
    if not report.causal:
        parts.append(Text("Note: this model is bidirectional, so it is tested at the word itself."))
    return Group(*parts)


def _attention(report: HeadReport, where: Where) -> RenderableType:
    rows = []
    for score in report.relations:
        best = score.heads[score.best]
        numbers = (best.distractor.mean, score.uniform, best.shuffled.mean, score.untrained)
        shown = [drawing.HIDDEN if n is None else drawing.number(n, 2) for n in numbers]
        rows.append([score.relation, where(best), _with_interval(best.key), *shown])
    head = ["Attention", "head", "key", "other", "uniform", "shuffled", "untrained"]
    return drawing.FittingTable(head, rows, drop=[5, 4, 6, 3, 2], more=_MORE)


def _with_interval(value: Estimate) -> str:
    return f"{value.mean:.2f} ± {(value.high - value.low) / 2:.2f}"


def _points(value: Estimate | None) -> str:
    if value is None:
        return drawing.HIDDEN
    return f"{100 * value.mean:.0f} ± {50 * (value.high - value.low):.0f}"


def _accuracy(report: HeadReport, where: Where) -> RenderableType:
    rows = []
    for score in report.relations:
        if score.accuracy is None:
            continue
        best = score.heads[score.best]
        alone, few = best.without or {}, score.without_few or {}
        cells = [alone.get("mean"), alone.get("zero"), few.get("mean"), few.get("zero")]
        together = " ".join(where(score.heads[i]) for i in score.few)
        drops = [_points(cell) for cell in cells]
        right = drawing.number(score.accuracy.mean, 2)
        rows.append([score.relation, right, where(best), *drops[:2], together, *drops[2:]])
    head = ["Accuracy", "right", "without", "mean", "zero", "together", "mean", "zero"]
    return drawing.FittingTable(head, rows, drop=[7, 6, 5, 4, 3, 2], more=_MORE)


def _values(report: HeadReport, where: Where) -> RenderableType:
    """Attention on the key by feature value: the chosen head, and the best head for the value."""
    rows = []
    for score in report.relations:
        chosen = score.heads[score.best]
        if len(chosen.by_value) < 2:
            continue
        for value, weight in chosen.by_value.items():
            best = score.heads[score.best_by_value[value]]
            right = score.accuracy_by_value.get(value)
            cells = [drawing.number(weight, 2), where(best), f"{best.by_value[value]:.2f}"]
            cells.append(drawing.HIDDEN if right is None else f"{right:.2f}")
            rows.append([f"{score.relation}, {value}", where(chosen), *cells])
    head = ["By feature value", "head", "key", "its best", "key", "right"]
    return drawing.FittingTable(head, rows, drop=[4, 3, 5, 2], more=_MORE)


def _grid(score: RelationScore, report: HeadReport) -> RenderableType:
    """Attention on the key, one row per layer and one column per head."""
    values = _matrix(score, report)
    most = max(len(row) for row in values)
    hidden = [[column >= len(row) for column in range(most)] for row in values]
    padded = [row + [0.0] * (most - len(row)) for row in values]
    return Group(
        Text(f"{score.relation}: {score.about}"),
        drawing.Matrix(
            padded,
            [f"layer {number}" for number in range(len(values))],
            [f"head {number}" for number in range(most)],
            hidden=hidden,
            limit=48,
        ),
    )


def _matrix(score: RelationScore, report: HeadReport) -> list[list[float]]:
    return [[h.key.mean for h in score.heads if h.layer == layer] for layer in report.layers]


def save_grids(report: HeadReport, path: Path) -> None:
    """Write a figure with one layers × heads grid per relation: attention on the key.

    Raises:
        ImportError: Matplotlib is not installed.
        ValueError: The file extension is not supported.
    """
    panels = []
    for score in report.relations:
        values = _matrix(score, report)
        best = score.heads[score.best]
        title = f"{score.relation}: {report.layers.index(best.layer)}.{best.head} chosen, "
        panels.append(
            figures.Panel(
                values,
                Axis("layer", len(values), [str(i) for i in range(len(values))]),
                Axis("head", len(values[0]), [str(i) for i in range(len(values[0]))]),
                title=f"{title}{best.key.mean:.2f}",
            )
        )
    figures.write(figures.figure(panels, legend="attention on the key"), path)
