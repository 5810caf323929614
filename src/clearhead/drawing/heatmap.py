"""A heatmap for the terminal, as large as the window allows.

With few rows and columns, each has its label. With many, neighbours share a cell, and the sides
show numbers. Without colour, a cell is a character: the denser, the larger the number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from clearhead.drawing.palette import DECADES, shade
from clearhead.drawing.terminal import Drawn
from clearhead.drawing.text_format import HIDDEN, Axis, number, shorten

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

# source(rows, columns) returns the numbers of that many cells; None or NaN for a hidden cell.
Source = Callable[[int, int], Sequence[Sequence[float | None]]]

RAMP = " .:-=+*#%@"
_UPPER = "▀"  # foreground colour above, background colour below: two cells in one character
_LABEL_WIDTH = 12
_TOP_HEIGHT = 8  # characters of a label that is written downwards
_MOST_LABELLED = 40
_MOST_LINES = 64


class Heatmap(Drawn):
    """A heatmap with as many cells as the window has room for.

    Args:
        source: Called with a number of rows and columns; returns the numbers of the cells.
        rows: What the rows are.
        columns: What the columns are.
        title: The title above the map.
        log: Use a logarithmic colour scale.

    Examples:
        >>> from clearhead.drawing import plain
        >>> cells = [[1.0, None], [0.4, 0.6]]
        >>> tokens = ["the", "cat"]
        >>> query, key = Axis("query", 2, tokens), Axis("key", 2, tokens)
        >>> print(plain(Heatmap(lambda *_: cells, query, key)))
             t c
             h a
             e t
        the  @@··
        cat  ==**
        0.00 [ .:-=+*#%@] 1.00, · hidden
    """

    def __init__(
        self, source: Source, rows: Axis, columns: Axis, *, title: str = "", log: bool = False
    ) -> None:
        self._source, self._rows, self._columns = source, rows, columns
        self._title, self._log = title, log

    def __repr__(self) -> str:
        return f"Heatmap({self._rows.size} × {self._columns.size})"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The title, the labels, the cells, and what the colours mean."""
        coloured = console.color_system is not None
        window = options.height or options.size.height
        lines = max(4, min(window - 6, _MOST_LINES))
        if self._title:
            yield Text(self._title, style="bold", no_wrap=True, overflow="ellipsis")
        labels = [shorten(label, _LABEL_WIDTH) for label in self._rows.labels or ()]
        first = max(map(cell_len, labels), default=0) + 2
        fits = self._columns.size * 2 + first <= options.max_width
        few = self._rows.size <= max(lines, _MOST_LABELLED) and fits
        if self._rows.labels is not None and self._columns.labels is not None and few:
            cells = self._source(self._rows.size, self._columns.size)
            scale = _Scale(cells, log=self._log)
            yield from self._labelled(cells, labels, first, scale, coloured)
        else:
            first = len(f"{self._rows.size:,}") + 2
            room = max(1, options.max_width - first)
            # A character is twice as high as wide. In colour, two cells share one character;
            # without colour, a cell takes two characters.
            high = min(self._rows.size, lines * 2 if coloured else lines)
            wide = min(self._columns.size, room, lines * 2)
            each = 2 if not coloured and wide <= min(high, room // 2) else 1
            cells = self._source(high, wide)
            scale = _Scale(cells, log=self._log)
            yield from self._numbered(cells, first, scale, coloured, each)
        yield self._legend(cells, scale, coloured)

    def _labelled(
        self,
        cells: Sequence[Sequence[float | None]],
        labels: Sequence[str],
        first: int,
        scale: _Scale,
        coloured: bool,
    ) -> Iterable[Text]:
        """One row per line, with its label. The labels of columns are written downwards."""
        above = [shorten(label, _TOP_HEIGHT) for label in self._columns.labels or ()]
        for line in range(max(map(len, above), default=0)):
            characters = (label[line] if line < len(label) else " " for label in above)
            # A wide character takes both columns of its cell.
            row = "".join(each + " " * (2 - cell_len(each)) for each in characters)
            yield _line([(" " * first, Style()), (row.rstrip(), Style(dim=True))])
        for label, row_cells in zip(labels, cells, strict=True):
            parts = [(label + " " * (first - cell_len(label)), Style())]
            for value in row_cells:
                if not _shown(value):
                    parts.append((HIDDEN * 2, Style(dim=True)))
                    continue
                if coloured:
                    parts.append(("  ", Style(bgcolor=scale.colour(value))))
                else:
                    parts.append((scale.character(value) * 2, Style()))
            yield _line(parts)

    def _numbered(
        self,
        cells: Sequence[Sequence[float | None]],
        first: int,
        scale: _Scale,
        coloured: bool,
        each: int,
    ) -> Iterable[Text]:
        """Positions as numbers on the left and above; a cell is `each` characters wide."""
        step = 16 // each
        wide = len(cells[0]) if cells else 0
        marks = ""
        for column in range(0, wide, step):
            mark = f"{column * self._columns.size // wide:,}"
            fits = column * each + len(mark) <= wide * each
            marks = marks.ljust(column * each) + (mark if fits else "")
        yield _line([(" " * first + marks.rstrip(), Style(dim=True))])
        rows_per_line = 2 if coloured else 1
        for line, start in enumerate(range(0, len(cells), rows_per_line)):
            mark = f"{start * self._rows.size // len(cells):,}" if line % 4 == 0 else ""
            parts = [(mark.rjust(first - 2) + "  ", Style(dim=True))]
            upper = cells[start]
            lower = cells[start + 1] if coloured and start + 1 < len(cells) else None
            for j, value in enumerate(upper):
                if not coloured:
                    parts.append((scale.character(value) * each, Style()))
                    continue
                below = None if lower is None else scale.colour(lower[j])
                parts.append(_two(scale.colour(value), below))
            yield _line(parts)

    def _legend(
        self, cells: Sequence[Sequence[float | None]], scale: _Scale, coloured: bool
    ) -> Text:
        """The colour scale with the numbers at its two ends."""
        start = number(scale.low, 2) if scale.low == 0 else f"{scale.low:.0e}"
        end = number(scale.top, 2) if scale.top >= 0.1 else f"{scale.top:.1e}"
        parts = [(f"{start} ", Style())]
        if coloured:
            parts += [(" ", Style(bgcolor=shade(step / 15))) for step in range(16)]
        else:
            parts.append((f"[{RAMP}]", Style()))
        hidden = any(not _shown(value) for row in cells for value in row)
        blank = "blank" if coloured and len(cells) != self._rows.size else HIDDEN
        text = f" {end}" + (", logarithmic" if self._log else "")
        parts.append((text + (f", {blank} hidden" if hidden else ""), Style()))
        return _line(parts)


def blocks(values: Any, hidden: Any = None) -> Source:
    """A source for `Heatmap` that reads an array: single numbers, or as many blocks as fit.

    A block is summed across and averaged down, so that rows keep their sums.

    Examples:
        >>> blocks([[0.25, 0.75], [0.5, 0.5]])(1, 2), blocks([[0.25, 0.75], [0.5, 0.5]])(2, 1)
        ([[0.375, 0.625]], [[1.0], [1.0]])
    """
    array = np.asarray(values, dtype=float)
    seen = np.ones(array.shape) if hidden is None else 1.0 - np.asarray(hidden, dtype=float)
    array = np.where(seen > 0, array, 0.0)

    def source(high: int, wide: int) -> list[list[float | None]]:
        rows, cols = (
            -(-np.arange(n) * s // n) for n, s in zip((high, wide), array.shape, strict=True)
        )

        def added(x: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.add.reduceat(np.add.reduceat(x, rows, axis=0), cols, axis=1)

        heights = np.diff(rows, append=array.shape[0])[:, None]
        found = np.where(added(seen) > 0, added(array) / heights, np.nan)
        return found.tolist()  # type: ignore[no-any-return]  # numpy's tolist() returns Any

    return source


class _Scale:
    """From numbers to colours or characters."""

    def __init__(self, cells: Sequence[Sequence[float | None]], *, log: bool) -> None:
        self.top = max((x for row in cells for x in row if _shown(x)), default=0.0) or 1.0
        self.low = self.top / 10**DECADES if log else 0.0

    def colour(self, value: float | None) -> str | None:
        """The colour of a number; None if it is hidden."""
        return shade(self._share(value)) if _shown(value) else None

    def character(self, value: float | None) -> str:
        """The denser, the larger. Only zero is blank."""
        if not _shown(value):
            return HIDDEN
        share, last = self._share(value), len(RAMP) - 1
        return RAMP[0] if share <= 0 else RAMP[max(1, min(math.ceil(share * last), last))]

    def _share(self, value: float) -> float:
        if self.low > 0:
            return math.log(max(value, self.low) / self.low) / math.log(self.top / self.low)
        return value / self.top


def _shown(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _two(above: str | None, below: str | None) -> tuple[str, Style]:
    """Two cells in one character."""
    if above is None:
        return (" ", Style()) if below is None else ("▄", Style(color=below))
    return _UPPER, Style(color=above, bgcolor=below)


def _line(parts: Sequence[tuple[str, Style]]) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="crop", end="\n")
