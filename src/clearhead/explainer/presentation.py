"""Presentation: an example in the terminal, as JSON, as a script, as a page or a figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from clearhead import drawing
from clearhead.drawing import file_formats
from clearhead.drawing.html_page import Page
from clearhead.explainer import one_query
from clearhead.explainer.examples import Example
from clearhead.explainer.steps import Step

SHOWN = 16  # rows and columns of a table
SHOWN_TOKENS = 40


def select(example: Example, number: str) -> list[Step]:
    """The steps with this number; "4" means 4a to 4d."""
    steps = example.trace.steps
    chosen = [step for step in steps if number in (step.number, step.number.rstrip("abcd"))]
    if not chosen:
        numbers = ", ".join(step.number for step in steps)
        raise ValueError(
            f"--step {number}: the variant {example.variant} has no such step.\n"
            f"  Its steps are {numbers}."
        )
    return chosen


def whose_weights(example: Example) -> str:
    """Where the weights come from, and what they can show."""
    if example.model is not None:
        stream = "the embeddings"
        if example.layer:
            stream = f"the residual stream after layer {example.layer - 1}"
        return (
            f"Layer {example.layer} of {example.model}, with the model's own weights. x is the "
            f"input to this layer's attention: {stream}, layer-normalised."
        )
    if example.variant == "simplified" and example.ids is None:
        return "Untrained: this form has no weights, and the vectors are the book's."
    random = f"random {'embeddings' if example.variant == 'simplified' else 'weights'}"
    return f"Untrained, {random} (seed {example.seed}): how attention works, not what it learns."


# Terminal.


def draw_header(example: Example) -> RenderableType:
    """The text, its tokens, where the weights come from, and notes."""
    seen = example.trace
    shown = [
        f"{i} {drawing.shorten(token, 20)}" for i, token in enumerate(seen.tokens[:SHOWN_TOKENS])
    ]
    left_out = len(seen.tokens) - SHOWN_TOKENS
    rest = [f"and {left_out} more"] if left_out > 0 else []
    lines: list[RenderableType] = [
        drawing.Flow("Text  ", [drawing.shorten(example.text, 160)]),
        drawing.Flow("Tokens", shown + rest),
    ]
    if example.ids is not None:
        ids = [str(number) for number in example.ids[:SHOWN_TOKENS]]
        lines.append(drawing.Flow("Ids   ", ids + rest, gap=" "))
    return Group(
        *lines,
        Text(whose_weights(example)),
        *(Text(f"Note: {note}") for note in seen.notes),
    )


def draw_all(example: Example) -> RenderableType:
    """The header, all steps, and the result."""
    return Group(_draw_steps(example, example.trace.steps), draw_result(example))


def draw_chosen(example: Example, chosen: Sequence[Step]) -> RenderableType:
    """The header and the chosen steps; the script that computes them should follow."""
    return Group(
        _draw_steps(example, chosen),
        Text("The PyTorch code that computes these numbers, ready to run:"),
    )


def draw_query(example: Example, index: int, remark: str | None) -> RenderableType:
    """The header, one query followed through all steps, and the result."""
    return Group(
        draw_header(example),
        *([Text(f"Note: {remark}")] if remark else []),
        Text(),
        one_query.draw_query(example.trace, index, limit=SHOWN),
        Text("Computed for all tokens at once, the numbers are the same:\n"),
        draw_result(example),
    )


def draw_result(example: Example) -> RenderableType:
    """The attention weights of each head, and the context vectors."""
    seen = example.trace
    hint = "Each row is a query and adds up to 1; each column is a key."
    hint += " A · is hidden." if seen.hidden is not None else ""
    parts: list[RenderableType] = [
        Text("Who attends to whom", style="bold"),
        Text(hint),
        seen.draw_weights(limit=SHOWN),
        *((Text(), Text("All tokens"), seen.draw_maps()) if len(seen.tokens) > SHOWN else ()),
        Text(),
        Text("Context vectors", style="bold"),
        Text("The output: one vector per token, mixed from the tokens it attends to."),
        seen.draw_output(limit=SHOWN),
    ]
    if max(len(seen.tokens), seen.output.shape[-1]) > SHOWN:
        parts += [Text(), Text("The tables are cut off. To see all numbers: --json")]
    return Group(*parts)


def _draw_steps(example: Example, steps: Sequence[Step]) -> RenderableType:
    parts: list[RenderableType] = [draw_header(example), Text()]
    for step in steps:
        parts += [step, Text()]
    return Group(*parts)


# For programs.


def script(example: Example, chosen: Sequence[Step]) -> str:
    """A complete program that prints the tensors of the chosen steps."""
    steps = example.trace.steps
    lines = [example.setup]
    for step in steps[: steps.index(chosen[-1]) + 1]:
        lines += ["", f"# {step.number} {step.title}", step.code]
    lines += ["", "torch.set_printoptions(precision=4, sci_mode=False)"]
    lines += [f"print({name})" for step in chosen for name in step.tensors]
    return "\n".join(lines)


def to_json(example: Example, chosen: Sequence[Step], query: int | None) -> dict[str, Any]:
    """Everything, for programs. A number that JSON cannot express (-inf) becomes null."""
    seen = example.trace
    return {
        "schema": 1,
        "text": example.text,
        "tokenizer": example.tokenizer,
        "tokens": list(seen.tokens),
        "ids": example.ids,
        "variant": example.variant,
        "form": seen.form,
        "seed": example.seed,
        "trained": example.model is not None,
        "model": example.model,
        "layer": example.layer,
        "query": None if query is None else {"index": query, "token": seen.tokens[query]},
        "gap": seen.gap,
        "notes": list(seen.notes),
        "x": {"shape": list(seen.x.shape), "values": _finite(seen.x.tolist())},
        "setup": example.setup,
        "steps": [_step_to_json(step) for step in chosen],
    }


def _step_to_json(step: Step) -> dict[str, Any]:
    described = step.to_json()
    dims = described.pop("dims")
    tensors = {
        name: {
            "dims": dims[name],
            "shape": list(tensor.shape),
            "values": _finite(tensor.tolist()),
        }
        for name, tensor in step.tensors.items()
    }
    return {**described, "after": [list(dim) for dim in step.after], "tensors": tensors}


def _finite(values: Any) -> Any:
    if isinstance(values, list):
        return [_finite(value) for value in values]
    return values if math.isfinite(values) else None


# Files.


def save(
    example: Example,
    path: Path,
    *,
    query: int | None = None,
    chosen: Sequence[Step] | None = None,
) -> None:
    """Write the example as a page, as a figure of its weights, or as JSON.

    Args:
        example: The example.
        path: The file; the suffix decides the format.
        query: The token that the page follows first.
        chosen: The steps in the JSON file, of which the page shows the first one first; all by
            default.
    """
    steps = example.trace.steps if chosen is None else chosen

    def page() -> Page:
        made = example.trace.page(title=example.text, notes=[whose_weights(example)])
        given = {"query": query, "step": steps[0].number if chosen is not None else None}
        first = {name: value for name, value in given.items() if value is not None}
        return replace(made, start={**made.start, **first})

    file_formats.save(path, page, data=lambda: to_json(example, steps, query))
