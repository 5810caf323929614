"""`clearhead play`: one HTML file that runs a model, offline."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli.shared import TextOption, out_option, read_text, shipped_models, text_argument

EXAMPLE = "clearhead play --open"


def play(
    text: Annotated[list[str] | None, text_argument("The text that the page begins with.")] = None,
    out: Annotated[Path, out_option("The file to write.")] = Path("clearhead.html"),
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The model in the page: english or grammar.",
            autocompletion=shipped_models,
        ),
    ] = "english",
    file: TextOption = None,
) -> None:
    """Write a page that runs a model on what you type.

    It shows every head, every step and the next words, and lets you switch off the mask, the
    scaling or a head. The page is one file that needs no network: it can be mailed, opened on a
    phone, or put on a course page.
    """
    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--out {out}: expected a name that ends in .html.")
    given = read_text(text, file)
    from clearhead.atomic_files import beside
    from clearhead.explainer.play_page import play_html

    page = play_html(model, given)
    try:
        with beside(out) as draft:
            draft.write_text(page, encoding="ascii")
    except OSError as error:
        raise ValueError(f"--out {out}: {error.strerror or error}") from None
    print(f"Wrote {out} ({len(page) / 1e6:.1f} MB)", file=sys.stderr)
    if open_it and not webbrowser.open(out.resolve().as_uri()):
        raise ValueError(f"--open: no browser was found.\n  Open {out} in one.")
