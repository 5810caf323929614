"""Write the pages that are generated: ladder, speed with its charts, the notebook of the tour.

    python docs/generate.py

`tests/test_site.py` compares its output with the files, so that no page becomes outdated.
"""

import ast
import difflib
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # `benchmarks` is not installed

from benchmarks import charts, speed_page  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
RUNGS = [
    "simplified_attention",
    "SelfAttention",
    "CausalAttention",
    "MultiHeadAttentionWrapper",
    "MultiHeadAttention",
    "EncoderAttention",
]
# The rung that each one changes, where it is not the one before.
BEFORE = {"MultiHeadAttention": "CausalAttention", "EncoderAttention": "MultiHeadAttention"}
WORDS = {
    "simplified_attention": "No parameters: every token is its own query, key and value.",
    "SelfAttention": "Three learned projections, and the division by √(width of the keys).",
    "CausalAttention": "The future is hidden before softmax; some weights are dropped in training.",
    "MultiHeadAttentionWrapper": "Causal heads side by side. `d_out` is that of one head here.",
    "MultiHeadAttention": "All heads in one set of matrices: project, split, attend, merge, "
    "project. Compared with the causal form, whose arithmetic it keeps.",
    "EncoderAttention": "The paper's form: a mask from outside, and the weights are returned too.",
}


def ladder() -> str:
    """Each rung in full, and as a diff from the one before."""
    source = (ROOT / "src/clearhead/ladder.py").read_text(encoding="utf-8")
    code = {
        node.name: _readable(node, source)
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in RUNGS
    }
    parts = [
        "# The ladder\n\n"
        "Attention in the order in which one learns it. Each rung is a few changed lines from an\n"
        "earlier one: `-` is what goes, `+` what comes. Made from `clearhead/ladder.py`; checks\n"
        "of the input and conversions between rungs are left out here."
    ]
    for i, name in enumerate(RUNGS):
        parts.append(f"## {name}\n\n{WORDS[name]}")
        parts.append(f"```py\n{code[name]}\n```")
        if i > 1:
            before = BEFORE.get(name, RUNGS[i - 1])
            lines = difflib.unified_diff(
                code[before].splitlines(), code[name].splitlines(), n=2, lineterm=""
            )
            changes = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
            if name != "MultiHeadAttentionWrapper":  # it holds causal heads: nothing is changed
                parts.append(f"From `{before}`:\n\n```diff\n" + "\n".join(changes) + "\n```")
    return "\n\n".join(parts) + "\n"


def _readable(node: ast.FunctionDef | ast.ClassDef, source: str) -> str:
    """Its lines, without docstrings, checks of the input and class methods."""
    lines = source.splitlines()
    dropped: set[int] = set()
    for part in ast.walk(node):
        drop = isinstance(part, ast.FunctionDef) and part.decorator_list
        drop = drop or (
            isinstance(part, ast.Expr)
            and (
                (isinstance(part.value, ast.Constant) and isinstance(part.value.value, str))
                or (
                    isinstance(part.value, ast.Call)
                    and ast.unparse(part.value).startswith("check_")
                )
            )
        )
        if drop:
            first = (
                part.decorator_list[0].lineno if isinstance(part, ast.FunctionDef) else part.lineno
            )
            dropped |= set(range(first, part.end_lineno + 1))
    kept = [lines[i - 1] for i in range(node.lineno, node.end_lineno + 1) if i not in dropped]
    text = "\n".join(kept)
    text = re.sub(r"\n\s*\n(\s*\n)+", "\n\n", text)
    return re.sub(r":\n\n", ":\n", text).strip("\n")


def speed() -> str:
    """The figures that matter from every results file, including where we lose."""
    return speed_page.markdown(speed_page.load(RESULTS))


def notebook() -> str:
    """The tour as a notebook: prose and code, cell by cell."""
    text = (ROOT / "docs/tour.md").read_text(encoding="utf-8")
    cells: list[dict[str, Any]] = []
    for i, part in enumerate(
        re.split(r"^```python\n(.*?)^```\n", text, flags=re.MULTILINE | re.DOTALL)
    ):
        if not part.strip():
            continue
        cell: dict[str, Any] = {"id": f"cell-{i}", "metadata": {}}
        if i % 2:
            cell |= {"cell_type": "code", "execution_count": None, "outputs": []}
        else:
            cell |= {"cell_type": "markdown"}
        cells.append(cell | {"source": part.strip("\n").splitlines(keepends=True)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


PAGES = {"ladder.md": ladder, "speed.md": speed, "tour.ipynb": notebook}


def main(folder: Path) -> None:
    """Write all pages and charts into a folder."""
    for name, make in PAGES.items():
        (folder / name).write_text(make(), encoding="utf-8")
    pictures = folder / "charts"
    pictures.mkdir(exist_ok=True)
    drawn = {chart.file: charts.draw(chart) for chart in charts.charts(speed_page.load(RESULTS))}
    for file in pictures.glob("*.svg"):
        if file.name not in drawn:  # of results that were deleted
            file.unlink()
    for name, svg in drawn.items():
        (pictures / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs")
