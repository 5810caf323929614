"""A map as what a page or a figure shows of it: every weight of one sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead import pages
from clearhead.drawing.page import MOST_CELLS, Layer, TooLarge

if TYPE_CHECKING:
    from clearhead.maps.attention_map import AttentionMap

# A score below this leaves no weight: some models hide a key so, instead of with -inf.
_HIDDEN = -1e20


def dense(
    m: AttentionMap, batch: int
) -> tuple[Float[Tensor, "heads queries keys"], Bool[Tensor, "heads queries keys"]]:
    """The weights of one sequence, and where there is nothing to be seen."""
    if not -m.shape[0] <= batch < m.shape[0]:
        raise IndexError(f"batch: {batch} is not one of the {m.shape[0]} sequences of this map.")
    check_size([m])
    one = m.select(batch=[batch])
    hidden = torch.stack([one.scores(0, head) < _HIDDEN for head in range(m.shape[1])])
    return one[0], hidden


def check_size(maps: Sequence[AttentionMap]) -> None:
    """Refuse what no file could hold, before it is computed."""
    cells = sum(math.prod(m.shape[1:]) for m in maps)
    if cells > 2 * MOST_CELLS:  # a causal mask leaves half of them
        raise TooLarge(cells)


def layer(
    m: AttentionMap,
    *,
    name: str = "",
    tokens: Sequence[str] | None = None,
    context_tokens: Sequence[str] | None = None,
    batch: int = 0,
) -> Layer:
    """One sequence of a map, with what each of its heads looks at."""
    weights, hidden = dense(m, batch)
    return pages.layer(name, weights, hidden, tokens, context_tokens)
