"""Presentation: an example in the terminal, as JSON, as a script, as a page or a figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from clearhead import drawing
from clearhead.drawing import figures, file_formats
from clearhead.drawing.html_page import Page
from clearhead.explainer import one_query
from clearhead.explainer.examples import Example
from clearhead.explainer.head_choice import HeadSummary
from clearhead.explainer.steps import Step
from clearhead.models.text_readers import Reading

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 16  # rows and columns of a table
SHOWN_HEADS = 4  # tables; of a layer with more heads, one is shown
SHOWN_TOKENS = 40


def select(example: Example, number: str) -> list[Step]:
    """The steps with this number; "4" means 4a to 4d."""
    steps = example.trace.steps
    chosen = [step for step in steps if number in (step.number, step.number.rstrip("abcd"))]
    if not chosen:
        numbers = ", ".join(step.number for step in steps)
        whose = "this model" if example.model is not None else f"the variant {example.variant}"
        raise ValueError(f"--step {number}: {whose} has no such step.\n  Its steps are {numbers}.")
    return chosen


def whose_weights(example: Example) -> str:
    """Where the weights come from, and what they can show."""
    if example.model is not None:
        stream = "the embeddings"
        if example.layer:
            stream = f"the residual stream after layer {example.layer - 1}"
        return (
            f"{which_head(example)} x is the input to this layer's attention: {stream}, "
            "layer-normalised."
        )
    if example.variant == "simplified" and example.ids is None:
        return "Untrained: this form has no weights, and the vectors are the book's."
    random = f"random {'embeddings' if example.variant == 'simplified' else 'weights'}"
    return f"Untrained, {random} (seed {example.seed}): how attention works, not what it learns."


# Terminal.


def draw_header(example: Example, about: str) -> RenderableType:
    """The text, its tokens, a sentence about what is shown, and notes."""
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
        Text(about),
        *(Text(f"Note: {note}") for note in seen.notes),
    )


def which_head(example: Example) -> str:
    """Which head is shown first, what it does, and why it was chosen."""
    words = f"Layer {example.layer}, head {example.head} of {example.name}: {example.does}."
    if len(example.trace.tokens) == 1:
        words += " The text is one token, so there is nothing to compare: every head does."
    elif example.chosen:
        words += " It has the clearest pattern in this text."
    return words


def draw_brief(example: Example) -> RenderableType:
    """The header, the attention tables, and what comes next."""
    seen, several = example.trace, len(example.others) > SHOWN_HEADS
    parts: list[RenderableType] = [
        draw_header(
            example, whose_weights(example) if example.head is None else which_head(example)
        ),
        Text(),
        *_who_attends(example),
    ]
    if several:
        lines = [f"{head}  {does}" for head, does in enumerate(example.others)]
        title = f"All heads of layer {example.layer}"
        parts += [Text(), Text(title, style="bold"), Text("\n".join(lines))]
    if example.next:
        shown = [f"{drawing.visible(token)} {share:.2f}" for token, share in example.next]
        parts += [Text(), drawing.Flow("Most likely next", shown)]
    if seen.skipped:
        parts += [Text(), Text(_skipped(example))]
    more = ["every step: --steps", "one step with its code: --step 4c", "one token: --query WORD"]
    if example.head is not None:
        more += ["another head: --layer N --head N", "all heads: --layer all"]
    return Group(*parts, Text(), drawing.Flow("More", [*more, "a page: -o page.html"]))


def draw_all(example: Example) -> RenderableType:
    """The header, all steps, and the result."""
    skipped = [Text(_skipped(example)), Text()] if example.trace.skipped else []
    return Group(_draw_steps(example, example.trace.steps), *skipped, draw_result(example))


def draw_heads(name: str, reading: Reading, heads: Sequence[HeadSummary]) -> RenderableType:
    """One line per head of a model: what it does, and what the last token attends to."""
    labels = [drawing.visible(label) for label in reading.labels]
    rows = [
        [
            f"{each.layer}.{each.head}",
            each.does,
            ", ".join(f"{labels[key]} {weight:.2f}" for key, weight in each.last),
        ]
        for each in heads
    ]
    last = drawing.shorten(reading.labels[-1], 12)
    return Group(
        Text(f"What the heads of {name} do with this text", style="bold"),
        *(Text(f"Note: {note}") for note in reading.notes),
        drawing.FittingTable(
            ["head", "what it does", f"{last} attends to"], rows, left=3, drop=[2]
        ),
        Text("head: layer.head, counted from 0. One of them: --layer 4 --head 2."),
    )


def _skipped(example: Example) -> str:
    return f"Skipped steps: {', '.join(example.trace.skipped)}."


def draw_chosen(example: Example, chosen: Sequence[Step]) -> RenderableType:
    """The header and the chosen steps; the script that computes them should follow."""
    return Group(
        _draw_steps(example, chosen),
        Text("The PyTorch code that computes these numbers, ready to run:"),
    )


def draw_query(example: Example, index: int, remark: str | None) -> RenderableType:
    """The header, one query followed through all steps, and the result."""
    return Group(
        draw_header(example, whose_weights(example)),
        *([Text(f"Note: {remark}")] if remark else []),
        Text(),
        one_query.draw_query(example.trace, index, limit=SHOWN, heads=_shown_heads(example)),
        *([Text(_skipped(example))] if example.trace.skipped else []),
        Text("Computed for all tokens at once, the numbers are the same:"),
        draw_result(example),
    )


def draw_result(example: Example) -> RenderableType:
    """The attention weights, and the context vectors."""
    seen = example.trace
    parts: list[RenderableType] = [
        *_who_attends(example),
        Text(),
        Text("Context vectors", style="bold"),
        Text("The output: one vector per token, mixed from the tokens it attends to."),
        seen.draw_output(limit=SHOWN),
    ]
    if max(len(seen.tokens), seen.output.shape[-1]) > SHOWN:
        parts += [Text(), Text("The tables are cut off. To see all numbers: --json")]
    return Group(*parts)


def _shown_heads(example: Example) -> list[int] | None:
    """The heads whose tables are shown; None for all of them."""
    heads = example.trace["attn_weights"].shape[-3] if example.trace["attn_weights"].ndim > 2 else 1
    return None if heads <= SHOWN_HEADS else [example.head or 0]


def _who_attends(example: Example) -> list[RenderableType]:
    """The attention weights as tables; of a long text, also as maps."""
    seen, heads = example.trace, _shown_heads(example)
    hint = "Each row is a query and adds up to 1; each column is a key."
    hint += " A · is hidden." if seen.hidden is not None else ""
    parts = [Text("Who attends to whom", style="bold"), Text(hint)]
    tables = seen.draw_weights(limit=SHOWN, heads=heads)
    if len(seen.tokens) <= SHOWN:
        return [*parts, tables]
    return [*parts, tables, Text(), Text("All tokens"), seen.draw_maps(heads=heads)]


def _draw_steps(example: Example, steps: Sequence[Step]) -> RenderableType:
    parts: list[RenderableType] = [draw_header(example, whose_weights(example)), Text()]
    for step in steps:
        parts += [step.draw(head=example.head or 0), Text()]
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
        "head": example.head,
        "does": example.does,
        "heads": list(example.others),
        "next": [{"token": token, "probability": share} for token, share in example.next],
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
        given: dict[str, str | int | None] = {"query": query, "head": example.head}
        if chosen is not None:
            given |= {"view": "steps", "step": chosen[0].number}
        if example.maps is not None:
            made = _with_all_layers(made, example)
            given["layer"] = example.layer
        start = {name: value for name, value in given.items() if value is not None}
        return replace(made, start=start)

    file_formats.save(
        path,
        page,
        data=lambda: to_json(example, steps, query),
        figure=lambda: _figure(example),
    )


def _figure(example: Example) -> Figure:
    """The weights of the traced layer; of one head if the user selected it."""
    (layer,) = example.trace.page().layers
    if example.model is None:
        return figures.layer_figure(layer)
    title = f"{example.name}, layer {example.layer}"
    if example.chosen:
        return figures.layer_figure(layer, title=title)
    assert example.head is not None
    only = slice(example.head, example.head + 1)
    layer = replace(
        layer,
        weights=layer.weights[only],
        hidden=None if layer.hidden is None else layer.hidden[only],
        patterns=layer.patterns[only],
        scores={},
        numbers=(example.head,),
    )
    return figures.layer_figure(layer, title=f"{title}, head {example.head}")


def _with_all_layers(page: Page, example: Example) -> Page:
    """The page with the attention of all layers of the model; its steps are those of one layer."""
    assert example.maps is not None
    assert page.walk is not None
    layers = example.maps.page(tokens=example.trace.tokens).layers
    named = [replace(layer, name=f"layer {i}") for i, layer in enumerate(layers)]
    walk = replace(page.walk, texts={**page.walk.texts, "layer": example.layer})
    return replace(page, layers=tuple(named), walk=walk, facts=(str(example.name),))
