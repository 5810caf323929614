"""`clearhead train`: train the small grammar model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearhead.atomic_files import check_folder
from clearhead.cli.shared import INTERRUPTED, progress_bar

if TYPE_CHECKING:
    from clearhead.training.loop import Curve

EXAMPLE = "clearhead train --seeds 3 --out my-lab"


def train(
    seeds: Annotated[
        int, typer.Option(metavar="N", min=1, max=64, help="Train N models: seeds 0, 1, 2, ...")
    ] = 1,
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Steps per model.")] = 2000,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder for models, curves and figures.")
    ] = Path("clearhead-train"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted run in this folder.")
    ] = False,
) -> int:
    """Train the small grammar model, in about two minutes.

    The model learns a small grammar whose relations between words are known, so that what its heads
    do can be measured. Each seed gets a folder with model.safetensors, a checkpoint and a report on
    its heads. A run can be interrupted at any point; with --resume it continues and gives the same
    curve, bit for bit.
    """
    check_folder(out, "--out")
    folders = [out / f"seed-{seed}" for seed in range(seeds)]
    started = [folder for folder in folders if any(folder.glob("*.safetensors"))]
    if started and not resume:
        raise ValueError(
            f"{started[0]}: this folder already holds a run.\n"
            "  Continue it with --resume, or start a new one with another --out DIR."
        )
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)

    from clearhead import drawing
    from clearhead.lab import seed_runs

    try:
        curves = _train_all(folders, steps, resume)
    except KeyboardInterrupt:
        print(_interrupted(out, folders, steps), file=sys.stderr)
        return INTERRUPTED
    screen = drawing.console()
    screen.print(seed_runs.draw_summary(out, curves))
    picture = out / "training.svg"
    try:
        seed_runs.save_curves(curves, picture)
    except ImportError as error:
        print(error, file=sys.stderr)
    else:
        screen.print(f"\nCurves: {picture}")
    screen.print(f"In Python: model, words = clearhead.lab.load({str(folders[0])!r})")
    screen.print(f'Next: clearhead explain --model {folders[0]} "the cat sat on the mat"')
    return 0


def _train_all(folders: Sequence[Path], steps: int, resume: bool) -> dict[int, Curve]:
    """Train each seed in its folder, then measure the heads of all, with a progress bar."""
    from clearhead.lab import seed_runs
    from clearhead.lab.grammar_training import GrammarSettings

    with progress_bar() as progress:
        curves: dict[int, Curve] = {}
        for seed, folder in enumerate(folders):
            task = progress.add_task(f"seed {seed}: writing sentences", total=steps)

            def on_step(done: int, curve: Curve, task: int = task, seed: int = seed) -> None:
                text = f"seed {seed}: {seed_runs.progress_text(curve)}"
                progress.update(task, completed=done, description=text)  # type: ignore[arg-type]  # TaskID is an int

            settings = GrammarSettings(seed=seed, steps=steps)
            curves[seed] = seed_runs.train_seed(settings, folder, resume=resume, on_step=on_step)
        task = progress.add_task("Measuring the heads", total=len(folders))
        for folder in folders:
            seed_runs.measure_heads(folder)
            progress.advance(task)
    return curves


def _interrupted(out: Path, folders: Sequence[Path], steps: int) -> str:
    """What an interrupted run has saved, and how to resume it."""
    from clearhead.lab.seed_runs import saved_steps

    done = {seed: saved_steps(folder) for seed, folder in enumerate(folders)}
    saved = [f"seed {seed} to step {step:,} of {steps:,}" for seed, step in done.items() if step]
    if not saved:
        return f"\nInterrupted before the first checkpoint: nothing is saved in {out}."
    return (
        f"\nInterrupted. Saved in {out}: {', '.join(saved)}.\n"
        f"Resume: clearhead train --seeds {len(folders)} --steps {steps} --out {out} --resume"
    )
