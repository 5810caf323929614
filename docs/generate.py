"""Write the pages that are made from other files: ladder, speed, the tour as a notebook.

    python docs/generate.py

`tests/test_site.py` runs it into another folder and compares, so that no page falls behind.
"""

import ast
import difflib
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RUNGS = [
    "simplified_attention",
    "SelfAttention",
    "CausalAttention",
    "MultiHeadAttentionWrapper",
    "MultiHeadAttention",
    "EncoderAttention",
]
# What each rung is compared with: the one whose code it changes.
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
    """Every measured file as a table, the ones where we lose included."""
    results = {
        file.stem: json.loads(file.read_text(encoding="utf-8"))
        for file in sorted((ROOT / "bench/results").glob("*.json"))
    }
    parts = [
        "# Speed\n\n"
        "Made from the files in `bench/results`. Equality first: who does not compute the same is\n"
        "not timed. Contestants take turns in one run, so that a busy machine slows all of them;\n"
        "what counts is the ratio (median, and its 95 % interval). Memory is the peak beyond\n"
        "weights and input. `clearhead bench attention`, `bench maps` and `bench generate`\n"
        "measure again."
    ]
    for name, found in results.items():
        if found.get("benchmark") == "attention":
            parts += _attention(name, found)
        elif found.get("benchmark") == "maps":
            parts += _maps(name, found)
        elif found.get("benchmark") == "watch":
            parts += _watch(name, found)
        elif found.get("benchmark") == "generate":
            parts += _generate(name, found)
    return "\n\n".join(parts) + "\n"


def _machine(found: dict[str, Any]) -> str:
    where = found.get("gpu") or f"{found['machine']['cpu']}, {found['machine']['cores']} cores"
    return f"{where}; torch {found['versions']['torch']}; {found.get('date', '')[:10]}"


def _ratio(ratio: dict[str, Any] | None) -> str:
    if not ratio:
        return ""
    low, high = ratio["interval_95"]
    return f"{ratio['median']:.2f} [{low:.2f}, {high:.2f}]"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in lines
    )


def _attention(name: str, found: dict[str, Any]) -> list[str]:
    parts = [f"## {name}\n\n{_machine(found)}. Ratios are times of ours: above 1 we are faster."]
    for case in found["cases"]:
        if case["section"] == "import":
            title = "Importing"
        else:
            title = f"{case['batch']} × {case['tokens']:,} tokens, {case['d_model']} wide, "
            title += f"{case['heads']} heads, {case['dtype']}, {case['direction']}"
            title += f", dropout {case['dropout']}" if case["dropout"] else ""
            title += f", window {case['window']}" if case["window"] else ""
            title += f", {case['padding']} of padding" if case["padding"] else ""
        rows = []
        for row in case["rows"]:
            if row["status"] == "timed":
                memory = row["peak_extra_mib"]
                rows.append(
                    [
                        f"**{row['name']}**" if row["ours"] else row["name"],
                        f"{row['median_ms']:,.2f}",
                        "1" if row["ours"] else _ratio(row["ratio_to_ours"]),
                        "" if memory is None else f"{memory:,.0f}",
                        (row["kernel"] or "").removeprefix("aten."),
                    ]
                )
            else:
                rows.append([row["name"], row["status"], row.get("note") or "", "", ""])
        parts.append(f"### {title}\n\n" + _table(["", "ms", "× ours", "MiB", "kernel"], rows))
        best = case.get("ours_to_fastest_other")
        if best and best["median"] > 1.03:
            parts.append(
                f"Here we lose: ours takes {_ratio(best)} times as long as the fastest, "
                f"{best['name']}."
            )
    return parts


def _maps(name: str, found: dict[str, Any]) -> list[str]:
    parts = [
        f"## {name}\n\n{_machine(found)}. Statistics of a whole map beside a forward pass: "
        f"{found['heads']} heads × {found['head_dim']}, {found['dtype']}, causal."
    ]
    for case in found["cases"]:
        rows = [
            [row["name"], f"{row['median_ms']:,.1f}", _ratio(row["ratio_to_ours"])]
            for row in case["rows"]
            if row["status"] == "timed"
        ]
        parts.append(
            f"### {case['tokens']:,} tokens\n\n" + _table(["", "ms", "× the forward"], rows)
        )
        if peak := case.get("peak_gib"):
            parts.append(
                f"Peak memory {peak['in_all']:.1f} GiB, of which q, k, v and the log-sum-exp are "
                f"{peak['of_it_q_k_v_and_log_sum_exp']:.1f}."
            )
    if dense := found.get("dense_weights"):
        rows = [[f"{row['tokens']:,}", "fits" if row["fits"] else "out of memory"] for row in dense]
        parts.append(
            "The weights built instead, as eager code does:\n\n" + _table(["tokens", ""], rows)
        )
    return parts


def _watch(name: str, found: dict[str, Any]) -> list[str]:
    rows = []
    for case in found["cases"]:
        ratio = case["watched_over_plain"]
        low, high = ratio["quartiles"]
        rows.append(
            [
                f"{case['batch']} × {case['tokens']:,}",
                f"{case['plain_ms']:.1f}",
                f"{ratio['median']:.2f} [{low:.2f}, {high:.2f}]",
            ]
        )
    return [
        f"## {name}\n\n{found['gpu']}; torch {found['versions']['torch']}. {found['model']}, "
        f"{found['dtype']}: a forward pass watched beside the same one plain (median, quartiles).",
        _table(["tokens", "plain, ms", "watched, × plain"], rows),
    ]


def _generate(name: str, found: dict[str, Any]) -> list[str]:
    parts = [f"## {name}\n\n{_machine(found)}. Tokens a second; equality of tokens first."]
    for case in found["cases"]:
        rows = [
            [
                f"**{row['name']}**" if row["ours"] else row["name"],
                f"{row['tokens_per_second']:,.0f}"
                if row.get("tokens_per_second")
                else row["status"],
                "1" if row["ours"] else _ratio(row.get("ratio_to_ours")),
            ]
            for row in case["rows"]
        ]
        parts.append(f"### {case['title']}\n\n" + _table(["", "tokens/s", "× ours, in time"], rows))
    return parts


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
    """Write all of them into a folder."""
    for name, make in PAGES.items():
        (folder / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs")
