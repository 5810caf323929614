"""`clearhead train`: train the small grammar model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearhead.atomic_files import check_folder
from clearhead.cli.progress import progress_bar

if TYPE_CHECKING:
    from clearhead.training.loop import Curve

EXAMPLE = "clearhead train --seeds 3 --out my-lab"
_INTERRUPTED = 130  # what a shell reports after Ctrl-C


def train(
    seeds: Annotated[
        int, typer.Option(metavar="N", min=1, max=64, help="How many models: seeds 0, 1, 2, ...")
    ] = 1,
    steps: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many steps each is trained.")
    ] = 2000,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where models, curves and figures go.")
    ] = Path("clearhead-train"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a run in this folder was stopped.")
    ] = False,
) -> int:
    """Train the lab's small model, in about two minutes.

    It learns a small grammar, so that what its heads do can be measured. Each seed gives a folder
    with model.safetensors, a checkpoint and what its heads do. A run may be stopped at any moment;
    with --resume it goes on and gives the same curve, bit for bit.
    """
    check_folder(out, "--out")
    folders = [out / f"seed-{seed}" for seed in range(seeds)]
    begun = [folder for folder in folders if any(folder.glob("*.safetensors"))]
    if begun and not resume:
        raise ValueError(
            f"{begun[0]}: there is a run already.\n"
            "  Go on with it: --resume. Keep it and begin anew: another --out DIR."
        )
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)

    from clearhead import drawing
    from clearhead.lab import head_figures
    from clearhead.training import runs

    try:
        curves = _train_all(folders, steps, resume)
    except KeyboardInterrupt:
        print(runs.kept(out, folders, steps), file=sys.stderr)
        return _INTERRUPTED
    screen = drawing.console()
    screen.print(runs.summary(out, curves))
    picture = out / "training.svg"
    try:
        head_figures.save_curves(curves, picture)
    except ImportError as error:
        print(error, file=sys.stderr)
    else:
        screen.print(f"\nThe curves: {picture}")
    screen.print(f"In Python: model, words = clearhead.lab.load({str(folders[0])!r})")
    screen.print(f'Next: clearhead explain --model {folders[0]} "the cat sat on the mat"')
    return 0


def _train_all(folders: Sequence[Path], steps: int, resume: bool) -> dict[int, Curve]:
    """Train each seed in its folder, then look at the heads of all."""
    from clearhead.training import runs

    with progress_bar() as progress:
        curves: dict[int, Curve] = {}
        for seed, folder in enumerate(folders):
            task = progress.add_task(f"seed {seed}: writing sentences", total=steps)

            def on_step(done: int, curve: Curve, task: int = task, seed: int = seed) -> None:
                words = f"seed {seed}: {runs.in_words(curve)}"
                progress.update(task, completed=done, description=words)  # type: ignore[arg-type]  # TaskID is an int

            curves[seed] = runs.one(seed, steps, folder, resume=resume, on_step=on_step)
        task = progress.add_task("Looking at the heads", total=len(folders))
        for folder in folders:
            runs.measure(folder)
            progress.advance(task)
    return curves
