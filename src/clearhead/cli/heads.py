"""`clearhead heads`: what each head of a model attends to."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearhead.atomic_files import beside, check_place
from clearhead.cli.progress import progress_bar

if TYPE_CHECKING:
    from rich.progress import Progress

    from clearhead.lab.head_report import HeadReport

EXAMPLE = 'clearhead heads "the cat sat on the mat" --layer "h.1.*" --sort previous'


class Column(StrEnum):
    """The numbers in the table of heads."""

    ENTROPY = "entropy"
    AWAY = "away"
    PREVIOUS = "previous"
    FIRST = "first"
    SAME = "same"
    INDUCTION = "induction"


def heads(
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT",
            help="The text. Without it and --model: sentences whose relations are known.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A local Hugging Face checkpoint, with its tokenizer, or what `clearhead train` "
            "wrote. [default: the small trained model that comes with Clearhead]",
            show_default=False,
        ),
    ] = None,
    relations: Annotated[
        bool,
        typer.Option(
            "--relations",
            help="Measure attention on known relations, and what is lost without a head.",
        ),
    ] = False,
    sentences: Annotated[
        int, typer.Option(metavar="N", min=8, help="How many for each known relation.")
    ] = 400,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="Known relations as a figure (.svg, .png, .pdf)."
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--text", metavar="FILE", help="Read the text from a file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, for programs.")] = False,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write the table there, too.")
    ] = None,
    layer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Only the layers with such a name, as h.3.attn or h.*.attn; may be repeated.",
            show_default=False,
        ),
    ] = None,
    sort: Annotated[
        Column | None,
        typer.Option(help="The largest number of this column first.", show_default=False),
    ] = None,
) -> None:
    """Show what each head of a model looks at.

    With TEXT: in that text. Without it, of the small model that comes with Clearhead (of others:
    with --relations): in sentences whose relations are known, and what is lost without a head.
    """
    if relations or (model is None and text is None and file is None):
        if text is not None or file is not None or csv is not None:
            raise ValueError(
                "--relations brings its own sentences: give it no TEXT, no --text and no --csv."
            )
        if layer or sort is not None:
            raise ValueError("--layer and --sort are for the table of a text: give one as TEXT.")
        measure_relations(model, sentences=sentences, as_json=as_json, picture=out)
        return
    if out is not None:
        raise ValueError("--out is the figure of known relations: it goes with --relations.")
    given = _text(text, file)
    if csv is not None:
        check_place(csv, "--csv")
    from rich.progress import BarColumn, Progress, TextColumn

    from clearhead import drawing
    from clearhead.models import find_model
    from clearhead.watcher.one_text import see

    err = drawing.console(sys.stderr)
    columns = TextColumn("{task.description}"), BarColumn()
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("Loading the model", total=None)
        loaded = find_model(model, any_architecture=True)
        reading = loaded.read(given)
        tokens, ids = len(reading.ids), reading.tensor(loaded.longest)
        progress.update(task, description="Looking at its heads", total=1.0)
        seen = see(loaded.network, ids, layer or None, name=loaded.name)
        table = seen.heads(ids, on_progress=lambda share: progress.update(task, completed=share))
    table = table if sort is None else table.sorted(sort.value)
    used = ids.shape[1]
    if used < tokens:
        print(
            f"Note: TEXT has {tokens:,} tokens and the model takes {used:,}: "
            f"the first {used:,} are used.",
            file=sys.stderr,
        )
    if csv is not None:
        with beside(csv) as whole:
            whole.write_text(table.to_csv(), encoding="utf-8")
        print(f"Wrote {csv}", file=sys.stderr)
    if as_json:
        found = {**table.to_json(), "folder": loaded.name, "tokens": tokens, "tokens_used": used}
        print(json.dumps(found, allow_nan=False))
    else:
        drawing.console().print(table)


def _text(words: Sequence[str] | None, file: Path | None) -> str:
    """The text that was given as an argument or as a file."""
    if (words is None) == (file is None):
        message = "Give one text: as TEXT, or as a file with --text FILE"
        if words is not None:
            raise ValueError(f"{message}, not both.")
        raise ValueError(
            f"{message}.\n  Only the lab's model needs none: it is shown sentences whose relations "
            "are known, which it was trained on;\n  for this one say --relations."
        )
    if file is None:
        return " ".join(words or ())
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"--text {file}: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"--text {file}: not text in UTF-8 (byte {error.start}).") from None


def measure_relations(
    model: Path | None, *, sentences: int, as_json: bool, picture: Path | None
) -> None:
    """Measure what the heads do with the grammar's relations, and show it.

    Args:
        model: A checkpoint's folder; None for the model in the box.
        sentences: How many for each relation.
        as_json: For programs.
        picture: Where the grids go, too.
    """
    if picture is not None:
        _check_picture(picture)
    with progress_bar() as progress:
        report = _measured(model, sentences, progress)
    if picture is not None:
        from clearhead.lab.head_figures import save_grids

        save_grids(report, picture)
        print(f"Wrote {picture}", file=sys.stderr)
    if as_json:
        print(json.dumps(report.to_json(), allow_nan=False))
    else:
        from clearhead import drawing

        drawing.console().print(report)


def _check_picture(path: Path) -> None:
    """Before the long work, not after it."""
    from clearhead.drawing import figures

    try:
        figures.check_path(path)
        import matplotlib  # noqa: F401  # whether it is there
    except FileNotFoundError as error:
        raise ValueError(f"--out {error}") from None
    except ImportError:
        raise ValueError(
            f"--out {path}: a figure needs matplotlib, which is not installed.\n"
            "  Install it: pip install 'clearhead[plot]'"
        ) from None


def _measured(model: Path | None, sentences: int, progress: Progress) -> HeadReport:
    task = progress.add_task("Loading the model", total=1.0)
    from clearhead.lab.head_report import measure
    from clearhead.lab.piece_reader import PieceReader
    from clearhead.lab.relations import Reader, readers
    from clearhead.models import find_model

    def on_progress(name: str, share: float) -> None:
        progress.update(task, description=f"Measuring: {name}", completed=share)

    loaded = find_model(model, any_architecture=True)
    reader: Reader
    untrained: Reader
    if loaded.reader.kind == "word":
        words = loaded.reader.tokenizer
        reader, untrained = readers(loaded.gpt2, words, loaded.name)
        vocabulary = words.vocab_size
    else:
        reader = pieces = PieceReader(loaded)
        untrained, vocabulary = pieces.untrained(), pieces.vocabulary
    return measure(
        reader, vocabulary, untrained=untrained, sentences=sentences, on_progress=on_progress
    )
