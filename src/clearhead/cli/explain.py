"""`clearhead explain`: attention at work, step by step, for one text."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from clearhead.cli.shared import GPT2_HELP

EXAMPLE = 'clearhead explain "My dog loves quantum pizza!" --query dog'
_SEED = 123
Variant = Literal["simplified", "self", "causal", "wrapper", "multihead", "encoder"]
TokenizerName = Literal["word", "gpt2"]


def explain(
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT",
            help="The text. [default: the book's example]",
            show_default=False,
        ),
    ] = None,
    variant: Annotated[
        Variant | None,
        typer.Option(help="The form of attention. [default: multihead; simplified without TEXT]"),
    ] = None,
    heads: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=512, help="The number of heads. [default: 2]"),
    ] = None,
    d_model: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=4096, help="The width of the vectors. [default: 8]"),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(metavar="N", min=0, max=2**32 - 1, help="The seed of the random weights."),
    ] = _SEED,
    query: Annotated[
        str | None,
        typer.Option(
            metavar="WORD",
            help="Follow one token through all steps: a word, WORD:2 for its second occurrence, or "
            "the index of the token.",
        ),
    ] = None,
    steps: Annotated[
        bool, typer.Option("--steps", help="Show all steps, with shapes and numbers.")
    ] = False,
    step: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Show one step by its number, such as 4c, with the PyTorch code that computes it.",
        ),
    ] = None,
    tokenizer: Annotated[
        TokenizerName, typer.Option(help="Whole words, or GPT-2's byte pairs.")
    ] = "word",
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME_OR_DIR",
            help=GPT2_HELP,
            show_default=False,
        ),
    ] = None,
    layer: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="The layer of the model, counted from 0, or all for one line per head. "
            "[default: that of the clearest head]",
        ),
    ] = None,
    head: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="The head to show, counted from 0. [default: the clearest one of the layer]",
        ),
    ] = None,
    untrained: Annotated[
        bool,
        typer.Option(
            "--untrained",
            help="Use random weights instead of a model: any words, any form. "
            "Implied by --variant, --heads, --d-model, --seed and --tokenizer.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Write an interactive page (.html), a figure of the weights (.svg, .png, .pdf), "
            "or everything as JSON (.json).",
        ),
    ] = None,
) -> None:
    """Show attention at work in a real model, with all numbers.

    Who attends to whom in TEXT, what each head does, and which token comes next. Every step from
    the text to the context vectors: --steps in the terminal, or --out for a page, a figure or JSON.
    """
    if [query is not None, step is not None, steps].count(True) > 1:
        raise ValueError(
            "--steps shows all steps, --step one of them, and --query all of them for one token: "
            "choose one of the three."
        )
    from clearhead import drawing
    from clearhead.explainer import examples, one_query, presentation

    given = None if text is None else " ".join(text).strip()
    random = untrained or seed != _SEED or tokenizer != "word"
    random = random or (variant, heads, d_model) != (None, None, None)
    if random and (model, layer, head) != (None, None, None):
        raise ValueError(
            "A model has its own form, heads, width, weights and tokenizer: leave out "
            "--variant, --heads, --d-model, --seed, --tokenizer and --untrained."
        )
    if layer == "all":
        if given is None or (head, query, step, out) != (None,) * 4 or steps:
            raise ValueError(
                "--layer all prints one line per head: give a TEXT, and leave out --head, --query, "
                "--step, --steps and --out."
            )
        name, reading, summaries = examples.all_heads(given, model=model)
        if as_json:
            print(json.dumps({"schema": 1, "model": name, "heads": list(map(asdict, summaries))}))
        else:
            drawing.console().print(presentation.draw_heads(name, reading, summaries))
        return
    if layer is not None and not layer.removeprefix("-").isdecimal():
        raise ValueError(f"--layer: expected the number of a layer, or all, got {layer!r}.")
    if model is not None or (given is not None and not random):
        example = examples.model_example(
            given or "", model=model, layer=None if layer is None else int(layer), head=head
        )
    elif (layer, head) != (None, None):
        raise ValueError(
            "--layer and --head select a head of a model that reads TEXT: give a TEXT, too."
        )
    else:
        if given is None and variant is None:
            variant = "simplified"
            query = "journey" if query is None and step is None else query
        example = examples.untrained_example(
            given,
            variant=variant or "multihead",
            heads=heads,
            d_model=d_model,
            seed=seed,
            tokenizer=tokenizer,
        )
    index, remark = None, None
    if query is not None:
        index, remark = one_query.find_query(example.trace.tokens, query)
    chosen = None if step is None else presentation.select(example, step)
    if out is not None:
        try:
            presentation.save(example, out, query=index, chosen=chosen)
        except OSError as error:
            problem = f"{out}: {error.strerror}" if error.strerror else str(error)
            raise ValueError(f"--out {problem}") from None
        print(f"Wrote {out}", file=sys.stderr)
        if not as_json or out.suffix.lower() == ".json":
            return
    if as_json:
        shown = chosen or example.trace.steps
        print(json.dumps(presentation.to_json(example, shown, index), allow_nan=False))
        return
    screen = drawing.console()
    if chosen is not None:
        screen.print(presentation.draw_chosen(example, chosen))
        # Not through the console, which would wrap the program at the edge of the terminal.
        print("\n" + presentation.script(example, chosen))
    elif index is not None:
        screen.print(presentation.draw_query(example, index, remark))
    elif steps:
        screen.print(presentation.draw_all(example))
    else:
        screen.print(presentation.draw_brief(example))
    if given is None and step is None:
        screen.print('\nNow try your own text: clearhead explain "My dog loves quantum pizza!"')
