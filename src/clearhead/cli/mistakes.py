"""`clearhead mistakes`: what the findings of `clearhead check` mean."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from clearhead.cli.shared import JsonOption

if TYPE_CHECKING:
    from rich.console import RenderableType

    from clearhead.checker.catalogue import Mistake

EXAMPLE = "clearhead mistakes missing-scale"


def mistakes(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID", help="Explain only these mistakes, each in full.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Explain the mistakes that `check` can name.

    Without ID, list them all. With ID, show wrong code, how it shows, and the right code.
    """
    from rich.text import Text

    from clearhead import drawing
    from clearhead.checker import catalogue

    screen = drawing.console()
    chosen = [catalogue.find(id) for id in ids or ()]
    if as_json:
        print(json.dumps([asdict(each) for each in chosen or catalogue.MISTAKES]))
    elif chosen:
        for each in chosen:
            screen.print(_in_full(each))
    else:
        for family in catalogue.FAMILIES:
            screen.print(Text(family.title, style="bold"))
            for each in family.mistakes:
                screen.print(Text(f"  {each.id}"), drawing.Indent(Text(each.says, "dim"), 6))
            screen.print()
        screen.print("To see one in full: clearhead mistakes ID")
    return 0


def _in_full(mistake: Mistake) -> RenderableType:
    """Everything the catalogue says of a mistake."""
    from rich.console import Group
    from rich.text import Text

    from clearhead import drawing

    parts = (
        ("", f"{mistake.says} {mistake.why}", ""),
        ("Wrong", "", mistake.wrong),
        ("What it does", "", mistake.picture),
        ("Right", "", mistake.right),
        ("Fix", mistake.fix, ""),
        ("How it shows", f"{mistake.symptom} {mistake.shows}", ""),
    )
    drawn: list[RenderableType] = [Text(f"{mistake.id} ({mistake.severity})", style="bold")]
    for title, words, code in parts:
        if title and (words.strip() or code):
            drawn += [Text(), drawing.Indent(Text(title, style="dim"), 2)]
        if words.strip():
            drawn.append(drawing.Indent(Text(words.strip()), 4 if title else 2))
        if code:
            drawn.append(drawing.Indent(Text(code.strip("\n")), 4))
    return Group(*drawn, Text())
