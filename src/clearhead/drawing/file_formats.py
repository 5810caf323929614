"""save(): the suffix of the file name decides the format."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from clearhead.atomic_files import beside
from clearhead.drawing import figures
from clearhead.drawing.html_page import Page

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save(
    path: str | os.PathLike[str],
    page: Callable[[], Page],
    *,
    tensors: Callable[[Path], None] | None = None,
    data: Callable[[], object] | None = None,
    figure: Callable[[], Figure] | None = None,
    title: str | None = None,
) -> None:
    """Write a page, a figure, tensors or data. The suffix of the name selects which.

    Args:
        path: The file: `.html`, `.svg`, `.png` or `.pdf`; with `tensors` also `.safetensors`, and
            with `data` also `.json`.
        page: Returns the page. Called only if needed.
        tensors: Writes a safetensors file.
        data: Returns the content of the JSON file. Called only if needed.
        figure: Returns the figure. By default, it shows the first layer of the page.
        title: The title of such a figure.
    """
    path = Path(path)
    kind = path.suffix.lower()
    suffixes = [".html", *figures.SUFFIXES]
    if data is not None:
        suffixes.append(".json")
    if tensors is not None:
        suffixes.insert(0, ".safetensors")
    figures.check_path(path, suffixes)
    if kind == ".html":
        text = page().html()
        with beside(path) as file:
            file.write_text(text, encoding="ascii", newline="\n")
    elif kind in figures.SUFFIXES:
        if figure is None:
            made = figures.layer_figure(page().layers[0], title=title or "")
        else:
            made = figure()
        figures.write(made, path)
    elif kind == ".json":
        assert data is not None
        text = json.dumps(data(), allow_nan=False)
        with beside(path) as file:
            file.write_text(text + "\n", encoding="utf-8")
    else:
        assert tensors is not None
        with beside(path) as file:
            tensors(file)
