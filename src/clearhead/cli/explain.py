"""`clearhead explain`: attention at work, step by step, for one text."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = 'clearhead explain "the cat sat on the mat" --query sat'


class Variant(StrEnum):
    """The forms of attention, simplest first."""

    SIMPLIFIED = "simplified"
    SELF = "self"
    CAUSAL = "causal"
    WRAPPER = "wrapper"
    MULTIHEAD = "multihead"
    ENCODER = "encoder"


class TokenizerName(StrEnum):
    """How text is cut into tokens."""

    WORD = "word"
    GPT2 = "gpt2"


def explain(
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT",
            help="The text. Without it: the book's own example.",
            show_default=False,
        ),
    ] = None,
    variant: Annotated[
        Variant | None,
        typer.Option(help="The form of attention. [default: multihead; simplified without TEXT]"),
    ] = None,
    heads: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=512, help="How many heads. [default: 2]")
    ] = None,
    d_model: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=4096, help="The width of the vectors. [default: 8]"),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, max=2**32 - 1, help="Another seed, other weights.")
    ] = 123,
    query: Annotated[
        str | None,
        typer.Option(
            metavar="WORD",
            help="Follow one token through all steps: a word, WORD:2 for its second place, or "
            "the number of the token.",
        ),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Show one step, as numbered there (4c, say), with the PyTorch that gives it.",
        ),
    ] = None,
    tokenizer: Annotated[
        TokenizerName, typer.Option(help="Whole words, or GPT-2's pieces of words.")
    ] = TokenizerName.WORD,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR_OR_NAME",
            help="Show a layer of this GPT-2: a folder, a file, a name on the hub, or what "
            "`clearhead train` wrote. "
            "[default: the small trained model that comes with Clearhead]",
            show_default=False,
        ),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Which layer of the model. [default: 0; of a model of the lab's the last]",
        ),
    ] = None,
    untrained: Annotated[
        bool,
        typer.Option(
            "--untrained",
            help="Random weights instead of a model: any words, any form. "
            "--variant, --heads, --d-model, --seed and --tokenizer mean the same.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, for programs.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Write a page to look at and walk through (.html), a figure of the weights "
            "(.svg, .png, .pdf), or everything for programs (.json).",
        ),
    ] = None,
) -> None:
    """Show attention at work, step by step, with all numbers.

    A text goes in, and every step on its way to context vectors is drawn: in this window, or as a
    page, a figure or JSON with --out.
    """
    if query is not None and step is not None:
        raise ValueError("--query shows all steps and --step shows one: choose one of the two.")
    import json

    from clearhead import drawing, explainer
    from clearhead.explainer import one_query

    given = None if text is None else " ".join(text)
    chosen_sizes = (variant, heads, d_model) != (None, None, None)
    random = chosen_sizes or seed != 123 or tokenizer is not TokenizerName.WORD or untrained
    if random and (model is not None or layer is not None):
        raise ValueError(
            "A model has its own form, heads, width, weights and tokenizer: leave out "
            "--variant, --heads, --d-model, --seed, --tokenizer and --untrained."
        )
    if model is not None:
        example = explainer.build_from_model(given or "", model=model, layer=layer)
    elif given is not None and not random:
        example = explainer.build_from_lab(given, layer=layer)
    elif layer is not None:
        raise ValueError("--layer is a layer of a model that reads TEXT: give a TEXT, too.")
    else:
        if given is None and variant is None:
            variant = Variant.SIMPLIFIED
            query = "journey" if query is None and step is None else query
        example = explainer.build(
            given,
            variant=(variant or Variant.MULTIHEAD).value,
            heads=heads,
            d_model=d_model,
            seed=seed,
            tokenizer=tokenizer.value,
        )
    index, remark = None, None
    if query is not None:
        index, remark = one_query.find_query(example.trace.tokens, query)
    chosen = example.trace.steps if step is None else explainer.select(example, step)
    if out is not None:
        try:
            explainer.save(example, out, query=index, chosen=None if step is None else chosen)
        except OSError as error:
            said = f"{out}: {error.strerror}" if error.strerror else str(error)
            raise ValueError(f"--out {said}") from None
        print(f"Wrote {out}", file=sys.stderr)
        if not as_json or out.suffix.lower() == ".json":
            return
    if as_json:
        print(json.dumps(explainer.to_json(example, chosen, index), allow_nan=False))
        return
    screen = drawing.console()
    if step is not None:
        screen.print(explainer.draw_step(example, chosen))
        # Not through the console: a program must not be wrapped at the window's edge.
        print("\n" + explainer.script(example, chosen))
    elif index is not None:
        screen.print(explainer.draw_query(example, index, remark))
    else:
        screen.print(explainer.draw_all(example))
    if given is None and step is None:
        screen.print('\nNow your own text: clearhead explain "the cat sat on the mat"')
