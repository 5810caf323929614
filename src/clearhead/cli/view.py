"""`clearhead view`: zoom into the attention maps of one text."""

from __future__ import annotations

from typing import Annotated

import typer

from clearhead.cli.shared import (
    LayersOption,
    ModelOption,
    TextOption,
    progress_bar,
    read_text,
    report_notes,
    report_truncation,
    selected_layers,
    text_argument,
)

EXAMPLE = 'clearhead view "the cat sat on the mat"'


def view(
    words: Annotated[list[str] | None, text_argument("The text.")] = None,
    text: TextOption = None,
    model: ModelOption = None,
    layer: LayersOption = None,
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
    --port 8123 here and run ssh -L 8123:127.0.0.1:8123 there. --model accepts any Hugging Face
    checkpoint with its tokenizer.
    """
    given = read_text(words, text)
    if given is None:
        raise ValueError(f"Give a text: as TEXT, or as a file with --text FILE.\n  Try: {EXAMPLE}")

    from clearhead import viewer
    from clearhead.models import find_model
    from clearhead.watcher.one_text import see

    with progress_bar() as progress:
        task = progress.add_task("Loading the model", total=None)
        loaded = find_model(model, any_architecture=True)
        reading = loaded.read(given)
        tokens, ids = len(reading.ids), reading.tensor(loaded.longest)
        progress.update(task, description=f"Reading {ids.shape[1]:,} tokens")
        seen = see(loaded.network, ids, selected_layers(layer), name=loaded.name)
        seen.model = loaded.name  # the title of the page
    report_notes(reading.notes)
    report_truncation(tokens, ids.shape[1])
    labels = reading.labels[: ids.shape[1]]
    del loaded  # frees the model; the maps do not need it
    try:
        viewer.view(seen, tokens=labels, ids=ids, port=port, browser=browser)
    except ImportError as error:
        raise ValueError(str(error)) from None
