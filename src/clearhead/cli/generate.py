"""`clearhead generate`: continue a text."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearhead.cli.shared import (
    INTERRUPTED,
    JsonOption,
    ModelOption,
    TextOption,
    layer_option,
    read_text,
    report_notes,
    seed_option,
    text_argument,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clearhead.models import LoadedModel
    from clearhead.models.text_readers import Reading, TextReader
    from clearhead.watcher.one_text import Attended

EXAMPLE = 'clearhead generate "the cat sat" --top-p 0.9 --seed 1'
_TOKENS = 50


def generate(
    text: Annotated[list[str] | None, text_argument("The text to continue.")] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help=f"The largest number of new tokens. [default: {_TOKENS}, or what fits into the "
            "context]",
        ),
    ] = None,
    model: ModelOption = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            metavar="T",
            help="Sample tokens at this temperature: 1 uses the model's probabilities, lower "
            "values favour likely tokens, higher values favour unlikely ones. "
            "[default: always the most likely token; 1 with --top-k or --top-p]",
        ),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(metavar="K", help="Sample from the K most likely tokens only.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            help="Sample from the smallest set of tokens whose probabilities add up to P.",
        ),
    ] = None,
    seed: Annotated[int | None, seed_option("The same seed gives the same text.")] = None,
    sliding: Annotated[
        bool,
        typer.Option("--sliding", help="When the context is full, drop its beginning. Slow."),
    ] = False,
    show_attention: Annotated[
        bool,
        typer.Option(
            "--show-attention",
            help="For each new token, print to stderr which tokens received the most attention "
            "when it was chosen, averaged over the heads of one layer. This shows where one layer "
            "attends, not why the token was chosen. The first token of any text "
            "receives much of the attention.",
        ),
    ] = False,
    layer: Annotated[
        str | None, layer_option("The layer for --show-attention", ". [default: the last one]")
    ] = None,
    file: TextOption = None,
    as_json: JsonOption = False,
) -> int:
    """Continue a text with the English model, or with a GPT-2.

    The text is printed to stdout while it is generated; with --json, at the end. Ctrl-C ends it.
    """
    if layer is not None and not show_attention:
        raise ValueError("--layer belongs to --show-attention: give both.")
    given = read_text(text, file)
    if not given:
        raise ValueError(
            "TEXT is empty: give a text to continue, as TEXT or as a file with --text FILE.\n"
            f"  Try: {EXAMPLE}"
        )
    import torch

    from clearhead.models import find_model

    loaded = find_model(model, device="cuda" if torch.cuda.is_available() else "cpu")
    reading = loaded.read(given)
    config, reader = loaded.gpt2.config, loaded.reader
    last = config["num_layers"] - 1
    number = last if layer is None else loaded.layer_number(layer)
    room = config["context_length"] - len(reading.ids)
    if tokens is None:
        tokens = _TOKENS if sliding else max(1, min(_TOKENS, room))
    if tokens > room and not sliding:
        fewer = f"--tokens {room}" if room > 0 else "a shorter text"
        raise ValueError(
            f"TEXT has {len(reading.ids):,} tokens; with {tokens:,} new, that is more than the "
            f"{config['context_length']:,} that {loaded.name} accepts.\n"
            f"  Try {fewer}, or --sliding, which drops the beginning."
        )
    written: Iterator[int] = loaded.gpt2.stream(  # type: ignore[assignment]  # one prompt: ids
        reading.ids,
        tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=reader.end if reader.end is not None and reader.end < config["vocab_size"] else None,
        sliding=sliding,
    )
    report_notes(reading.notes)
    looks: Iterator[Attended] | None = None
    if show_attention:
        from clearhead.watcher.one_text import look

        looks = look(loaded.gpt2, reading.ids, written, layer=number)
    if as_json:
        return _print_json(loaded, reading, looks or written)
    if looks is not None:
        written = _report(looks, list(reading.ids), reader)
    return _print(reading.text, reading.ids, written, reader, at_once=show_attention)


def _print_json(
    loaded: LoadedModel, reading: Reading, written: Iterator[int] | Iterator[Attended]
) -> int:
    """Print the text and its new tokens as JSON at the end; return the exit status."""
    reader, status = loaded.reader, 0
    tokens: list[dict[str, Any]] = []
    try:
        for one in written:
            token = one if isinstance(one, int) else one.token
            tokens.append({"id": token, "token": reader.decode([token])})
            if not isinstance(one, int):
                shares = [round(share, 6) for share in one.shares]
                tokens[-1]["attended"] = list(zip(one.positions, shares, strict=True))
    except KeyboardInterrupt:
        status = INTERRUPTED
    new = [each["id"] for each in tokens if each["id"] != reader.end]
    found = {"schema": 1, "model": loaded.path, "text": reading.text}
    print(json.dumps({**found, "continuation": reader.decode(new), "tokens": tokens}))
    return status


def _print(
    given: str,
    ids: list[int],
    written: Iterator[int],
    reader: TextReader,
    *,
    at_once: bool,
) -> int:
    """Print the text piece by piece, or all of it at the end; return the exit status."""
    from clearhead.models.text_readers import Characters

    characters = Characters(reader, ids)
    pieces = [given]
    status = 0
    try:
        for token in written:
            if not at_once:
                _put("".join(pieces))
                pieces.clear()
            if token != reader.end:
                pieces.append(characters.add(token))
    except KeyboardInterrupt:
        status = INTERRUPTED
    _put("".join(pieces) + characters.rest() + "\n")
    return status


def _put(text: str) -> None:
    """Print a piece of the text at once."""
    from clearhead import drawing

    # A control character would act on a terminal; a pipe gets the text unchanged.
    print(drawing.harmless(text) if sys.stdout.isatty() else text, end="", flush=True)


def _report(looks: Iterator[Attended], ids: list[int], reader: TextReader) -> Iterator[int]:
    """Pass the tokens on, and print to stderr what received attention when each was chosen."""
    from clearhead import drawing

    for token, positions, shares in looks:
        words = [
            f"{drawing.visible(reader.decode([ids[position]]))} {share:.0%}"
            for position, share in zip(positions, shares, strict=True)
        ]
        new = drawing.visible(reader.decode([token]))
        print(f"{new:>16}  attended to  {', '.join(words)}", file=sys.stderr, flush=True)
        ids.append(token)
        yield token
