"""Generation: prompts -> the tokens that follow them, step by step.

`GPT2.generate` and `GPT2.stream` call `read_task`, which checks the arguments, and then `write`. At
each step a decoder computes logits, `Sampling.pick` chooses a token, and the decoder reads that
token. `decoding.py` and `cuda_decoding.py` hold the decoders.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.configs import GPT2Config
from clearhead.gpt2 import cuda_decoding, decoding
from clearhead.gpt2.sampling import Sampling, is_bad, raise_bad
from clearhead.gpt2.transformer import Transformer
from clearhead.validation import ShapeError


@dataclass(frozen=True)
class Task:
    """What to generate; `read_task` makes one from checked arguments.

    Attributes:
        prompts: The token ids of each prompt.
        several: Whether the user passed a batch.
        new: The maximum number of new tokens.
        stop: The tokens that end a row.
        cache: Whether to keep keys and values.
        fits: Whether prompts and new tokens fit into the context.
    """

    prompts: list[list[int]]
    several: bool
    new: int
    stop: frozenset[int]
    cache: bool
    fits: bool

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """The prompts, padded on the left, and their lengths; None if all are equal."""
        lengths = [len(prompt) for prompt in self.prompts]
        width = max(lengths)
        rows = [[0] * (width - len(prompt)) + prompt for prompt in self.prompts]
        ids = torch.tensor(rows, device=device)
        return ids, None if min(lengths) == width else torch.tensor(lengths, device=device)


def write(
    model: Transformer, task: Task, sampling: Sampling, *, ahead: int
) -> Iterator[list[int | None]]:
    """Yield the new tokens of each step; None for a row that has ended.

    Args:
        model: The model.
        task: What to generate.
        sampling: How each token is chosen.
        ahead: How many steps a GPU may compute before their tokens are read back.
    """
    ended = [False] * len(task.prompts)
    for tokens in _tokens(model, task, sampling, ahead):
        yield [None if over else token for token, over in zip(tokens, ended, strict=True)]
        ended = [over or token in task.stop for token, over in zip(tokens, ended, strict=True)]
        if all(ended):
            return


def _tokens(model: Transformer, task: Task, sampling: Sampling, ahead: int) -> Iterator[list[int]]:
    """Yield the tokens of each step, including those of rows that have ended."""
    ids, lengths = task.tensors(model.embedding.token.weight.device)
    batch, width = ids.shape
    draws = sampling.draws(task.new, batch)
    if task.cache and task.fits and ids.is_cuda and cuda_decoding.refusal(model) is None:
        yield from cuda_decoding.run(model, ids, lengths, task.new, sampling, draws, ahead)
        return
    context = model.config["context_length"]
    decoder: decoding.Decoder
    if task.cache and width < context:
        decoder = decoding.choose(model, batch, min(context, width + task.new))
    else:
        decoder = decoding.UncachedDecoder(model)
    logits = decoder.prefill(ids, lengths)
    for step in range(task.new):
        if is_bad(logits):
            raise_bad(step)
        draw = None if draws is None else draws[step].to(logits.device)
        picked = sampling.pick(logits, draw)
        yield picked.tolist()
        if step + 1 == task.new:
            return
        ids = torch.cat([ids, picked[:, None]], dim=1)
        lengths = None if lengths is None else lengths + 1
        if ids.shape[1] > context and not isinstance(decoder, decoding.UncachedDecoder):
            decoder = decoding.UncachedDecoder(model)  # the context is full and starts to slide
            logits = decoder.prefill(ids, lengths)
        else:
            logits = decoder.step(picked)


def read_task(
    config: GPT2Config,
    ids: object,
    max_new_tokens: int | None,
    stop: int | Sequence[int] | None,
    cache: bool,
    sliding: bool,
) -> Task:
    """Check the arguments of `GPT2.generate`, which explains them."""
    prompts, several = _prompts(ids)
    context, vocab_size = config["context_length"], config["vocab_size"]
    for prompt in prompts:
        _check_range("ids", prompt, vocab_size)
    longest = max(map(len, prompts))
    room = context - longest
    if max_new_tokens is None:
        if sliding:
            raise ValueError(
                "max_new_tokens: expected a number, got None.\n"
                "  With sliding=True, generation does not end on its own."
            )
        if room <= 0:
            raise ValueError(_too_long(longest, None, context))
        max_new_tokens = room
    elif isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int):
        raise ValueError(f"max_new_tokens: expected an integer, got {max_new_tokens!r}.")
    elif max_new_tokens < 1:
        raise ValueError(f"max_new_tokens: expected 1 or more, got {max_new_tokens}.")
    elif max_new_tokens > room and not sliding:
        raise ValueError(_too_long(longest, max_new_tokens, context))
    stops = [] if stop is None else [stop] if isinstance(stop, int) else list(stop)
    _check_range("stop", stops, vocab_size)
    return Task(prompts, several, max_new_tokens, frozenset(stops), cache, max_new_tokens <= room)


def _prompts(ids: object) -> tuple[list[list[int]], bool]:
    """The prompts as lists of integers, and whether they are a batch."""
    if isinstance(ids, str):
        raise ValueError(
            "ids: expected token ids, got text.\n"
            "  Encode it first: clearhead.GPT2Tokenizer().encode(text)."
        )
    if isinstance(ids, Tensor):
        if ids.ndim not in (1, 2) or ids.is_floating_point() or ids.dtype == torch.bool:
            raise ShapeError(
                "ids: expected integers (tokens,) or (batch, tokens), "
                f"got {ids.dtype} {tuple(ids.shape)}."
            )
        ids = ids.tolist()
    if not isinstance(ids, Sequence):
        raise ValueError(
            f"ids: expected a list of ids, a list of such lists or a tensor, "
            f"got {type(ids).__name__}."
        )
    several = len(ids) > 0 and isinstance(ids[0], Sequence | Tensor)
    prompts = [_integers(prompt) for prompt in (ids if several else [ids])]
    for number, prompt in enumerate(prompts):
        if not prompt:
            which = f"prompt {number}" if several else "the prompt"
            raise ValueError(
                f"ids: expected at least one token, but {which} is empty.\n"
                "  To start a new text with GPT-2, pass its <|endoftext|> token: [50256]."
            )
    return prompts, several


def _integers(prompt: object) -> list[int]:
    try:
        return [operator.index(number) for number in prompt]  # type: ignore[attr-defined]  # tried
    except TypeError:
        raise ValueError(
            "ids: expected integers, or a list of lists of integers, not a mixture."
        ) from None


def _check_range(name: str, ids: Sequence[int], vocab_size: int) -> None:
    for number in ids:
        if not 0 <= number < vocab_size:
            raise ValueError(
                f"{name}: expected 0 to vocab_size - 1 = {vocab_size - 1}, got {number}.\n"
                "  Does the tokenizer belong to this model? Compare its vocab_size."
            )


def _too_long(longest: int, new: int | None, context: int) -> str:
    asked = f"{longest} tokens" if new is None else f"{longest} tokens plus {new} new ones"
    return (
        f"ids: the longest prompt has {asked}, but the context holds {context}.\n"
        "  Shorten the prompt, request fewer new tokens, or let the context slide: "
        "sliding=True, or --sliding on the command line."
    )
