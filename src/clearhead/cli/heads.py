"""`clearhead heads`: what each head of a model attends to."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from clearhead.atomic_files import beside, check_place
from clearhead.cli.shared import (
    JsonOption,
    LayersOption,
    ModelOption,
    TextOption,
    out_option,
    progress_bar,
    read_text,
    report_notes,
    report_truncation,
    selected_layers,
    text_argument,
)

EXAMPLE = 'clearhead heads "the cat sat on the mat" --layer 1 --sort previous'
Column = Literal["entropy", "away", "previous", "first", "same", "induction"]


def heads(
    text: Annotated[
        list[str] | None,
        text_argument("The text. Without TEXT: sentences that come with Clearhead."),
    ] = None,
    model: ModelOption = None,
    layer: LayersOption = None,
    sort: Annotated[
        Column | None,
        typer.Option(
            metavar="COLUMN",
            help="Sort by this column, largest first: entropy, away, previous, first, same or "
            "induction.",
            show_default=False,
        ),
    ] = None,
    ablate: Annotated[
        bool,
        typer.Option(
            "--ablate", help="Print how much the loss on the text rises without each head."
        ),
    ] = False,
    relations: Annotated[
        bool,
        typer.Option(
            "--relations",
            help="Measure attention on the known relations of the grammar's sentences, and the "
            "accuracy lost without a head. Implied by --model grammar without TEXT.",
        ),
    ] = False,
    sentences: Annotated[
        int, typer.Option(metavar="N", min=8, help="The number of sentences per relation.")
    ] = 400,
    out: Annotated[
        Path | None,
        out_option(
            "Also write the maps of the text as a page (.html) or a figure (.svg, .png, .pdf); "
            "with --ablate or --relations a figure of layers × heads."
        ),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Also write the table as CSV.")
    ] = None,
    file: TextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what each head of a model attends to.

    With TEXT: in that text. Without TEXT: in English sentences that come with Clearhead, with the
    loss without each head and minimal pairs such as "The author near the doctors was / were".
    --model accepts any Hugging Face checkpoint with its tokenizer.
    """
    given = read_text(text, file)
    layers = selected_layers(layer)
    if given is None and not relations and not ablate:
        if layer or sort is not None or csv is not None:
            raise ValueError(
                "--layer, --sort and --csv apply to the table of a text: give a TEXT.\n"
                f"  Try: {EXAMPLE}"
            )
        _own_sentences(model, sentences=sentences, as_json=as_json, picture=out)
    elif relations:
        if given is not None or csv is not None:
            raise ValueError(
                "--relations uses its own sentences: it takes no TEXT, no --text and no --csv."
            )
        if layer or sort is not None:
            raise ValueError("--layer and --sort apply to the table of a text: give a TEXT.")
        _relations(model, sentences=sentences, as_json=as_json, picture=out)
    elif given is None:
        _refuse_no_text()
    elif ablate:
        if sort is not None or csv is not None:
            raise ValueError("--sort and --csv apply to the table without --ablate.")
        _ablate(given, model, layers, as_json=as_json, picture=out)
    else:
        _one_text(given, model, layers, sort, as_json=as_json, csv=csv, out=out)


def _own_sentences(
    model: str | None, *, sentences: int, as_json: bool, picture: Path | None
) -> None:
    """Measure heads without a text from the user: on the grammar's sentences, or on English."""
    from clearhead.models import find_model

    loaded = find_model(model, any_architecture=True)
    if loaded.reader.kind == "word":
        _relations(model, sentences=sentences, as_json=as_json, picture=picture)
        return
    from clearhead.gpt2.model import GPT2

    if not isinstance(loaded.model, GPT2):
        _refuse_no_text()
    if picture is not None:
        raise ValueError("--out writes the maps of a text: give a TEXT.")
    from clearhead import drawing
    from clearhead.lab.text_report import measure_text

    config = loaded.gpt2.config
    count = config["num_layers"] * config["num_heads"]
    print(
        f"Measuring {count} heads of {loaded.name}, each removed once: a minute or two for the "
        "English model, longer for larger ones. With a TEXT it takes seconds.",
        file=sys.stderr,
    )
    with progress_bar() as progress:
        task = progress.add_task("Measuring its heads", total=1.0)

        def on_progress(what: str, share: float) -> None:
            progress.update(task, description=f"Measuring {what}", completed=share)

        report = measure_text(loaded, on_progress=on_progress)
    if as_json:
        print(json.dumps(report.to_json(), allow_nan=False))
    else:
        drawing.console().print(report)


def _refuse_no_text() -> NoReturn:
    raise ValueError(
        "Give one text: as TEXT, or as a file with --text FILE.\n"
        "  To measure this model on sentences with known relations instead, use --relations."
    )


def _one_text(
    text: str,
    model: str | None,
    layers: Sequence[str | int] | None,
    sort: Column | None,
    *,
    as_json: bool,
    csv: Path | None,
    out: Path | None,
) -> None:
    """Print the table of heads for one text."""
    if csv is not None:
        check_place(csv, "--csv")
    if out is not None:
        check_place(out, "--out")
    from clearhead import drawing
    from clearhead.models import find_model
    from clearhead.watcher.one_text import see

    with progress_bar() as progress:
        task = progress.add_task("Loading the model", total=None)
        loaded = find_model(model, any_architecture=True)
        reading = loaded.read(text)
        tokens, ids = len(reading.ids), reading.tensor(loaded.longest)
        progress.update(task, description="Measuring its heads", total=1.0)
        seen = see(loaded.network, ids, layers, name=loaded.name)
        table = seen.heads(ids, on_progress=lambda share: progress.update(task, completed=share))
    table = table if sort is None else table.sorted(sort)
    used = ids.shape[1]
    report_notes(reading.notes)
    report_truncation(tokens, used)
    if csv is not None:
        with beside(csv) as draft:
            draft.write_text(table.to_csv(), encoding="utf-8")
        print(f"Wrote {csv}", file=sys.stderr)
    if out is not None:
        seen.save(out, tokens=reading.labels[:used], title=f"{loaded.name}: attention")
        print(f"Wrote {out}", file=sys.stderr)
    if as_json:
        found = {**table.to_json(), "folder": loaded.name, "tokens": tokens, "tokens_used": used}
        print(json.dumps(found, allow_nan=False))
    else:
        drawing.console().print(table)


def _ablate(
    text: str,
    model: str | None,
    layers: Sequence[str | int] | None,
    *,
    as_json: bool,
    picture: Path | None,
) -> None:
    """Print how much the loss on a text rises without each head."""
    if picture is not None:
        _check_picture(picture)
    from clearhead import drawing
    from clearhead.models import find_model
    from clearhead.watcher.head_losses import head_losses
    from clearhead.watcher.one_text import see

    with progress_bar() as progress:
        task = progress.add_task("Loading the model", total=None)
        loaded = find_model(model, any_architecture=True, language_model=True)
        reading = loaded.read(text)
        tokens, ids = len(reading.ids), reading.tensor(loaded.longest)
        progress.update(task, description="Removing one head at a time", total=1.0)
        seen = see(loaded.model, ids, layers, name=loaded.name)
        found = head_losses(
            loaded.model,
            ids,
            heads={name: seen[name].shape[1] for name in seen},
            name=loaded.name,
            on_progress=lambda share: progress.update(task, completed=share),
        )
    report_notes(reading.notes)
    report_truncation(tokens, ids.shape[1])
    if picture is not None:
        from clearhead.drawing import figures

        figures.write(found.figure(), picture)
        print(f"Wrote {picture}", file=sys.stderr)
    if as_json:
        print(json.dumps(found.to_json(), allow_nan=False))
    else:
        drawing.console().print(found)


def _relations(model: str | None, *, sentences: int, as_json: bool, picture: Path | None) -> None:
    """Measure heads on the grammar's relations, print the report and write the figure."""
    if picture is not None:
        _check_picture(picture)
    with progress_bar() as progress:
        task = progress.add_task("Loading the model", total=1.0)
        from clearhead.lab.grammar_readers import load_reader
        from clearhead.lab.head_report import draw_report, save_grids
        from clearhead.lab.head_scores import measure

        def on_progress(name: str, share: float) -> None:
            progress.update(task, description=f"Measuring: {name}", completed=share)

        reader = load_reader(model)
        report = measure(
            reader, untrained=reader.untrained(), sentences=sentences, on_progress=on_progress
        )
    if picture is not None:
        save_grids(report, picture)
        print(f"Wrote {picture}", file=sys.stderr)
    if as_json:
        print(json.dumps(report.to_json(), allow_nan=False))
    else:
        from clearhead import drawing

        drawing.console().print(draw_report(report))


def _check_picture(path: Path) -> None:
    """Check the path before the long work, not after it."""
    from clearhead.drawing import figures

    try:
        figures.check_path(path)
        figures.need_matplotlib()
    except FileNotFoundError as error:
        raise ValueError(f"--out {error}") from None
    except ImportError as error:
        raise ValueError(f"--out {path}: {error}") from None
