"""Padding: the tokens that only bring the texts of a batch to one length."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Shaped
from torch import Tensor

from clearhead.maps.positions import padding_tokens
from clearhead.validation import ShapeError, describe
from clearhead.watcher.calls import Run, Step, about, check_one_text


def fitting(
    layers: Mapping[str, Sequence[Run]], crossing: Collection[str], attention_mask: Tensor
) -> dict[str, list[int]]:
    """The runs that a mask belongs to, by number; raise if there is none, or if it is ambiguous.

    A mask has the tokens of the first call, or those that were read later as well.
    """
    found = about(
        *(layers, attention_mask),
        lambda run: {run[0].end, run[0].map.shape[3]},
        lambda run: {run[-1].end, run[-1].end + 1},  # the last one was generated and not read
    )
    if not found:
        batch, _, _, keys = next(iter(layers.values()))[0][0].map.shape
        raise ShapeError(
            f"attention_mask: expected (batch={batch}, tokens={keys}), got "
            f"{describe(attention_mask)}.\n  Pass the mask that the model was given, 1 = real."
        )
    empty = (attention_mask == 0).all(1)
    if empty.any():
        raise ValueError(
            f"attention_mask: no token is real in sequence {int(empty.int().argmax())}.\n"
            "  1 means real, 0 padding."
        )
    for name, runs in layers.items():
        if sum(run[0].start == 0 and run[0].end > 1 for run in runs) > 1:
            raise ValueError(
                f"attention_mask: {name} was called {sum(map(len, runs))} times with different "
                "texts, and the mask belongs to one of them.\n"
                "  Watch one forward pass at a time, or leave attention_mask out."
            )
    own = {name: numbers for name, numbers in found.items() if name not in crossing}
    check_one_text("attention_mask", layers, own)
    return found


def padding_of(
    run: Run, attention_mask: Tensor | None, is_self: bool
) -> Bool[Tensor, "batch tokens"] | None:
    """Where the text that a run read is padding; None = nowhere. What comes later is real.

    Args:
        run: Calls that read one text.
        attention_mask: 1 for a real token of this run; None to derive it from the maps.
        is_self: Whether queries and keys are the same tokens.
    """
    if attention_mask is not None:
        return (attention_mask == 0).to(run[0].map.device)
    return found(run[0]) if is_self else None


def part(
    text: Shaped[Tensor, "batch tokens"], begin: int, size: int
) -> Shaped[Tensor, "batch size"]:
    """Some tokens of a text; 0 (or False) where it has no more."""
    here = text[:, begin : begin + size]
    return F.pad(here, (0, size - here.shape[1]))


@torch.no_grad()
def found(step: Step) -> Bool[Tensor, "batch tokens"] | None:
    """The tokens that no query may attend to; None if there are none, or if that is unknown.

    It is known where every token has a query; the query of such a token is padding too.
    """
    m = step.map
    batch, _, tokens, keys = m.shape
    if step.start or tokens > keys or not m.lazy_scores.can_hide():
        return None
    seen = torch.zeros(batch, tokens, dtype=torch.bool, device=m.device)
    sees_itself = False
    # From the end: the last queries of a causal map attend to nearly everything.
    for rows, visible in m.lazy_scores.visible_strips():
        of_tokens = visible.any(1).expand(-1, -1, keys)[..., :tokens]
        seen |= of_tokens.any(1).expand(batch, tokens)
        if seen.all():
            return None
        own = of_tokens.expand(-1, rows.stop - rows.start, -1)[..., rows]
        sees_itself |= bool(own.diagonal(dim1=1, dim2=2).any())
    padded = padding_tokens(seen, sees_itself)
    return padded if padded.any() else None
