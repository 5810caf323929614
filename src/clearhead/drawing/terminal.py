"""Arrays and labels -> terminal, drawn with rich.

Everything is readable without colour: numbers are written out, and a hidden cell is a `·`.
"""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import IO, TYPE_CHECKING, Any, cast

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from clearhead.drawing.palette import shade, text_on
from clearhead.drawing.text_format import HIDDEN, Array, number, shorten

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType, RenderResult

_ROW_LABEL_WIDTH = 12
_COLUMN_LABEL_WIDTH = 10

_literal_console = partial(Console, markup=False, emoji=False, highlight=False)


def console(file: IO[str] | None = None, *, width: int | None = None) -> Console:
    """A console that prints text literally: no markup, no emoji codes.

    With `NO_COLOR` set, in a pipe or to a file it writes plain characters only.

    Args:
        file: Where to print; standard output by default.
        width: Columns; by default the width of the window (in a pipe: `COLUMNS`, or 80).
    """
    no_color = bool(os.environ.get("NO_COLOR"))
    return _literal_console(file=file, width=width, color_system=None if no_color else "auto")


def plain(renderable: RenderableType, *, width: int = 100) -> str:
    """The drawing as plain text, without colours or trailing spaces.

    Examples:
        >>> plain(Text("cat", style="bold red"))
        'cat'
    """
    file = io.StringIO()
    _literal_console(
        file=file,
        width=width,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        legacy_windows=False,
    ).print(renderable)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def html(renderable: RenderableType, *, width: int = 100) -> str:
    """The drawing as one HTML element, with inline colours and escaped text.

    Examples:
        >>> "&lt;b&gt;" in html(Text("<b>"))
        True
    """
    recorder = _literal_console(
        file=io.StringIO(),
        width=width,
        record=True,
        color_system="truecolor",
        force_terminal=True,
        force_jupyter=False,
        legacy_windows=False,
        _environ={},  # a notebook has colours, even if NO_COLOR is set for the terminal
    )
    recorder.print(renderable)
    element = '<pre style="font-family: monospace; line-height: 1.3; overflow-x: auto">{code}</pre>'
    return recorder.export_html(inline_styles=True, code_format=element)


class Drawn:
    """What rich can draw: `print` shows it as text, a notebook as HTML."""

    def __str__(self) -> str:
        return plain(cast("RenderableType", self), width=120)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return html(cast("RenderableType", self), width=120)


class Stack(Drawn, Group):
    """Several drawings, one below the other."""


class Matrix(Drawn):
    """A matrix with labels, coloured by value, split into panels that fit the window.

    Examples:
        >>> print(plain(Matrix([[1.0, 0.0], [0.4, 0.6]], ["a", "b"], ["a", "b"],
        ...                    hidden=[[False, True], [False, False]])))
              a    b
        a  1.00    ·
        b  0.40 0.60
    """

    def __init__(
        self,
        values: Array | Sequence[Sequence[float]],
        rows: Sequence[str],
        columns: Sequence[str],
        *,
        hidden: Array | Sequence[Sequence[bool]] | None = None,
        corner: str = "",
        decimals: int = 2,
        heat: bool = True,
        limit: int = 16,
    ) -> None:
        """Create the matrix.

        Args:
            values: The numbers, rows × columns.
            rows: One label per row.
            columns: One label per column.
            hidden: True for cells that show `·` instead of the number.
            corner: The text above the row labels.
            decimals: Digits after the decimal point.
            heat: Colour the cells, from 0 (dark) to the largest number (bright).
            limit: Maximum rows and columns; a last line counts those that are left out.
        """
        self._values: list[list[float]] = _nested(values)
        self._hidden: list[list[bool]] | None = None if hidden is None else _nested(hidden)
        for name, table in (("values", self._values), ("hidden", self._hidden)):
            if table is None:
                continue
            if len(table) != len(rows) or any(len(row) != len(columns) for row in table):
                width = len(table[0]) if table else 0
                raise ValueError(
                    f"{name}: expected {len(rows)} × {len(columns)} to fit the labels, "
                    f"got {len(table)} × {width}."
                )
        self._rows = [shorten(label, _ROW_LABEL_WIDTH) for label in rows[:limit]]
        self._columns = [shorten(label, _COLUMN_LABEL_WIDTH) for label in columns[:limit]]
        self._left_out = (len(rows) - len(self._rows), len(columns) - len(self._columns))
        self._corner, self._decimals, self._heat = corner, decimals, heat

    def _cells(self) -> tuple[list[list[str]], list[list[Style]]]:
        """Text and style of each cell that is drawn."""
        texts: list[list[str]] = []
        shown: list[float] = []
        for i in range(len(self._rows)):
            texts.append([])
            for j in range(len(self._columns)):
                if self._hidden is not None and self._hidden[i][j]:
                    texts[i].append(HIDDEN)
                    continue
                value = self._values[i][j]
                texts[i].append(number(value, self._decimals))
                if math.isfinite(value):
                    shown.append(value)
        top = max(shown, default=0.0)

        def style(text: str, value: float) -> Style:
            if text == HIDDEN:
                return Style(dim=True)
            if not self._heat or top <= 0 or not math.isfinite(value):
                return Style()
            return Style(color=text_on(value / top), bgcolor=shade(value / top))

        styles = [
            [style(text, self._values[i][j]) for j, text in enumerate(row)]
            for i, row in enumerate(texts)
        ]
        return texts, styles

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The panels, one below the other, each no wider than the window."""
        texts, styles = self._cells()
        first = max(map(cell_len, [*self._rows, self._corner]), default=0) + 2
        width = max(
            [len(cell) for row in texts for cell in row] + [cell_len(c) for c in self._columns],
            default=0,
        )
        panel = max(1, (options.max_width - first + 1) // (width + 1))
        for begin in range(0, max(len(self._columns), 1), panel):
            if begin:
                yield Text()
            part = slice(begin, begin + panel)
            head = [_right(label, width) for label in self._columns[part]]
            yield _line(self._corner.ljust(first) + " ".join(head), Style(dim=True))
            for label, row, looks in zip(self._rows, texts, styles, strict=True):
                line = _line(_left(label, first))
                for j, (cell, look) in enumerate(zip(row[part], looks[part], strict=True)):
                    line.append(" " if j else "")
                    line.append(cell.rjust(width), look)
                yield line
        for count, what in zip(self._left_out, ("row", "column"), strict=True):
            if count:
                plural = "s" if count > 1 else ""
                yield Text(f"... and {count} more {what}{plural}", style=Style(dim=True))


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> Group:
    """Rows of text in columns, under a dim header.

    Args:
        head: The header of each column.
        rows: The cells. They are printed literally: make untrusted text `visible` first.
        left: How many of the first columns are aligned to the left.
    """
    widths = [max(map(cell_len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for index, row in enumerate([head, *rows]):
        cells = [
            _left(cell, width) if j < left else _right(cell, width)
            for j, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(_line("  ".join(cells).rstrip(), Style(dim=index == 0)))
    return Group(*lines)


class FittingTable:
    """A table that drops whole columns if the window is too narrow, and names them.

    If it is still too wide, the longest words are cut.

    Examples:
        >>> table = FittingTable(["head", "key", "other"], [["2.0", "0.98", "0.00"]], drop=[2, 1])
        >>> print(plain(table, width=12))
        head   key
        2.0   0.98
        Too narrow
        for: other.
    """

    def __init__(
        self,
        head: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        left: int = 1,
        drop: Sequence[int] = (),
        titles: Mapping[int, str] | None = None,
        more: str = "",
    ) -> None:
        """Create the table.

        Args:
            head: The header of each column.
            rows: The cells. They are printed literally: make untrusted text `visible` first.
            left: How many of the first columns are aligned to the left.
            drop: The columns that may be dropped, in this order.
            titles: Lines to print before a row, by the index of the row.
            more: A hint on how to see all columns.
        """
        self._head, self._rows, self._left = head, rows, left
        self._drop, self._titles, self._more = drop, titles or {}, more

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As many columns as fit."""
        widths = [max(map(cell_len, each)) for each in zip(self._head, *self._rows, strict=True)]
        shown = list(range(len(widths)))
        for column in self._drop:
            if sum(widths[j] for j in shown) + 2 * (len(shown) - 1) <= options.max_width:
                break
            shown.remove(column)
        too_wide = sum(widths[j] for j in shown) + 2 * (len(shown) - 1) - options.max_width
        if too_wide > 0:  # a word that is cut can still be understood, a number cannot
            longest = max(shown[: self._left], key=widths.__getitem__)
            widths[longest] = max(1, widths[longest] - too_wide)
        head = [_cut(self._head[j], widths[j]) for j in shown]
        rows = [[_cut(row[j], widths[j]) for j in shown] for row in self._rows]
        first, *lines = table(head, rows, left=self._left).renderables
        yield first
        for index, line in enumerate(lines):
            if index in self._titles:
                yield Text(self._titles[index], style=Style(bold=True))
            yield line
        gone = [name for j, name in enumerate(self._head) if j not in shown]
        if gone:
            names = ", ".join(dict.fromkeys(gone))
            yield Text(f"Too narrow for: {names}. {self._more}".rstrip(), style=Style(dim=True))


def _cut(cell: str, width: int) -> str:
    return cell if cell_len(cell) <= width else set_cell_size(cell, width - 1) + "…"


class FirstThatFits:
    """The first of several forms that is not wider than the window; the last one if none fits.

    Examples:
        >>> print(plain(FirstThatFits([Text("1 + 2 + 3 = 6"), Text("sum: 6")]), width=9))
        sum: 6
    """

    def __init__(self, forms: Sequence[RenderableType]) -> None:
        self._forms = forms

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """One of the forms."""
        unlimited = options.update_width(sys.maxsize)
        for form in self._forms[:-1]:
            if Measurement.get(console, unlimited, form).maximum <= options.max_width:
                yield form
                return
        yield self._forms[-1]


class Indent:
    """Anything that rich can draw, moved to the right, without trailing spaces."""

    def __init__(self, renderable: RenderableType, by: int = 3) -> None:
        self._renderable, self._by = renderable, by

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Each line, with spaces before it."""
        inner = options.update_width(max(1, options.max_width - self._by))
        for line in console.render_lines(self._renderable, inner, pad=False):
            yield Segment(" " * self._by)
            *before, last = line or [Segment("")]
            yield from before  # a wrapped line ends with the space at which it was wrapped
            yield (
                last
                if last.style and last.style.bgcolor
                else Segment(last.text.rstrip(), last.style)
            )
            yield Segment.line()


class Flow:
    """A label with words beside it, wrapped between words.

    Examples:
        >>> print(plain(Flow("Tokens", ["0 the", "1 cat", "2 sat"]), width=21))
        Tokens  0 the  1 cat
                2 sat
    """

    def __init__(self, label: str, words: Sequence[str], gap: str = "  ") -> None:
        self._label, self._words, self._gap = label, words, gap

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As many words per line as fit."""
        start = cell_len(self._label) + 2
        lines: list[str] = []
        for word in self._words:
            longer = f"{lines[-1]}{self._gap}{word}" if lines else word
            if lines and start + cell_len(longer) <= options.max_width:
                lines[-1] = longer
            else:
                lines.append(word)
        for i, line in enumerate(lines or [""]):
            head = self._label + "  " if i == 0 else " " * start
            yield Text.assemble((head, "dim"), line, no_wrap=True, overflow="ellipsis")


def _line(text: str, style: Style | None = None) -> Text:
    return Text(text, style=style or Style(), no_wrap=True, overflow="ellipsis", end="\n")


def _left(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def _right(text: str, width: int) -> str:
    return " " * (width - cell_len(text)) + text


def _nested(values: Any) -> Any:
    return values.tolist() if hasattr(values, "tolist") else [list(row) for row in values]
