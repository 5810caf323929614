"""Write on: a prompt's ids -> the ids that follow it, all at once or one by one.

`generate` and `stream` are methods of `GPT2`. At each step the model reads what is there so far and
gives logits; `sampling.py` turns them into a token; the token is appended. With a cache (the
default) only the new token is read at a step. `decoding.py` and `graphs.py` know how, fastest.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from clearhead.gpt2 import decoding
from clearhead.gpt2.sampling import Sampling, is_bad, refuse_bad
from clearhead.validation import ShapeError

if TYPE_CHECKING:
    from clearhead.gpt2.model import GPT2

Ids = TypeVar("Ids", list[int], list[list[int]], Tensor)


def generate(
    model: GPT2,
    ids: Ids,
    max_new_tokens: int | None = None,
    *,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop: int | Sequence[int] | None = None,
    cache: bool = True,
    sliding: bool = False,
) -> Ids:
    """Prompts and what the model writes after them.

    Without temperature, top_k and top_p the likeliest token is taken at each step. Dropout is off,
    whatever mode the model is in.

    Args:
        model: The model.
        ids: One prompt as a list of ids, several as a list of such lists (of any lengths), or a
            tensor (tokens,) or (batch, tokens).
        max_new_tokens: How many tokens to write at most; None: as many as fit into the context.
        temperature: Above 0: draw each token by chance; 1.0 as the model says, less is safer, more
            is wilder.
        top_k: Draw among this many likeliest tokens only.
        top_p: Draw among the fewest likeliest tokens that have at least this probability together.
        seed: The same seed gives the same draws. None: `torch.manual_seed` decides, as elsewhere in
            torch.
        stop: A token, or several, after which a row ends.
        cache: Whether to keep keys and values. False reads all tokens again at each step: slow, and
            the same tokens.
        sliding: Once the context is full, go on with the last `context_length` tokens. They all
            move by one position then, so that they are read again at each step: slow. Without it,
            a text that would not fit is an error.

    Returns:
        The same form as `ids`. Lists end with their stop token; in a tensor, rows that end early
        are filled up with theirs.

    Raises:
        ValueError: An empty prompt, an id out of range, a text that does not fit, a setting that
            makes no sense, or logits that are not numbers.

    >>> from clearhead.gpt2 import GPT2
    >>> _ = torch.manual_seed(0)
    >>> tiny = {"vocab_size": 97, "context_length": 16, "d_model": 12, "num_heads": 3,
    ...         "num_layers": 2, "dropout": 0.0, "qkv_bias": True}
    >>> len(GPT2(tiny).generate([3, 1, 4], 5))
    8
    """
    task = _read(model, ids, max_new_tokens, stop, cache=cache, sliding=sliding)
    sampling = Sampling.read(temperature, top_k, top_p, seed)
    rows = [list(prompt) for prompt in task.prompts]
    for tokens in _write(model, task, sampling, ahead=64):
        for row, token in zip(rows, tokens, strict=True):
            if token is not None:
                row.append(token)
    if isinstance(ids, Tensor):
        longest = max(map(len, rows))
        filled = [row + row[-1:] * (longest - len(row)) for row in rows]
        found = torch.tensor(filled, dtype=ids.dtype, device=ids.device)
        return found[0] if ids.ndim == 1 else found
    return rows if task.several else rows[0]  # type: ignore[return-value]  # the form of ids


def stream(
    model: GPT2,
    ids: Sequence[int] | Sequence[Sequence[int]] | Tensor,
    max_new_tokens: int | None = None,
    *,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop: int | Sequence[int] | None = None,
    cache: bool = True,
    sliding: bool = False,
) -> Iterator[int] | Iterator[list[int | None]]:
    """What `generate` writes, token by token as it comes; the arguments are the same.

    Returns:
        For one prompt, an iterator over ids. For several, over lists with an id for each row, or
        None where the row has ended. A wrong argument raises here, not at the first token.

    >>> from clearhead.gpt2 import GPT2
    >>> tiny = {"vocab_size": 97, "context_length": 16, "d_model": 12, "num_heads": 3,
    ...         "num_layers": 2, "dropout": 0.0, "qkv_bias": True}
    >>> sum(1 for token in GPT2(tiny).stream([3, 1, 4]))
    13
    """
    task = _read(model, ids, max_new_tokens, stop, cache=cache, sliding=sliding)
    sampling = Sampling.read(temperature, top_k, top_p, seed)
    written = _write(model, task, sampling, ahead=4)
    if task.several:
        return written
    return (token for tokens in written for token in tokens if token is not None)


@dataclass(frozen=True)
class _Task:
    """What to write, checked."""

    prompts: list[list[int]]
    several: bool  # whether the user gave a batch
    new: int
    stop: frozenset[int]
    cache: bool
    fits: bool  # whether prompt and new tokens fit into the context

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """The prompts filled up on the left, and their lengths; None where all are equal."""
        lengths = [len(prompt) for prompt in self.prompts]
        width = max(lengths)
        rows = [[0] * (width - len(prompt)) + prompt for prompt in self.prompts]
        ids = torch.tensor(rows, device=device)
        return ids, None if min(lengths) == width else torch.tensor(lengths, device=device)


def _write(
    model: GPT2, task: _Task, sampling: Sampling, *, ahead: int
) -> Iterator[list[int | None]]:
    """The tokens of each step; None for a row that has ended."""
    ended = [False] * len(task.prompts)
    for tokens in _tokens(model, task, sampling, ahead):
        yield [None if over else token for token, over in zip(tokens, ended, strict=True)]
        ended = [over or token in task.stop for token, over in zip(tokens, ended, strict=True)]
        if all(ended):
            return


def _tokens(model: GPT2, task: _Task, sampling: Sampling, ahead: int) -> Iterator[list[int]]:
    """The tokens of each step, also of rows that have ended."""
    ids, lengths = task.tensors(model.embedding.token.weight.device)
    batch, width = ids.shape
    draws = sampling.draws(task.new, batch)
    if task.cache and task.fits and ids.is_cuda:
        from clearhead.gpt2 import cuda_graphs

        if cuda_graphs.refusal(model) is None:
            yield from cuda_graphs.run(model, ids, lengths, task.new, sampling, draws, ahead)
            return
    context = model.config["context_length"]
    decoder: decoding.Decoder
    if task.cache and width < context:
        decoder = decoding.choose(model, batch, min(context, width + task.new))
    else:
        decoder = decoding.Recomputing(model)
    logits = decoder.prefill(ids, lengths)
    for step in range(task.new):
        if is_bad(logits):
            refuse_bad(step)
        draw = None if draws is None else draws[step].to(logits.device)
        picked = sampling.pick(logits, draw)
        yield picked.tolist()
        if step + 1 == task.new:
            return
        ids = torch.cat([ids, picked[:, None]], dim=1)
        lengths = None if lengths is None else lengths + 1
        if ids.shape[1] > context and not isinstance(decoder, decoding.Recomputing):
            decoder = decoding.Recomputing(model)  # the context is full: from here on it slides
            logits = decoder.prefill(ids, lengths)
        else:
            logits = decoder.step(picked)


def _read(
    model: GPT2,
    ids: object,
    max_new_tokens: int | None,
    stop: int | Sequence[int] | None,
    *,
    cache: bool,
    sliding: bool,
) -> _Task:
    """The user's arguments, checked."""
    prompts, several = _prompts(ids)
    context, vocab_size = model.config["context_length"], model.config["vocab_size"]
    for prompt in prompts:
        _check_range("ids", prompt, vocab_size)
    longest = max(map(len, prompts))
    room = context - longest
    if max_new_tokens is None:
        if sliding:
            raise ValueError(
                "max_new_tokens: sliding=True never comes to an end by itself: give a number."
            )
        if room <= 0:
            raise ValueError(_too_long(longest, None, context))
        max_new_tokens = room
    elif isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int):
        raise ValueError(f"max_new_tokens: expected a whole number, got {max_new_tokens!r}.")
    elif max_new_tokens < 1:
        raise ValueError(f"max_new_tokens: expected 1 or more, got {max_new_tokens}.")
    elif max_new_tokens > room and not sliding:
        raise ValueError(_too_long(longest, max_new_tokens, context))
    stops = [] if stop is None else [stop] if isinstance(stop, int) else list(stop)
    _check_range("stop", stops, vocab_size)
    return _Task(prompts, several, max_new_tokens, frozenset(stops), cache, max_new_tokens <= room)


def _prompts(ids: object) -> tuple[list[list[int]], bool]:
    """The prompts as lists of whole numbers, and whether they are a batch."""
    if isinstance(ids, str):
        raise ValueError(
            "ids: expected token ids, got text.\n"
            "  Encode it first: clearhead.GPT2Tokenizer().encode(text)."
        )
    if isinstance(ids, Tensor):
        if ids.ndim not in (1, 2) or ids.is_floating_point() or ids.dtype == torch.bool:
            raise ShapeError(
                "ids: expected whole numbers (tokens,) or (batch, tokens), "
                f"got {ids.dtype} {tuple(ids.shape)}."
            )
        ids = ids.tolist()
    if not isinstance(ids, Sequence):
        raise ValueError(
            f"ids: expected a list of ids, a list of such lists or a tensor, "
            f"got {type(ids).__name__}."
        )
    several = len(ids) > 0 and isinstance(ids[0], Sequence | Tensor)
    prompts = [_whole_numbers(prompt) for prompt in (ids if several else [ids])]
    for number, prompt in enumerate(prompts):
        if not prompt:
            which = f"prompt {number} is" if several else "the prompt is"
            raise ValueError(
                f"ids: {which} empty: there is nothing to go on from.\n"
                "  GPT-2 begins a text after its <|endoftext|> token: [50256]."
            )
    return prompts, several


def _whole_numbers(prompt: object) -> list[int]:
    try:
        return [operator.index(number) for number in prompt]  # type: ignore[attr-defined]  # tried
    except TypeError:
        raise ValueError(
            "ids: expected whole numbers, or a list of lists of them, all of one kind."
        ) from None


def _check_range(name: str, ids: Sequence[int], vocab_size: int) -> None:
    for number in ids:
        if not 0 <= number < vocab_size:
            raise ValueError(
                f"{name}: expected 0 to vocab_size - 1 = {vocab_size - 1}, got {number}.\n"
                "  Does the tokenizer belong to this model? Compare its vocab_size."
            )


def _too_long(longest: int, new: int | None, context: int) -> str:
    came = f"{longest} tokens" if new is None else f"{longest} tokens and {new} new ones"
    return (
        f"ids: the longest prompt has {came}, but the context has room for {context}.\n"
        "  Cut the prompt, ask for fewer new tokens, or let the context move along: "
        "sliding=True, or --sliding on the command line."
    )
