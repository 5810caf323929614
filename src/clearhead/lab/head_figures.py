"""Tables and pictures of the lab: heads in layers × heads grids, and curves of training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from clearhead import drawing

if TYPE_CHECKING:
    from clearhead.lab.head_report import Estimate, HeadReport, HeadScore, RelationScore
    from clearhead.training.loop import Curve

    Where = Callable[[HeadScore], str]

_MORE = "--json has all."  # of the columns


def draw_report(report: HeadReport) -> RenderableType:
    """The tables: attention, accuracy without heads, feature values; then the grids."""
    place = {layer: number for number, layer in enumerate(report.layers)}

    def where(head: HeadScore) -> str:
        return f"{place[head.layer]}.{head.head}"

    parts: list[RenderableType] = [
        Text(f"What the heads of {drawing.visible(report.model)} do", style="bold"),
        Text("Chosen in one half of the sentences, measured in the other; ± is 95 %.\n"),
        _attention(report, where),
        Text(
            "head: layer.head, from 0. key: attention on the word that decides; other: on one that "
            "could be taken for it; shuffled: where the key stands in another sentence; untrained: "
            "on the key, by the best head of a model before training.\n"
        ),
    ]
    if any(score.accuracy is not None for score in report.relations):
        parts += [_accuracy(report, where), Text("right: how often the right word wins.")]
        if any(score.without_few is not None for score in report.relations):
            words = "Then points lost without the head, and without the best few together: their "
            parts.append(Text(words + "part set to its mean over other sentences, or to zero."))
        parts.append(Text())
    parts += [_values(report, where), Text()]
    for score in report.relations:
        parts += [_grid(score, report), Text()]
    parts += [Text(f"Note: {note}.") for note in report.notes]
    if not report.causal:
        parts.append(Text("Note: this model sees both sides, so it is asked at the word itself."))
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
    """Attention on the key by feature value: of the chosen head, and of the best for the value."""
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
    filled = [row + [0.0] * (most - len(row)) for row in values]
    return Group(
        Text(f"{score.relation}: {score.about}"),
        drawing.Matrix(
            filled,
            [f"layer {number}" for number in range(len(values))],
            [f"head {number}" for number in range(most)],
            hidden=hidden,
            limit=48,
        ),
    )


def _matrix(score: RelationScore, report: HeadReport) -> list[list[float]]:
    return [[h.key.mean for h in score.heads if h.layer == layer] for layer in report.layers]


# Files.


def save_grids(report: HeadReport, path: Path) -> None:
    """One grid per relation: a row for each layer, a column for each head, attention on the key.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: the end of the name is none that a figure can have.
    """
    from clearhead.drawing import Axis, figures

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


def save_curves(curves: Mapping[int, Curve], path: Path) -> None:
    """Loss above the floor, and the relations' accuracy, while training; by seed.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    from clearhead.drawing import figures

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    floor = 0.0
    for place, (seed, curve) in enumerate(curves.items()):
        style = ("-", "--", ":", "-.")[place % 4]
        steps = [look["step"] for look in curve.looks]
        floor = curve.looks[-1]["floor"]
        left.plot(steps, [look["loss"] for look in curve.looks], style, label=f"seed {seed}")
        for number, relation in enumerate(curve.looks[-1]["accuracy"]):
            shares = [look["accuracy"][relation] for look in curve.looks]
            label = relation if place == 0 else None
            right.plot(steps, shares, style, color=f"C{number}", label=label)
    left.axhline(floor, color="black", linewidth=1, label=f"the grammar's entropy, {floor:.3f}")
    left.set(xlabel="step", ylabel="loss on fresh sentences, nats a token")
    left.legend(fontsize=7)
    right.set(xlabel="step", ylabel="right answers, held-out pairs", ylim=(-0.02, 1.02))
    right.legend(fontsize=7)
    figures.write(figure, path)
