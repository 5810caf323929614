"""An example in files and for programs: a page, a figure, JSON, a script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clearhead.drawing import file_formats
from clearhead.drawing.html_page import Page
from clearhead.explainer.examples import Example
from clearhead.explainer.steps import Step


def select(example: Example, number: str) -> list[Step]:
    """The steps of this number; "4" means 4a to 4d."""
    steps = example.trace.steps
    chosen = [step for step in steps if number in (step.number, step.number.rstrip("abcd"))]
    if not chosen:
        numbers = ", ".join(step.number for step in steps)
        raise ValueError(
            f"--step {number}: the variant {example.variant} has no such step.\n"
            f"  Its steps are {numbers}."
        )
    return chosen


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
    """Everything, for programs. A number that JSON has no word for (-inf) becomes null."""
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
        "steps": [
            {
                "number": step.number,
                "title": step.title,
                "operation": step.operation,
                "formula": step.formula,
                "before": [list(dim) for dim in step.before],
                "after": [list(dim) for dim in step.after],
                "tensors": {
                    name: {
                        "dims": [list(dim) for dim in step.dims[name]],
                        "shape": list(tensor.shape),
                        "values": _finite(tensor.tolist()),
                    }
                    for name, tensor in step.tensors.items()
                },
                "code": step.code,
            }
            for step in chosen
        ],
    }


def _finite(values: Any) -> Any:
    if isinstance(values, list):
        return [_finite(value) for value in values]
    return values if math.isfinite(values) else None


def save(
    example: Example,
    path: Path,
    *,
    query: int | None = None,
    chosen: Sequence[Step] | None = None,
) -> None:
    """Write the example as a page, as a figure of its weights, or as JSON.

    Args:
        example: What is explained.
        path: The file; its end decides.
        query: The token that the page follows first.
        chosen: The steps that JSON has, and the one that the page shows first; all by default.
    """
    steps = example.trace.steps if chosen is None else chosen

    def page() -> Page:
        made = example.trace.page(title=example.text, notes=[whose_weights(example)])
        given = {"query": query, "step": steps[0].number if chosen is not None else None}
        first = {name: value for name, value in given.items() if value is not None}
        return replace(made, start={**made.start, **first})

    file_formats.save(path, page, data=lambda: to_json(example, steps, query))


def whose_weights(example: Example) -> str:
    """Where the weights are from, and what may be learned from them."""
    if example.model is not None:
        return (
            f"Layer {example.layer} of {example.model}, with the model's own weights. x is what "
            "its attention reads: the vectors after the layers before, normed."
        )
    if example.variant == "simplified" and example.ids is None:
        return "Untrained: this form has no weights, and the vectors are the book's."
    random = f"random {'embeddings' if example.variant == 'simplified' else 'weights'}"
    return f"Untrained, {random} (seed {example.seed}): how attention works, not what it learns."
