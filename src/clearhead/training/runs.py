"""Runs of `clearhead train`: one folder per seed, what its heads do, and which seed is the best."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from clearhead import drawing
from clearhead.atomic_files import beside
from clearhead.lab import grammar, head_report
from clearhead.lab.head_report import Estimate, HeadReport, HeadScore, RelationScore
from clearhead.lab.relations import readers
from clearhead.lab.vocabulary import vocabulary
from clearhead.models.trained_model import CHECKPOINT, MODEL, load_model, read_about, save_model
from clearhead.training.loop import Curve, Settings, train

HEADS = "heads.json"
_MOST_BYTES = 800_000


@dataclass(frozen=True)
class Bar:
    """Something that the shipped model must reach.

    Attributes:
        what: In words.
        least: The least (or, for a size, the most) that counts as reached.
        value: What was measured.
        reached: Whether it is.
    """

    what: str
    least: float
    value: float
    reached: bool


def one(
    seed: int,
    steps: int,
    folder: Path,
    *,
    resume: bool = False,
    on_step: Callable[[int, Curve], None] | None = None,
) -> Curve:
    """Train one seed, and write its model beside the checkpoint."""
    settings = Settings(seed=seed, steps=steps)
    model, curve = train(settings, folder, resume=resume, on_step=on_step)
    about = {"seed": seed, "steps": steps, "last_look": curve.looks[-1]}
    save_model(folder / MODEL, model, vocabulary(), about)
    return curve


def measure(folder: Path, *, sentences: int = 400) -> HeadReport:
    """What the heads of this folder's model do; also written to heads.json there."""
    model, tokens = load_model(folder / MODEL)
    reader, untrained = readers(model, tokens)
    report = head_report.measure(
        reader, tokens.vocab_size, untrained=untrained, sentences=sentences
    )
    text = json.dumps(report.to_json(), allow_nan=False, indent=1)
    with beside(folder / HEADS) as file:
        file.write_text(text + "\n", encoding="utf-8")
    return report


def read_report(file: Path) -> HeadReport:
    """The report that `measure` wrote."""
    return parse_report(file.read_text(encoding="utf-8"))


def parse_report(text: str) -> HeadReport:
    """The report whose JSON this is."""
    found = json.loads(text)
    return HeadReport(
        found["model"],
        found["causal"],
        found["layers"],
        found["notes"],
        [_relation_score(each) for each in found["relations"]],
    )


def _relation_score(found: dict[str, Any]) -> RelationScore:
    def estimates(given: dict[str, Any] | None) -> dict[str, Estimate] | None:
        return None if given is None else {key: Estimate(**each) for key, each in given.items()}

    def score(head: dict[str, Any]) -> HeadScore:
        three = {name: Estimate(**head[name]) for name in ("key", "distractor", "shuffled")}
        return HeadScore(**{**head, **three, "without": estimates(head["without"])})

    accuracy = found["accuracy"]
    changed = {
        "accuracy": None if accuracy is None else Estimate(**accuracy),
        "without_few": estimates(found["without_few"]),
        "heads": [score(head) for head in found["heads"]],
    }
    return RelationScore(**{**found, **changed})


def bars(report: HeadReport, size: int) -> list[Bar]:
    """What the shipped model must reach, and what this one reaches.

    Args:
        report: What its heads do.
        size: The bytes of its file.
    """

    def at_least(what: str, least: float, value: float) -> Bar:
        return Bar(what, least, value, value >= least)

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
    found.append(Bar("bytes of the file, at most", _MOST_BYTES, size, size <= _MOST_BYTES))
    return found


def reached(out: Path, seed: int) -> list[Bar]:
    """The bars of one seed of a run."""
    folder = out / f"seed-{seed}"
    return bars(read_report(folder / HEADS), (folder / MODEL).stat().st_size)


def best_seed(out: Path, losses: Mapping[int, float]) -> int:
    """The seed that reaches most bars; of these, the one with the least loss."""

    def rank(seed: int) -> tuple[int, float]:
        return -sum(bar.reached for bar in reached(out, seed)), losses[seed]

    return min(losses, key=rank)


def kept(out: Path, folders: Sequence[Path], steps: int) -> str:
    """What a run that was stopped has left, and how to go on with it."""
    stands = []
    for seed, folder in enumerate(folders):
        about = read_about(folder / CHECKPOINT)
        if about is not None:
            stands.append(f"seed {seed} to step {about['looks'][-1]['step']:,} of {steps:,}")
    if not stands:
        return f"\nStopped before the first checkpoint: nothing is kept in {out}."
    return (
        f"\nStopped. Kept in {out}: {', '.join(stands)}.\n"
        f"Go on: clearhead train --seeds {len(folders)} --steps {steps} --out {out} --resume"
    )


def in_words(curve: Curve) -> str:
    """How training stands, in short lines: loss, floor, and the accuracy of each relation."""
    if not curve.loss:
        return "begins"
    last = curve.loss[-20:]
    floor = curve.floor[-20:]
    words = f"loss {sum(last) / len(last):.3f}, floor {sum(floor) / len(floor):.3f}"
    if curve.looks:
        shares = [f"{name[:4]} {share:.2f}" for name, share in curve.looks[-1]["accuracy"].items()]
        words += f"\n{' '.join(shares[:4])}\n{' '.join(shares[4:])}"
    return words


def summary(out: Path, curves: Mapping[int, Curve]) -> RenderableType:
    """One row per seed, and the bars of the best."""
    rows = []
    for seed, curve in curves.items():
        look = curve.looks[-1]
        shares = [f"{share:.2f}" for share in look["accuracy"].values()]
        each = reached(out, seed)
        count = f"{sum(bar.reached for bar in each)} of {len(each)}"
        rows.append([str(seed), f"{look['loss']:.3f}", f"{look['floor']:.3f}", *shares, count])
    names = [name[:4] for name in grammar.RELATIONS]
    best = best_seed(out, {seed: curve.looks[-1]["loss"] for seed, curve in curves.items()})
    shown = [
        [bar.what, f"{bar.least:,g}", f"{bar.value:,.2f}", "yes" if bar.reached else "NO"]
        for bar in reached(out, best)
    ]
    return Group(
        drawing.FittingTable(
            ["seed", "loss", "floor", *names, "bars"], rows, drop=[*range(9, 2, -1)]
        ),
        Text(
            "Loss and floor: nats per token on fresh sentences; then right answers, held-out pairs."
        ),
        Text(f"\nThe best: seed {best}, {out / f'seed-{best}' / MODEL}\n"),
        drawing.table(["bar", "asked", "measured", "reached"], shown),
    )
