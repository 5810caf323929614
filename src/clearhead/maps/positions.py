"""Where the queries of a map stand among its keys, as far as its mask tells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from clearhead.masks import Band, Padding

if TYPE_CHECKING:
    from clearhead.maps.lazy_weights import LazyWeights

_HIDES = -1e20  # a bias below this hides a key, in every dtype that reaches so low
_STRIP = 2**24  # cells of a mask that are looked at together


def starts(m: LazyWeights) -> list[int]:
    """The key at which the first query of each sequence stands; the other queries follow it.

    Queries are the last of the keys, unless the mask says something else: a band that is aligned
    to the start, or causality that ends before the last key, as with a cache of fixed size. Its
    last slots are empty, and nobody may see them.
    """
    batch, _, queries, keys = m.shape
    parts = [] if m._scores.mask is None else m._scores.mask.parts()
    bands = [part for part in parts if isinstance(part, Band)]
    named = all(isinstance(part, Band | Padding) for part in parts)
    if named and bands:
        return [bands[0].offset(queries, keys)] * batch
    usual = [keys - queries] * batch
    if (named and m._scores.bias is None) or not 0 < queries < keys or m.device.type == "meta":
        return usual
    # A causal row ends at its own key, so in the right place row i ends at key start + i.
    last, everything = _last_seen(m)
    if queries > 1:
        last = last.masked_fill(everything, -1)
    ahead = last - torch.arange(queries, device=m.device)
    start = ahead.amax(1)
    reached = (ahead == start[:, None]).sum(1)  # without causality, only by the first row
    known = (start >= 0) & (start <= keys - queries) & (reached >= min(2, queries))
    if not known.any():
        return usual
    # A sequence whose new tokens are all filling says nothing: as the others.
    found: list[int] = torch.where(known, start, start[known][0]).tolist()
    return found


def is_causal(m: LazyWeights) -> bool | None:
    """Whether no query sees a key after its own; None if there are too few queries to know."""
    _, _, queries, keys = m.shape
    parts = [] if m._scores.mask is None else m._scores.mask.parts()
    if min(queries, keys) < 2:
        return None
    if any(isinstance(part, Band) and part.ahead == 0 for part in parts):
        return True
    if not can_hide(m):
        return False
    last, everything = _last_seen(m)
    rises = (last[:, 1:] > last[:, :-1]) & (last[:, :-1] >= 0)  # else all see the same, as padding
    return bool(rises.any() and (everything | (last <= m.query_positions)).all())


def seen_before(ids: Int[Tensor, "batch tokens"]) -> Bool[Tensor, "batch tokens"]:
    """True where a token has occurred earlier in its sequence."""
    ordered, order = ids.sort(dim=1, stable=True)
    repeated = torch.zeros_like(ids, dtype=torch.bool)
    repeated[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.zeros_like(repeated).scatter_(1, order, repeated)


@torch.no_grad()
def _last_seen(
    m: LazyWeights,
) -> tuple[Int[Tensor, "batch queries"], Bool[Tensor, "batch queries"]]:
    """The last key that each query may see (-1: none), and whether it may see all of them.

    Some models let a query of filling see everything, and mean nothing by it.
    """
    batch, _, queries, keys = m.shape
    last = torch.full((batch, queries), -1, device=m.device)
    everything = torch.zeros_like(last, dtype=torch.bool)
    for rows, visible in strips(m):
        seen = visible.any(1).expand(batch, rows.stop - rows.start, keys)
        place = keys - 1 - seen.flip(-1).to(torch.uint8).argmax(-1)
        last[:, rows] = place.masked_fill(~seen.any(-1), -1)
        everything[:, rows] = seen.all(-1)
    return last, everything


def strips(m: LazyWeights) -> Iterator[tuple[slice, Bool[Tensor, "#batch #heads #rows #keys"]]]:
    """Some queries at a time, from the last to the first, and which keys they may see."""
    batch, _, queries, keys = m.shape
    m._settle()
    step = max(1, _STRIP // max(1, keys * batch))
    for stop in range(queries, 0, -step):
        rows = slice(max(0, stop - step), stop)
        yield rows, _visible(m, rows)


def can_hide(m: LazyWeights) -> bool:
    """Whether mask or bias are anything but a band, in which every token sees itself."""
    tensors: list[Tensor] = []
    if m._scores.mask is not None:
        m._scores.mask.encode(tensors)
    return m.device.type != "meta" and (bool(tensors) or m._scores.bias is not None)


def _visible(m: LazyWeights, rows: slice) -> Bool[Tensor, "#batch #heads #rows #keys"]:
    """Which keys these queries may see."""
    _, _, queries, keys = m.shape
    visible = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=m.device)
    bias, mask = m._scores.bias, m._scores.mask
    if bias is not None:
        part = bias[:, :, rows] if bias.shape[2] > 1 else bias
        visible = part > max(_HIDES, torch.finfo(bias.dtype).min)
        if m._swallowed is not None:
            rows_of = m._swallowed[:, :, rows] if bias.shape[2] > 1 else m._swallowed
            visible = visible & ~rows_of
    if mask is not None:
        tile = mask.tile(rows, slice(0, keys), queries, keys, m.device)
        visible = visible if tile is None else visible & tile
    return visible
