"""Display: what a map looks like in a page, in a figure, in a notebook and in the terminal."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clearhead.drawing import figures, plain
from clearhead.drawing.file_formats import save
from clearhead.drawing.heatmap import Heatmap
from clearhead.drawing.html_page import MOST_CELLS_IN_A_NOTEBOOK, Page, too_large_for_a_notebook
from clearhead.maps import page_layers, pictures
from clearhead.maps.indexing import Index
from clearhead.maps.lazy_weights import LazyWeights

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console, ConsoleOptions, RenderResult

    from clearhead.maps.attention_map import AttentionMap


class Display(LazyWeights):
    """The ways to look at a map; `AttentionMap` has them all."""

    @property
    def _map(self) -> AttentionMap:
        return self  # type: ignore[return-value]  # which is the only class that stands on this one

    def page(
        self,
        *,
        tokens: Sequence[str] | None = None,
        context_tokens: Sequence[str] | None = None,
        batch: int = 0,
        title: str = "Attention map",
    ) -> Page:
        """Every weight of one sequence, with labels, as a page or a figure shows it.

        Args:
            tokens: A label for each token; t0, t1, ... by default.
            context_tokens: A label for each key, where the keys are not the same tokens.
            batch: Which sequence.
            title: What stands at the head of the page.
        """
        weights, hidden = pictures.weights_and_hidden(self._map, batch)
        one = page_layers.layer(
            *("", weights, hidden, tokens, context_tokens),
            numbers=self._map.head_numbers,
            start=self._starts[batch],
        )
        return Page(title, (one,))

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        head: Index | None = None,
        tokens: Sequence[str] | None = None,
        context_tokens: Sequence[str] | None = None,
        batch: int = 0,
        title: str | None = None,
        log: bool = False,
    ) -> None:
        """Write one sequence of the map as a page to look at, or as a figure.

        A figure has any length. A page has every weight that can be seen, 33,554,432 at most; one
        of so many is about 70 MB and takes ten seconds and more to write.

        Args:
            path: The file; its end decides: `.html`, `.svg`, `.png` or `.pdf`.
            head: Which head, or several; all by default. For a figure.
            tokens: See `page`.
            context_tokens: See `page`.
            batch: See `page`.
            title: What stands at the head of the page, or above the figure, which has none by
                default.
            log: Logarithmic colours. For a figure.
        """
        kind = Path(path).suffix.lower()
        if kind == ".safetensors":
            raise ValueError(
                f"{path}: a map alone is not kept so; the maps of a model are, with seen.save.\n"
                '  Put it among some: seen = clearhead.Seen(); seen.add("map", m); '
                f'seen.save("{Path(path).name}").'
            )
        if kind in figures.SUFFIXES:
            pictures.save_figure(
                self._map, path, head, batch, tokens, context_tokens, log, title or ""
            )
            return

        def page() -> Page:
            named = {} if title is None else {"title": title}
            return self.page(tokens=tokens, context_tokens=context_tokens, batch=batch, **named)

        save(path, page)

    def _repr_html_(self) -> str:
        cells = math.prod(self.shape[1:])
        if cells > 2 * MOST_CELLS_IN_A_NOTEBOOK:
            return too_large_for_a_notebook(repr(self), cells)
        return self.page().frame()

    def plot(
        self,
        head: Index | None = None,
        *,
        batch: int = 0,
        ax: Axes | None = None,
        tokens: Sequence[str] | None = None,
        context_tokens: Sequence[str] | None = None,
        log: bool = False,
    ) -> Figure:
        """Draw it with matplotlib: weight by weight, or in blocks if there are too many for that.

        A block is the share of their attention that its queries give to its keys. One head is drawn
        in blocks from 1,025 tokens on, and several from 193 on. Of more than 32 rows the brightest
        colour stands for a weight that a quarter of the rows exceed: the colour bar names it.

        Args:
            head: Which head, or several as a grid, by place as in `m[0, 3]`; all by default.
            batch: Which sequence.
            ax: Axes of your own to draw one head into; a new figure by default.
            tokens: A label for each token; numbers by default.
            context_tokens: A label for each key, where the keys are not the same tokens.
            log: Logarithmic colours: one strong weight does not leave the others dark.
        """
        return pictures.plot(self._map, head, batch, ax, tokens, context_tokens, log)

    def draw(
        self,
        head: int = 0,
        *,
        batch: int = 0,
        tokens: Sequence[str] | None = None,
        context_tokens: Sequence[str] | None = None,
        log: bool = False,
    ) -> Heatmap:
        """One head for the terminal, as large as the window: `rich.print(m.draw(3))`.

        Args:
            head: Which head.
            batch: Which sequence.
            tokens: A label for each token; numbers by default.
            context_tokens: A label for each key, where the keys are not the same tokens.
            log: Logarithmic colours.
        """
        return pictures.draw(self._map, head, batch, tokens, context_tokens, log)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """What it is; of a map that is not too large, also its first head."""
        yield repr(self)
        if pictures.is_quick(self._map):
            yield self.draw()

    def __str__(self) -> str:
        return plain(self) if pictures.is_quick(self._map) else repr(self)
