"""save(): the end of a file's name decides what is written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from clearhead.atomic_files import beside, check_place
from clearhead.drawing.html_page import Page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = (".svg", ".png", ".pdf")


def save(
    path: str | os.PathLike[str],
    page: Callable[[], Page],
    *,
    tensors: Callable[[Path], None] | None = None,
    data: Callable[[], object] | None = None,
    figure: Callable[[], Figure] | None = None,
    title: str | None = None,
) -> None:
    """Write a page, a figure, tensors or data, as the end of the name says.

    Args:
        path: The file: `.html`, `.svg`, `.png`, `.pdf`, `.safetensors` where there is `tensors`, or
            `.json` where there is `data`.
        page: Makes what a page or a figure shows; called when one is wanted.
        tensors: Writes a safetensors file.
        data: Makes what a JSON file holds; called when one is wanted.
        figure: Makes the figure, where it is not to be made from the page.
        title: What stands above a figure that is made from the page.
    """
    path = Path(path)
    kind = path.suffix.lower()
    known = [".html", *FIGURES]
    known += [".json"] if data is not None else []
    known += [".safetensors"] if tensors is not None else []
    if not path.name:
        raise ValueError("The name of the file is empty.")
    if kind not in known:
        raise ValueError(
            f"{path}: the end of the name decides the format, and {path.suffix or 'no end'!r} is "
            f"none that is known here.\n  There are {', '.join(known)}: "
            f"try {path.with_suffix(known[-1 if tensors else 0]).name}."
        )
    check_place(path)
    if kind == ".html":
        text = page().html()
        with beside(path) as file:
            file.write_text(text, encoding="ascii", newline="\n")
    elif kind in FIGURES:
        from clearhead.drawing import figures

        if figure is None:
            figures.save(path, page(), title=title)
        else:
            figures.write(figure(), path)
    elif kind == ".json":
        assert data is not None
        text = json.dumps(data(), allow_nan=False)
        with beside(path) as file:
            file.write_text(text + "\n", encoding="utf-8")
    else:
        assert tensors is not None
        with beside(path) as file:
            tensors(file)
