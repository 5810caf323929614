"""What several commands share: options, the text they read, notes, the progress bar.

An option that means the same in several commands is defined here, with its one help text.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.progress import Progress

INTERRUPTED = 130  # what a shell reports after Ctrl-C
SHIPPED = ("english", "grammar")  # as in clearhead.models, which imports torch
_MAX_SEED = 2**32 - 1
_LAYER = "by its number from 0, its name or a part of it (h.3)"


def _check_seed(seed: int | None) -> int | None:
    if seed is not None and not 0 <= seed <= _MAX_SEED:
        raise typer.BadParameter(f"expected 0 to {_MAX_SEED}, got {seed}.")
    return seed


def shipped_models() -> list[str]:
    """What the shell offers after `--model`."""
    return list(SHIPPED)


def text_argument(help_text: str) -> Any:
    """TEXT, as words or in quotes."""
    return typer.Argument(
        metavar="TEXT", help=f"{help_text} A dash (-) reads standard input.", show_default=False
    )


def out_option(help_text: str, metavar: str = "FILE") -> Any:
    """`-o`, `--out`: where a command writes."""
    return typer.Option("--out", "-o", metavar=metavar, help=help_text)


def seed_option(help_text: str, section: str | None = None) -> Any:
    """`--seed N`."""
    return typer.Option(
        "--seed", metavar="N", help=help_text, callback=_check_seed, rich_help_panel=section
    )


def layer_option(beginning: str, end: str, section: str | None = None) -> Any:
    """`--layer`: which layer, and what else the command accepts."""
    return typer.Option(
        "--layer",
        metavar="LAYER",
        help=f"{beginning}, {_LAYER}{end}",
        show_default=False,
        rich_help_panel=section,
    )


ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME_OR_DIR",
        help="english or grammar, which come with Clearhead; a folder of `clearhead train`; or a "
        "checkpoint: a folder, a file or a name on the hub. [default: english]",
        show_default=False,
        autocompletion=shipped_models,
    ),
]
TextOption = Annotated[
    Path | None,
    typer.Option("--text", metavar="FILE", help="Read the text from a file instead."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for programs.")]
LayersOption = Annotated[
    list[str] | None,
    layer_option(
        "Only this layer",
        "; a pattern (h.*.attn) for several. May be repeated. [default: all]",
    ),
]


def read_text(words: Sequence[str] | None, file: Path | None) -> str | None:
    """The text of TEXT or `--text FILE`, where a dash is standard input; None if neither is given.

    A line break at the end of a file does not count.

    Raises:
        ValueError: Both are given, or the file cannot be read.
    """
    if words and file is not None:
        raise ValueError("Give one text: as TEXT, or as a file with --text FILE, not both.")
    if file == Path("-") or (words and list(words) == ["-"]):
        return _standard_input().rstrip("\r\n")
    if file is None:
        return " ".join(words) if words else None
    try:
        return file.read_text(encoding="utf-8").rstrip("\r\n")
    except FileNotFoundError as error:
        raise ValueError(
            f"--text {file}: {error.strerror}.\n  Looked for {file.absolute()}."
        ) from None
    except OSError as error:
        raise ValueError(f"--text {file}: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"--text {file}: not text in UTF-8 (byte {error.start}).") from None


def _standard_input() -> str:
    if sys.stdin is None:
        raise ValueError("There is no standard input to read: give a TEXT, or --text FILE.")
    if sys.stdin.isatty():
        print("Type the text; end it with Ctrl-D on a line of its own.", file=sys.stderr)
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ValueError(f"Standard input: not text in UTF-8 (byte {error.start}).") from None


def selected_layers(layers: Iterable[str] | None) -> list[str | int] | None:
    """What `--layer` selects where it may be repeated; None for all layers."""
    chosen = list(layers or ())
    if not chosen or "all" in chosen:
        return None
    return [int(one) if one.isdecimal() else one for one in chosen]


def report_notes(notes: Iterable[str]) -> None:
    """Print what the user should know about the text, to stderr."""
    for note in notes:
        print(f"Note: {note}", file=sys.stderr)


def report_truncation(tokens: int, used: int) -> None:
    """Print a note if the model reads only the beginning of the text."""
    if used < tokens:
        report_notes(
            [
                f"the text has {tokens:,} tokens, but the model accepts {used:,}: "
                f"only the first {used:,} are used."
            ]
        )


def progress_bar() -> Progress:
    """Description, bar, share and elapsed time, on stderr if that is a terminal."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    from clearhead import drawing

    err = drawing.console(sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=16), TaskProgressColumn())
    return Progress(
        *columns, TimeElapsedColumn(), console=err, transient=True, disable=not err.is_terminal
    )
