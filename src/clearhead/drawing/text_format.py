r"""Numbers, labels and arbitrary text in readable form: `0.9544`, `\x1b[31m`, `␣cat`."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rich.cells import cell_len, set_cell_size

HIDDEN = "·"  # shown in place of a value that a mask hides


class Array(Protocol):
    """A torch tensor, a numpy array, or anything else with a shape and `tolist`."""

    @property
    def shape(self) -> Sequence[int]:
        """The size of each axis."""

    def tolist(self) -> Any:
        """The numbers as nested lists."""


@dataclass(frozen=True)
class Axis:
    """One side of an array.

    Attributes:
        title: What it counts.
        size: How many positions it has. The array may have fewer cells than that.
        labels: One label per position, or None to show numbers.
    """

    title: str
    size: int
    labels: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.labels is not None and len(self.labels) != self.size:
            raise ValueError(
                f"{self.title}: expected {self.size} labels, one per position, "
                f"got {len(self.labels)}."
            )


def visible(text: str) -> str:
    r"""The text on one line, with every character visible.

    Spaces at either end become `␣`. Control and invisible characters become escapes.

    Examples:
        >>> visible(" cat"), visible("\x1b[31m"), visible("a\nb")
        ('␣cat', '\\x1b[31m', 'a\\nb')
    """
    inner = text.strip(" ")
    before = len(text) - len(text.lstrip(" "))
    after = len(text) - before - len(inner)
    return "␣" * before + "".join(map(_visible_character, inner)) + "␣" * after


def harmless(text: str) -> str:
    r"""The text with line breaks and spaces kept, and control characters as escapes.

    Examples:
        >>> harmless("a b\n  \x1b[31m")
        'a b\n  \\x1b[31m'
    """
    return "".join(c if c == "\n" else _visible_character(c) for c in text)


LONGEST_CELL = 20_000  # characters; spreadsheets accept 32,767
# A "-" alone means "none" and needs no guard. In some countries `;` separates the cells of a CSV.
_FORMULA = r"(?=[\s']*(?:[=+@＝＋－＠]|-(?!\s*(?:;|\Z))))"
_START = re.compile(rf"(\A|;){_FORMULA}")
_GUARD = re.compile(rf"(\A|;)'{_FORMULA}")


def guarded(cell: str) -> str:
    r"""The text for a cell of a CSV file: one line, limited in length, never read as a formula.

    Examples:
        >>> guarded("=1+1"), guarded("a\nb"), guarded("-"), guarded("x;=2")
        ("'=1+1", 'a\\nb', '-', "x;'=2")
    """
    return guarded_whole(cell[:LONGEST_CELL])[:LONGEST_CELL]


def guarded_whole(cell: str) -> str:
    """As `guarded`, without the limit on length."""
    cell = harmless(cell).replace("\n", "\\n")
    return cell if re.fullmatch(r"-([; ]+-)*", cell) else _START.sub(r"\1'", cell)


def unguarded(cell: str) -> str:
    """The text that `guarded_whole` was given, except that escapes stay."""
    return _GUARD.sub(r"\1", cell)


def escaped(character: str) -> str:
    r"""The escape of a character, as in Python.

    Examples:
        >>> escaped("\u202e")
        '\\u202e'
    """
    return character.encode("unicode_escape").decode("ascii")


def _visible_character(character: str) -> str:
    # C: control, format (also right-to-left marks), surrogates, private. Z: separators.
    category = unicodedata.category(character)
    return escaped(character) if character != " " and category[0] in "CZ" else character


def shorten(text: str, width: int) -> str:
    """The `visible` text, cut to `width` columns with `…` at the end.

    Examples:
        >>> shorten("internationalisation", 8)
        'interna…'
    """
    text = visible(text)
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(width - 1, 0)).rstrip() + "…"


def memory(size: int) -> str:
    """A number of bytes with its unit.

    Examples:
        >>> memory(304), memory(1536), memory(8 * 2**20), memory(51 * 10**9)
        ('304 bytes', '1.5 KiB', '8.0 MiB', '47.5 GiB')
    """
    if size < 1024:
        return f"{size} bytes"
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB")):
        if size >= 2**power:
            return f"{size / 2**power:,.1f} {unit}"
    return f"{size / 1024:.1f} KiB"


def number(value: float, decimals: int = 4) -> str:
    """One number with a fixed number of decimals.

    Examples:
        >>> number(0.95442), number(float("-inf")), number(-0.00001), number(7)
        ('0.9544', '-inf', '0.0000', '7')
    """
    if isinstance(value, int) or not math.isfinite(value):
        return str(value)
    if abs(value) >= 1e6:
        return f"{value:.{decimals}e}"
    text = f"{value:.{decimals}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def vector(values: Iterable[float], *, limit: int = 6) -> str:
    """The first few numbers of a vector.

    Examples:
        >>> vector([0.55, 0.87, 0.66])
        '[0.5500, 0.8700, 0.6600]'
        >>> vector([1.0, 2.0, 3.0], limit=2)
        '[1.0000, 2.0000, ...]'
    """
    cells = [number(value) for value in values]
    return "[" + ", ".join(cells[:limit] + ["..."] * (len(cells) > limit)) + "]"


def excerpt(name: str, array: Array, *, rows: int = 3, at: Mapping[int, int] | None = None) -> str:
    """The first few numbers of an array of any rank, with the index that selects them.

    Args:
        name: What the array is called.
        array: The numbers.
        rows: The largest number of rows.
        at: The index to take on some axes, by axis; at least two axes must remain.

    Examples:
        >>> import numpy
        >>> print(excerpt("scores", numpy.eye(7)[None], rows=2))
        scores[0, :2, :6]
          [1.0000, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000, ...]
          [0.0000, 1.0000, 0.0000, 0.0000, 0.0000, 0.0000, ...]
          ...
        >>> print(excerpt("split", numpy.arange(8).reshape(2, 2, 2), at={1: 1}))
        split[:, 1, :]
          [2, 3]
          [6, 7]
    """
    columns = 6
    shape = tuple(array.shape)
    values = array.tolist()
    if not shape:
        return f"{name}\n  {number(values)}"
    if 0 in shape:
        return f"{name}\n  (empty)"
    at = at or {}
    shown = [axis for axis in range(len(shape)) if axis not in at][-2:]
    index = [str(at.get(axis, 0)) for axis in range(len(shape))]
    for axis, most in zip(reversed(shown), (columns, rows), strict=False):
        index[axis] = f":{most}" if shape[axis] > most else ":"
    values = _taken(
        values, [None if axis in shown else at.get(axis, 0) for axis in range(len(shape))]
    )
    if len(shape) == 1:
        values = [values]

    cells = [[number(value) for value in row[:columns]] for row in values[:rows]]
    width = max(len(cell) for row in cells for cell in row)
    more = ["..."] * (shape[-1] > columns)
    lines = [name if set(index) == {":"} else f"{name}[{', '.join(index)}]"]
    lines += ["  [" + ", ".join([cell.rjust(width) for cell in row] + more) + "]" for row in cells]
    lines += ["  ..."] * (len(values) > rows)
    return "\n".join(lines)


def _taken(values: Any, index: Sequence[int | None]) -> Any:
    """Nested lists without the axes that have an index; None keeps an axis."""
    if not index:
        return values
    if index[0] is None:
        return [_taken(value, index[1:]) for value in values]
    return _taken(values[index[0]], index[1:])
