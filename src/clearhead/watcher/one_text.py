"""The maps of a model while it reads one text, or while it writes one."""

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
    layers: Sequence[str] | None = None,
    *,
    name: str = "the model",
) -> Seen:
    """The maps of a model while it reads these tokens.

    A model with encoder and decoder is shown its text in the encoder; that is what is measured.

    Args:
        model: The model; a Hugging Face model without its output head.
        ids: The tokens.
        layers: Patterns of the layers' names; all by default.
        name: The name of the model, for messages.
    """
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        model = model.get_encoder()  # type: ignore[operator]  # transformers' own method
    try:
        with torch.no_grad(), watch(model, layers=layers) as seen:
            model(input_ids=ids)
    except NothingSeen as error:
        raise ValueError(f"{name}: {error}") from None
    return seen


class Looked(NamedTuple):
    """A token, and the places that were looked at most when it was chosen.

    Attributes:
        token: The new token.
        places: Which tokens of the text so far, counted from 0, the most looked at first.
        shares: How much of the attention each of them had.
    """

    token: int
    places: list[int]
    shares: list[float]


def look(
    model: nn.Module, ids: list[int], written: Iterator[int], *, layer: int, most: int = 4
) -> Iterator[Looked]:
    """Each new token with what the last place looked at, averaged over the heads of one layer.

    Args:
        model: The model.
        ids: The prompt.
        written: What `model.stream` gives for it, not yet begun.
        layer: Which layer, counted from 0.
        most: How many places to tell.
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
        first = seen_so_far - len(weights)  # once the context slides, the text's beginning is gone
        yield Looked(token, [first + place for place in top.indices.tolist()], top.values.tolist())
        seen_so_far += 1
