"""`clearhead explain`: attention at work, step by step, for one text."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from clearhead.cli.shared import (
    JsonOption,
    ModelOption,
    TextOption,
    layer_option,
    out_option,
    read_text,
    seed_option,
    text_argument,
)

EXAMPLE = 'clearhead explain "My dog loves quantum pizza!" --query dog'
_SEED = 123
_RANDOM = "Random weights instead of a model"
Variant = Literal["simplified", "self", "causal", "wrapper", "multihead", "encoder"]
TokenizerName = Literal["word", "gpt2"]


def explain(
    text: Annotated[
        list[str] | None, text_argument("The text. Without TEXT: the book's example.")
    ] = None,
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
    out: Annotated[
        Path | None,
        out_option(
            "Write an interactive page (.html), a figure of the weights (.svg, .png, .pdf), or "
            "everything as JSON (.json)."
        ),
    ] = None,
    model: ModelOption = None,
    layer: Annotated[
        str | None,
        layer_option(
            "The layer",
            "; or all, for one line per head. [default: that of the clearest head]",
        ),
    ] = None,
    head: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="The head to show, counted from 0. [default: the clearest one of the layer]",
        ),
    ] = None,
    file: TextOption = None,
    as_json: JsonOption = False,
    untrained: Annotated[
        bool,
        typer.Option(
            "--untrained",
            help="Any words, any form of attention. Implied by the options below.",
            rich_help_panel=_RANDOM,
        ),
    ] = False,
    variant: Annotated[
        Variant | None,
        typer.Option(
            metavar="FORM",
            help="The form of attention: simplified, self, causal, wrapper, multihead or encoder. "
            "[default: multihead; simplified without TEXT]",
            rich_help_panel=_RANDOM,
        ),
    ] = None,
    heads: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=512,
            help="The number of heads. [default: 2]",
            rich_help_panel=_RANDOM,
        ),
    ] = None,
    d_model: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=4096,
            help="The width of the vectors. [default: 8]",
            rich_help_panel=_RANDOM,
        ),
    ] = None,
    seed: Annotated[int, seed_option("The seed of the random weights.", _RANDOM)] = _SEED,
    tokenizer: Annotated[
        TokenizerName,
        typer.Option(
            metavar="NAME",
            help="word for whole words, or gpt2 for GPT-2's byte pairs.",
            rich_help_panel=_RANDOM,
        ),
    ] = "word",
) -> None:
    """Show attention at work in a real model, with all numbers.

    Who attends to whom in TEXT, what each head does, and which token comes next. Every step from
    the text to the context vectors: --steps in the terminal, or --out for a page, a figure or JSON.
    A checkpoint must be a GPT-2.
    """
    if [query is not None, step is not None, steps].count(True) > 1:
        raise ValueError(
            "--steps shows all steps, --step one of them, and --query all of them for one token: "
            "choose one of the three."
        )
    from clearhead import drawing
    from clearhead.explainer import examples, one_query, presentation

    given = read_text(text, file)
    given = None if given is None else given.strip()
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
    if model is not None or (given is not None and not random):
        example = examples.model_example(given or "", model=model, layer=layer, head=head)
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
