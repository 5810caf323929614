"""An example in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from clearhead import drawing
from clearhead.explainer import one_query
from clearhead.explainer.examples import Example
from clearhead.explainer.output_files import whose_weights
from clearhead.explainer.steps import Step

SHOWN = 16  # rows and columns of a table


def draw_head(example: Example) -> RenderableType:
    """The text, its tokens, and whose weights these are."""
    seen = example.trace
    shown = [f"{i} {drawing.shorten(token, 20)}" for i, token in enumerate(seen.tokens[:40])]
    rest = [f"and {len(seen.tokens) - 40} more"] if len(seen.tokens) > 40 else []
    lines: list[RenderableType] = [
        drawing.Flow("Text  ", [drawing.shorten(example.text, 160)]),
        drawing.Flow("Tokens", shown + rest),
    ]
    if example.ids is not None:
        lines.append(drawing.Flow("Ids   ", [str(i) for i in example.ids[:40]] + rest, gap=" "))
    return Group(
        *lines,
        Text(whose_weights(example)),
        *(Text(f"Note: {note}") for note in seen.notes),
    )


def draw_all(example: Example) -> RenderableType:
    """Head, all steps, and what came out."""
    parts: list[RenderableType] = [draw_head(example), Text()]
    for step in example.trace.steps:
        parts += [step, Text()]
    return Group(*parts, draw_result(example))


def draw_result(example: Example) -> RenderableType:
    """The attention of each head, and the context vectors."""
    seen = example.trace
    hint = "Each row is a query and adds up to 1; each column is a key."
    hint += " A · is hidden." if seen.hidden is not None else ""
    parts: list[RenderableType] = [
        Text("Who attends to whom", style="bold"),
        Text(hint),
        seen.draw_weights(limit=SHOWN),
        *((Text(), Text("All of it"), seen.draw_maps()) if len(seen.tokens) > SHOWN else ()),
        Text(),
        Text("Context vectors", style="bold"),
        Text("What attention gives: one vector per token, mixed from the tokens it attends to."),
        seen.draw_output(limit=SHOWN),
    ]
    if max(len(seen.tokens), seen.output.shape[-1]) > SHOWN:
        parts += [Text(), Text("The tables are cut. To see all numbers: --json")]
    return Group(*parts)


def draw_step(example: Example, chosen: Sequence[Step]) -> RenderableType:
    """Head, the chosen steps, and the program that gives their numbers."""
    parts: list[RenderableType] = [draw_head(example), Text()]
    for step in chosen:
        parts += [step, Text()]
    return Group(*parts, Text("The PyTorch that gives these numbers, ready to run:"))


def draw_query(example: Example, index: int, remark: str | None) -> RenderableType:
    """Head, one query on its way through all steps, and what came out."""
    return Group(
        draw_head(example),
        *([Text(f"Note: {remark}")] if remark else []),
        Text(),
        one_query.draw_query(example.trace, index, limit=SHOWN),
        Text("All tokens at once give the same numbers:\n"),
        draw_result(example),
    )
