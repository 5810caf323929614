"""`clearhead view`. Importing this file does not import torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = "clearhead view --text sentence.txt"


def view(
    text: Annotated[Path, typer.Option(metavar="FILE", help="The file with the text.")],
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A folder with a Hugging Face checkpoint and its tokenizer, or one written by "
            "`clearhead train`. [default: the small trained model that comes with Clearhead]",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=65535,
            help="The port to listen on. [default: a free port]",
            show_default=False,
        ),
    ] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Whether to open the browser.")
    ] = True,
) -> None:
    """Zoom into the attention of a model, however long the text is.

    Serves a page to this machine only, until Ctrl-C. To see it from another machine, use
    --port 8123 here and run ssh -L 8123:127.0.0.1:8123 there.
    """
    try:
        given = text.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"--text {text}: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"--text {text}: not text in UTF-8 (byte {error.start}).") from None
    from rich.progress import BarColumn, Progress, TextColumn

    from clearhead import drawing, viewer
    from clearhead.models import find_model
    from clearhead.watcher.one_text import see

    err = drawing.console(sys.stderr)
    columns = TextColumn("{task.description}"), BarColumn()
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("Loading the model", total=None)
        loaded = find_model(model, any_architecture=True)
        reading = loaded.read(given)
        tokens, ids = len(reading.ids), reading.tensor(loaded.longest)
        progress.update(task, description=f"Reading {ids.shape[1]:,} tokens")
        seen = see(loaded.network, ids, name=loaded.name)
    if ids.shape[1] < tokens:
        print(
            f"Note: {text} has {tokens:,} tokens, but the model supports {ids.shape[1]:,}: "
            f"only the first {ids.shape[1]:,} are used.",
            file=sys.stderr,
        )
    labels = reading.labels[: ids.shape[1]]
    del loaded  # frees the model; the maps do not need it
    try:
        viewer.view(seen, tokens=labels, ids=ids, port=port, browser=browser)
    except ImportError as error:
        raise ValueError(str(error)) from None
