"""Filling: the tokens that only bring the texts of a batch to one length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from clearhead.maps import AttentionMap
from clearhead.shapes import ShapeError, describe

_HIDES = -1e20  # a bias below this hides a key, in every dtype that reaches so low
_STRIP = 2**24  # cells of a mask that are looked at together


def check(layers: Mapping[str, Sequence[AttentionMap]], attention_mask: Tensor) -> None:
    """Raise unless the mask is about the keys of some layer, and has a real token a sequence."""
    if not any(_fits(m, attention_mask) for maps in layers.values() for m in maps):
        batch, _, _, keys = next(iter(layers.values()))[0].shape
        raise ShapeError(
            f"attention_mask: expected (batch={batch}, tokens={keys}), got "
            f"{describe(attention_mask)}.\n  Give the mask that the model was given, 1 = real."
        )
    empty = (attention_mask == 0).all(1)
    if empty.any():
        raise ValueError(
            f"attention_mask: nothing is real in sequence {int(empty.int().argmax())}.\n"
            "  1 means real, 0 filling."
        )
    for name, maps in layers.items():
        if sum(m.shape[2] == m.shape[3] > 1 for m in maps) > 1:
            raise ValueError(
                f"attention_mask: {name} was called {len(maps)} times with different texts, "
                "and the mask belongs to one of them.\n"
                "  Watch one forward pass at a time, or leave attention_mask out."
            )


def filling(
    maps: Sequence[AttentionMap], attention_mask: Tensor | None, going_on: bool
) -> list[Bool[Tensor, "batch keys"] | None]:
    """Where filling stands among the keys of each call of a layer; None = nowhere.

    Args:
        maps: The calls.
        attention_mask: 1 for a real token; None to find out.
        going_on: Whether each call continues the one before: what it adds is real.
    """
    places: list[Bool[Tensor, "batch keys"] | None] = []
    for m in maps:
        batch, _, _, keys = m.shape
        before = places[-1] if places and going_on else None
        if attention_mask is not None and _fits(m, attention_mask, going_on and len(maps) > 1):
            places.append((attention_mask[:, :keys] == 0).to(m.device))
        elif before is not None:
            added = before.new_zeros(batch, keys - before.shape[1])
            places.append(torch.cat([before, added], 1))
        else:
            places.append(found(m))
    return places


def _fits(m: AttentionMap, attention_mask: Tensor, longer: bool = True) -> bool:
    """Whether a mask can be about these keys, or about these and later ones."""
    batch, _, _, keys = m.shape
    if attention_mask.ndim != 2 or attention_mask.shape[0] != batch:
        return False
    width = attention_mask.shape[1]
    return keys <= width if longer else keys == width


@torch.no_grad()
def found(m: AttentionMap) -> Bool[Tensor, "batch keys"] | None:
    """The keys that no query may see; None if there are none, or if it cannot be known.

    Where there are as many queries as keys both are taken for the same tokens, so the query in the
    place of such a key is filling, too.
    """
    batch, _, queries, keys = m.shape
    m._settle()
    if queries != keys or m.device.type == "meta" or not _can_hide(m):
        return None
    seen = torch.zeros(batch, keys, dtype=torch.bool, device=m.device)
    step = max(1, _STRIP // (keys * batch))
    # From the end: the last queries of a causal map see nearly everything.
    for stop in range(queries, 0, -step):
        visible = _visible(m, slice(max(0, stop - step), stop))
        seen |= visible.any(2).any(1).expand(batch, keys)
        if seen.all():
            return None
    # Where nothing at all is seen, it is no filling: the mask means something else.
    return (~seen).masked_fill(~seen.any(1, keepdim=True), False)


def apart(
    ids: Int[Tensor, "batch keys"], filling: Bool[Tensor, "batch keys"]
) -> Int[Tensor, "batch keys"]:
    """The ids with one of its own for each place of filling, so that it is nobody's copy."""
    place = torch.arange(ids.shape[1], device=ids.device)  # as many new ids as places
    return torch.where(filling.to(ids.device), ids.max() + 1 + place, ids)


def _can_hide(m: AttentionMap) -> bool:
    """Whether mask or bias are anything but a band, in which every token sees itself."""
    tensors: list[Tensor] = []
    if m.mask is not None:
        m.mask.encode(tensors)
    return bool(tensors) or m._scores.bias is not None


def _visible(m: AttentionMap, rows: slice) -> Bool[Tensor, "#batch #heads #rows #keys"]:
    """Which keys these queries may see."""
    _, _, queries, keys = m.shape
    visible = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=m.device)
    bias = m._scores.bias
    if bias is not None:
        part = bias[:, :, rows] if bias.shape[2] > 1 else bias
        visible = part > max(_HIDES, torch.finfo(bias.dtype).min)
        if m._swallowed is not None:
            rows_of = m._swallowed[:, :, rows] if bias.shape[2] > 1 else m._swallowed
            visible = visible & ~rows_of
    if m.mask is not None:
        tile = m.mask.tile(rows, slice(0, keys), queries, keys, m.device)
        visible = visible if tile is None else visible & tile
    return visible
