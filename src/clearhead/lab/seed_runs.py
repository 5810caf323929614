"""A run of `clearhead train`: one folder per seed, what its heads do, and which seed is best."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from clearhead import drawing
from clearhead.atomic_files import beside
from clearhead.drawing import figures
from clearhead.gpt2.model import GPT2
from clearhead.lab import grammar, head_scores
from clearhead.lab.grammar_readers import WordReader
from clearhead.lab.grammar_training import GrammarSettings, GrammarTask
from clearhead.lab.head_scores import HeadReport
from clearhead.lab.vocabulary import vocabulary
from clearhead.models.trained_model import (
    CHECKPOINT,
    MODEL,
    load_model,
    read_about,
    save_model,
)
from clearhead.training.loop import Curve, train

HEADS = "heads.json"
_MOST_BYTES = 800_000


@dataclass(frozen=True)
class Criterion:
    """A requirement that a model must meet to be shipped.

    Attributes:
        what: What is measured, in a few words.
        least: The least value that meets it; for the file size, the largest.
        value: What was measured.
        reached: Whether it is met.
    """

    what: str
    least: float
    value: float
    reached: bool


def train_seed(
    settings: GrammarSettings,
    folder: Path,
    *,
    resume: bool = False,
    on_step: Callable[[int, Curve, GPT2], None] | None = None,
) -> Curve:
    """Train one seed, and write its model next to the checkpoint.

    Args:
        settings: How to train, with the seed.
        folder: Where to write.
        resume: Continue from the checkpoint in the folder, if there is one.
        on_step: Called after every step with the number of steps done, the curve and the model.
    """
    model, curve = train(GrammarTask(settings), folder, resume=resume, on_step=on_step)
    last = curve.evaluations[-1]
    about = {"seed": settings.seed, "steps": settings.steps, "last_look": last}
    save_model(folder / MODEL, model, vocabulary(), about)
    return curve


def measure_heads(folder: Path, *, sentences: int = 400) -> HeadReport:
    """Measure the heads of a folder's model, and write the report to heads.json there."""
    reader = WordReader(*load_model(folder / MODEL))
    report = head_scores.measure(reader, untrained=reader.untrained(), sentences=sentences)
    text = json.dumps(report.to_json(), allow_nan=False, indent=1)
    with beside(folder / HEADS) as file:
        file.write_text(text + "\n", encoding="utf-8")
    return report


def judge(report: HeadReport, size: int) -> list[Criterion]:
    """The criteria for the shipped model, and what this model reaches.

    Args:
        report: What its heads do.
        size: The size of its file in bytes.
    """

    def at_least(what: str, least: float, value: float) -> Criterion:
        return Criterion(what, least, value, value >= least)

    found = []
    for name in ("subject", "pronoun", "possessive", "induction"):
        accuracy = report[name].accuracy
        assert accuracy is not None
        least = 0.85 if name == "induction" else 0.97
        found.append(at_least(f"{name}: right answers", least, accuracy.mean))
    for name, least, times in (("subject", 0.4, 2.0), ("possessive", 0.6, 3.0)):
        best = report[name].heads[report[name].best]
        found.append(at_least(f"{name}: attention of the chosen head", least, best.key.mean))
        ratio = best.key.mean / max(best.distractor.mean, 1e-9)
        found.append(at_least(f"{name}: times the attention on the distractor", times, ratio))
    score = report["possessive"]
    removed = score.heads[score.best].without
    assert removed is not None
    lost = removed["mean"].mean
    found.append(at_least("possessive: accuracy lost without the chosen head", 0.08, lost))
    score = report["induction"]
    weight = score.heads[score.best].key.mean
    found.append(at_least("induction: attention of the chosen head", 0.35, weight))
    found.append(Criterion("bytes of the file, at most", _MOST_BYTES, size, size <= _MOST_BYTES))
    return found


def judge_seed(out: Path, seed: int) -> list[Criterion]:
    """The criteria for one seed of a run whose heads are measured."""
    folder = out / f"seed-{seed}"
    report = HeadReport.from_json(json.loads((folder / HEADS).read_text(encoding="utf-8")))
    return judge(report, (folder / MODEL).stat().st_size)


def best_seed(out: Path, losses: Mapping[int, float]) -> int:
    """The seed that meets most criteria; among equals, the one with the lowest loss."""

    def rank(seed: int) -> tuple[int, float]:
        return -sum(criterion.reached for criterion in judge_seed(out, seed)), losses[seed]

    return min(losses, key=rank)


def saved_steps(folder: Path) -> int:
    """The step of the checkpoint in the folder of a seed; 0 if there is none."""
    about = read_about(folder / CHECKPOINT)
    return 0 if about is None else int(about["looks"][-1]["step"])


def progress_text(curve: Curve) -> str:
    """Loss, floor, and the accuracy of each relation, in three short lines."""
    last, floor = curve.loss[-20:], curve.floor[-20:]
    text = f"loss {sum(last) / len(last):.3f}, floor {sum(floor) / len(floor):.3f}"
    if curve.evaluations:
        accuracy = curve.evaluations[-1]["accuracy"]
        shares = [f"{name[:4]} {share:.2f}" for name, share in accuracy.items()]
        text += f"\n{' '.join(shares[:4])}\n{' '.join(shares[4:])}"
    return text


def draw_summary(out: Path, curves: Mapping[int, Curve]) -> RenderableType:
    """One row per seed, and the criteria of the best."""
    rows = []
    for seed, curve in curves.items():
        last = curve.evaluations[-1]
        shares = [f"{share:.2f}" for share in last["accuracy"].values()]
        criteria = judge_seed(out, seed)
        count = f"{sum(criterion.reached for criterion in criteria)} of {len(criteria)}"
        rows.append([str(seed), f"{last['loss']:.3f}", f"{last['floor']:.3f}", *shares, count])
    names = [name[:4] for name in grammar.RELATIONS]
    best = best_seed(out, {seed: curve.evaluations[-1]["loss"] for seed, curve in curves.items()})
    shown = [
        [each.what, f"{each.least:,g}", f"{each.value:,.2f}", "yes" if each.reached else "NO"]
        for each in judge_seed(out, best)
    ]
    return Group(
        drawing.FittingTable(
            ["seed", "loss", "floor", *names, "criteria"], rows, drop=[*range(9, 2, -1)]
        ),
        Text(
            "loss, floor: nats per token on new sentences; then the accuracy on held-out pairs of "
            "each relation."
        ),
        Text(f"\nBest seed: {best}, {out / f'seed-{best}' / MODEL}\n"),
        drawing.table(["criterion", "required", "measured", "reached"], shown),
    )


def save_curves(curves: Mapping[int, Curve], path: Path) -> None:
    """Write a figure of loss, floor and accuracy during training, by seed.

    Raises:
        ImportError: Matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    floor = 0.0
    for index, (seed, curve) in enumerate(curves.items()):
        style = ("-", "--", ":", "-.")[index % 4]
        steps = [each["step"] for each in curve.evaluations]
        floor = curve.evaluations[-1]["floor"]
        left.plot(steps, [each["loss"] for each in curve.evaluations], style, label=f"seed {seed}")
        for number, relation in enumerate(curve.evaluations[-1]["accuracy"]):
            shares = [each["accuracy"][relation] for each in curve.evaluations]
            label = relation if index == 0 else None
            right.plot(steps, shares, style, color=f"C{number}", label=label)
    left.axhline(floor, color="black", linewidth=1, label=f"entropy of the grammar, {floor:.3f}")
    left.set(xlabel="step", ylabel="loss on new sentences, nats per token")
    left.legend(fontsize=7)
    right.set(xlabel="step", ylabel="accuracy on held-out pairs", ylim=(-0.02, 1.02))
    right.legend(fontsize=7)
    figures.write(figure, path)
