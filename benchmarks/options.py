"""What the commands of `clearhead bench` share. Importing this file imports no torch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

import typer

from clearhead.atomic_files import check_place


class Dtype(StrEnum):
    """The dtypes that have a tolerance."""

    float64 = "float64"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Device(StrEnum):
    """Where to run."""

    cpu = "cpu"
    cuda = "cuda"


def check_file(out: Path | None) -> None:
    """Refuse what cannot be written before anything is measured for it."""
    if out is not None:
        check_place(out, "--out")


def check_device(device: Device) -> None:
    """Refuse a GPU that is not there."""
    import torch

    if device is Device.cuda and not torch.cuda.is_available():
        raise typer.BadParameter("torch sees no CUDA device here.", param_hint="--device")


@contextmanager
def progress() -> Iterator[Callable[[str, int], Callable[[], None]]]:
    """A progress bar on stderr; gives a function that names the case and its number of steps."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    errors = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    ) as progress:
        task = progress.add_task("")

        def say(title: str, steps: int) -> Callable[[], None]:
            progress.reset(task, description=title, total=steps)
            return lambda: progress.advance(task)

        yield say
