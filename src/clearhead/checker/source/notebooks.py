"""A Jupyter notebook as Python source.

>>> cell_source("x = !ls")
'x = None  # !ls'
"""

import ast
import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

MAGIC = re.compile(r"^(\s*)(?:(\w[\w, ]*=)\s*)?([%!?].*|[\w.]+\?{1,2})$")
PYTHON_CELLS = ("%%time", "%%timeit", "%%capture", "%%prun")


def cell_source(text: str) -> str:
    r"""One cell as Python: lines for IPython or the shell are disabled, line numbers stay.

    Examples:
        >>> print(cell_source("!pip install torch\nx = 1"))
        pass  # !pip install torch
        x = 1
    """
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        lines = text.split("\n")
        other = lines[0].startswith("%%") and not lines[0].startswith(PYTHON_CELLS)
        for number, line in enumerate(lines):
            goes_on = number > 0 and lines[number - 1].endswith("\\")
            found = None if goes_on else MAGIC.match(line)
            if other:
                lines[number] = f"# {line}"
            elif found:
                instead = f"{found[2]} None" if found[2] else "pass"
                lines[number] = f"{found[1]}{instead}  # {found[3]}"
        return "\n".join(lines)
    return text


class Cell(NamedTuple):
    """A code cell.

    Attributes:
        name: "In[4]", as Jupyter numbers a cell that was run; else "code cell 2", counting only
            code cells, from the top.
        first: Its first line in the whole source, counted from 1.
        lines: How many lines it has.
    """

    name: str
    first: int
    lines: int


class Source(NamedTuple):
    """The Python source of a file, and its cells if it is a notebook."""

    text: str
    cells: tuple[Cell, ...] = ()


def parse_notebook(data: bytes, name: str) -> Source:
    """The code of a notebook as one Python source, each cell after a line `# cell N`.

    Args:
        data: The file's bytes.
        name: The file's name.

    Raises:
        ValueError: If the file is not a notebook.
    """
    try:
        content = json.loads(data.decode("utf-8"))
        found = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
        texts = ["".join(cell["source"]) for cell in found]
        counts = [cell.get("execution_count") for cell in found]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{name}: expected a Jupyter notebook (JSON with cells), got something "
            f"else ({type(error).__name__}).\n  Saved by an old program? Export it as .py."
        ) from error
    numbers = [count if isinstance(count, int) else None for count in counts]
    often = Counter(numbers)  # run in two sessions, a notebook may have two cells In[1]
    parts, cells, line = [], [], 1
    for place, (text, number) in enumerate(zip(texts, numbers, strict=True), start=1):
        part = f"# cell {place}\n{cell_source(text)}\n"
        known = number is not None and often[number] == 1
        shown = f"In[{number}]" if known else f"code cell {place}"
        size = part.count("\n") - 1
        cells.append(Cell(shown, line + 1, size))
        parts.append(part)
        line += size + 1
    return Source("".join(parts), tuple(cells))


def find_cell(cells: Sequence[Cell], line: int) -> tuple[str, int] | None:
    """The cell and the line inside it for a line of the whole source; None if it is in no cell.

    Examples:
        >>> find_cell([Cell("In[1]", 2, 3), Cell("In[4]", 6, 9)], 7)
        ('In[4]', 2)
    """
    for cell in cells:
        if cell.first <= line < cell.first + cell.lines:
            return cell.name, line - cell.first + 1
    return None
