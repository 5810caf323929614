"""What several commands share: the `--model` option, text files, the progress bar."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.progress import Progress

INTERRUPTED = 130  # what a shell reports after Ctrl-C
GPT2_HELP = (
    "english or grammar, which come with Clearhead; a folder of `clearhead train`; or a GPT-2: a "
    "folder, a file or a name on the hub. [default: english]"
)

GPT2Option = Annotated[
    str | None,
    typer.Option(metavar="NAME_OR_DIR", help=GPT2_HELP, show_default=False),
]
CheckpointOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME_OR_DIR",
        help="english or grammar, which come with Clearhead; a folder of `clearhead train`; or a "
        "Hugging Face checkpoint with its tokenizer: a folder or a name on the hub. "
        "[default: english]",
        show_default=False,
    ),
]


def read_text(path: Path) -> str:
    """The content of `--text FILE`."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"--text {path}: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"--text {path}: not text in UTF-8 (byte {error.start}).") from None


def report_truncation(tokens: int, used: int) -> None:
    """Print a note if the model reads only the beginning of the text."""
    if used < tokens:
        print(
            f"Note: the text has {tokens:,} tokens, but the model accepts {used:,}: "
            f"only the first {used:,} are used.",
            file=sys.stderr,
        )


def progress_bar() -> Progress:
    """Description, bar, count and elapsed time, on stderr if that is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from clearhead import drawing

    err = drawing.console(sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=16), MofNCompleteColumn())
    return Progress(
        *columns, TimeElapsedColumn(), console=err, transient=True, disable=not err.is_terminal
    )
