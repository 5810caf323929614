"""`clearhead generate`: the command line. Importing this file imports no torch.

It stands in the lab because the lab's model is the one that writes where no other is named.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clearhead.gpt2.model import GPT2
    from clearhead.models.text_stream import Tokenizer
    from clearhead.watcher.one_text import Looked

EXAMPLE = 'clearhead generate "the cat sat" --top-p 0.9 --seed 1'
_INTERRUPTED = 130  # what a shell reports after Ctrl-C
_TOKENS = 50
_EMPTY = "TEXT is empty: there is nothing to go on from."


def generate(
    text: Annotated[
        list[str], typer.Argument(metavar="TEXT", help="How it begins.", show_default=False)
    ],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR_OR_NAME",
            help="A GPT-2: a folder, a file, a name on the hub, or what `clearhead train` wrote. "
            "[default: the small trained model that comes with Clearhead]",
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help=f"How many at most. [default: {_TOKENS}, or what the context has room for]",
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            metavar="T",
            help="Draw tokens by chance: 1 as the model says, less is safer, more is wilder. "
            "[default: the likeliest token each time; 1 with --top-k or --top-p]",
        ),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(metavar="K", help="Draw among the K likeliest tokens only.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            metavar="P", help="Draw among the fewest tokens that have probability P together."
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="S", min=0, max=2**32 - 1, help="The same seed draws the same text."),
    ] = None,
    sliding: Annotated[
        bool,
        typer.Option("--sliding", help="When the context is full, forget its beginning: slow."),
    ] = False,
    show_attention: Annotated[
        bool,
        typer.Option(
            "--show-attention",
            help="For each new token, on stderr: which tokens were looked at most when it was "
            "chosen, averaged over the heads of one layer. That is where one layer looked, not "
            "why the token came. Expect much of it on the first token, in any text.",
        ),
    ] = False,
    layer: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="The layer of --show-attention, from 0. [default: the last one]"
        ),
    ] = None,
) -> int:
    """Continue a text with a GPT-2, or with the lab's small model.

    The text appears as it is written, on stdout and nothing else there. Ctrl-C ends it.
    """
    if layer is not None and not show_attention:
        raise ValueError("--layer belongs to --show-attention: give both.")
    import torch

    from clearhead.models.trained_model import Words
    from clearhead.watcher.one_text import look

    given = " ".join(text)
    if not given:
        raise ValueError(_EMPTY)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loaded, tokenizer, end = _load(model, given, device)
    if isinstance(tokenizer, Words):
        given = " ".join(given.split())  # how words are spaced does not count
        if not given:
            raise ValueError(_EMPTY)
    layers = loaded.config["num_layers"]
    if layer is not None and not 0 <= layer < layers:
        raise ValueError(f"--layer: expected 0 to {layers - 1}, got {layer}.")
    ids = tokenizer.encode(given)
    if tokens is None:
        room = loaded.config["context_length"] - len(ids)
        tokens = _TOKENS if sliding else max(1, min(_TOKENS, room))
    written: Iterator[int] = loaded.stream(  # type: ignore[assignment]  # one prompt: ids
        ids,
        tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=end if end is not None and end < loaded.config["vocab_size"] else None,
        sliding=sliding,
    )
    if show_attention:
        looks = look(loaded, ids, written, layer=layers - 1 if layer is None else layer)
        written = _report(looks, list(ids), tokenizer)
    return _print(given, ids, written, tokenizer, end, at_once=show_attention)


def _load(model: str | None, given: str, device: str) -> tuple[GPT2, Tokenizer, int | None]:
    """The model, what cuts text for it, and the id that ends a text."""
    from clearhead.gpt2.model import GPT2
    from clearhead.models.text_stream import find_tokenizer
    from clearhead.models.trained_model import Words, load_model, shipped, trained_file
    from clearhead.models.word_reading import read

    file = None if model is None else trained_file(model)
    if model is not None and file is None:
        loaded = GPT2.from_pretrained(model, device=device)
        return loaded, *find_tokenizer(model, loaded.config["vocab_size"])
    loaded, tokens = shipped() if file is None else load_model(file)
    for note in read(given, tokens).notes:
        print(f"Note: {note}", file=sys.stderr)
    words = Words(tokens)
    return loaded.to(device), words, words.end


def _print(
    given: str,
    ids: list[int],
    written: Iterator[int],
    tokenizer: Tokenizer,
    end: int | None,
    *,
    at_once: bool,
) -> int:
    """Show the text piece by piece, or all of it at the end; the exit status."""
    from clearhead.models.text_stream import Characters

    characters = Characters(tokenizer, ids)
    pieces = [given]
    status = 0
    try:
        for token in written:
            if not at_once:
                _put("".join(pieces))
                pieces.clear()
            if token != end:
                pieces.append(characters.add(token))
    except KeyboardInterrupt:
        status = _INTERRUPTED
    _put("".join(pieces) + characters.rest() + "\n")
    return status


def _put(text: str) -> None:
    """Write a piece of the text, now."""
    from clearhead import drawing

    # In a terminal, a control character would act; in a pipe the text goes on as it is.
    print(drawing.harmless(text) if sys.stdout.isatty() else text, end="", flush=True)


def _report(looks: Iterator[Looked], ids: list[int], tokenizer: Tokenizer) -> Iterator[int]:
    """Pass the tokens on, and say on stderr what each one looked at."""
    from clearhead import drawing

    for token, places, shares in looks:
        words = [
            f"{drawing.visible(tokenizer.decode([ids[place]]))} {share:.0%}"
            for place, share in zip(places, shares, strict=True)
        ]
        new = drawing.visible(tokenizer.decode([token]))
        print(f"{new:>16}  looked at  {', '.join(words)}", file=sys.stderr, flush=True)
        ids.append(token)
        yield token
