"""The maps of a model that reads one text, or that generates one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn

from clearhead.watcher import NothingSeen, Seen, watch


def see(
    model: nn.Module,
    ids: Int[Tensor, "1 tokens"],
    layers: Sequence[str | int] | None = None,
    *,
    name: str = "the model",
) -> Seen:
    """Watch a model while it reads these tokens.

    In a model with an encoder and a decoder, the encoder reads the text and is measured.

    Args:
        model: The model; a Hugging Face model without its output head.
        ids: The tokens.
        layers: Names, patterns or numbers of layers; all by default.
        name: The name of the model, for messages.
    """
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        model = model.get_encoder()  # type: ignore[operator]  # transformers' own method
    try:
        with torch.no_grad(), watch(model, layers=layers) as seen:
            model(ids)
    except NothingSeen as error:
        raise ValueError(f"{name}: {error}") from None
    return seen


class Attended(NamedTuple):
    """A generated token, and the positions that had the most attention when it was chosen.

    Attributes:
        token: The new token.
        positions: Positions in the text so far, counted from 0, the most attended to first.
        shares: The weight on each of them.
    """

    token: int
    positions: list[int]
    shares: list[float]


def look(
    model: nn.Module, ids: list[int], written: Iterator[int], *, layer: int, most: int = 4
) -> Iterator[Attended]:
    """Each new token with what its query attended to, averaged over the heads of one layer.

    Args:
        model: The model.
        ids: The prompt.
        written: The iterator that `model.stream` returned, not yet started.
        layer: Which layer, counted from 0.
        most: How many positions to return.
    """
    seen_so_far = len(ids)
    while True:
        try:
            with watch(model, layers=f"blocks.{layer}.attention") as seen:
                token = next(written)
        except StopIteration:
            return
        weights = seen[f"blocks.{layer}.attention"][0, :, -1].float().mean(0)  # -> (keys,)
        top = weights.topk(min(most, len(weights)))
        first = seen_so_far - len(weights)  # not 0 once the context slides
        positions = [first + i for i in top.indices.tolist()]
        yield Attended(token, positions, top.values.tolist())
        seen_so_far += 1
