"""A Jupyter notebook as Python source.

>>> cell_source("x = !ls")
'x = None  # !ls'
"""

import ast
import json
import re
from pathlib import Path

MAGIC = re.compile(r"^(\s*)(?:(\w[\w, ]*=)\s*)?([%!?].*|[\w.]+\?{1,2})$")
PYTHON_CELLS = ("%%time", "%%timeit", "%%capture", "%%prun")


def cell_source(text: str) -> str:
    r"""One cell as Python: lines for IPython or the shell are left out, line numbers stay.

    >>> print(cell_source("!pip install torch\nx = 1"))
    pass  # !pip install torch
    x = 1
    """
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
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


def notebook_source(path: str | Path) -> str:
    """The code of a notebook as one Python source, each cell after a line `# cell N`.

    Raises:
        ValueError: If the file is no notebook.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
        texts = ["".join(cell["source"]) for cell in cells]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{Path(path).name}: expected a Jupyter notebook (JSON with cells), got something "
            f"else ({type(error).__name__}).\n  Saved by an old program? Export it as .py."
        ) from error
    parts = [f"# cell {n}\n{cell_source(text)}\n" for n, text in enumerate(texts, start=1)]
    return "".join(parts)
