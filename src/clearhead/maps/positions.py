"""The positions of the queries of a map among its keys, and padding, derived from the mask."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from clearhead.kernels.scores import Scores
from clearhead.masks import Band, Padding


def first_positions(s: Scores) -> list[int]:
    """The key position of the first query of each sequence; the other queries follow it.

    The queries are the last of the keys, unless the mask is aligned to the start, or is causal and
    ends before the last key. The latter occurs with a cache of fixed size, whose last slots are
    empty and hidden.
    """
    batch, _, queries, keys = s.shape
    parts = [] if s.mask is None else s.mask.parts()
    bands = [part for part in parts if isinstance(part, Band)]
    named = all(isinstance(part, Band | Padding) for part in parts)
    if named and bands:
        return [bands[0].offset(queries, keys)] * batch
    usual = [keys - queries] * batch
    if (named and not s.biases) or not 0 < queries < keys or s.device.type == "meta":
        return usual
    # A causal row ends at its own key: with the right start, row i ends at key start + i.
    last, everything = _last_visible(s)
    if queries > 1:
        last = last.masked_fill(everything, -1)
    ahead = last - torch.arange(queries, device=s.device)
    start = ahead.amax(1)
    reached = (ahead == start[:, None]).sum(1)  # without causality, only by the first row
    known = (start >= 0) & (start <= keys - queries) & (reached >= min(2, queries))
    if not known.any():
        return usual
    # If all new tokens of a sequence are padding, assume that it starts where another one does.
    found: list[int] = torch.where(known, start, start[known][0]).tolist()
    return found


def is_causal(s: Scores) -> bool | None:
    """Whether no query may attend to a later key; None if there are too few queries to tell."""
    _, _, queries, keys = s.shape
    parts = [] if s.mask is None else s.mask.parts()
    if min(queries, keys) < 2:
        return None
    if any(isinstance(part, Band) and part.ahead == 0 for part in parts):
        return True
    if not s.can_hide():
        return False
    last, everything = _last_visible(s)
    start = torch.tensor(first_positions(s), device=s.device)
    own = start[:, None] + torch.arange(queries, device=s.device)
    # Without a rise all rows end at the same key, as with padding.
    rises = (last[:, 1:] > last[:, :-1]) & (last[:, :-1] >= 0)
    return bool(rises.any() and (everything | (last <= own)).all())


def seen_before(ids: Int[Tensor, "batch tokens"]) -> Bool[Tensor, "batch tokens"]:
    """True where a token has occurred earlier in its sequence."""
    ordered, order = ids.sort(dim=1, stable=True)
    repeated = torch.zeros_like(ids, dtype=torch.bool)
    repeated[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.zeros_like(repeated).scatter_(1, order, repeated)


def padding_tokens(
    seen: Bool[Tensor, "batch tokens"], attends_to_itself: bool
) -> Bool[Tensor, "batch tokens"]:
    """Which tokens of self-attention are padding: those that no token may attend to.

    Args:
        seen: Whether any token may attend to this one.
        attends_to_itself: Whether any token may attend to itself. If not, no token can attend to
            the last one, padding or not; it is then treated like the one before it.
    """
    if not attends_to_itself and seen.shape[1] > 1:
        seen = torch.cat([seen[:, :-1], seen[:, -2:-1]], 1)
    # If no token may be attended to at all, the mask means something other than padding.
    return (~seen).masked_fill(~seen.any(1, keepdim=True), False)


def unique_padding_ids(
    ids: Int[Tensor, "batch tokens"], padding: Bool[Tensor, "batch tokens"]
) -> Int[Tensor, "batch tokens"]:
    """The ids with a new one for each padding token, so that none is a copy of another token."""
    new = ids.max() + 1 + torch.arange(ids.shape[1], device=ids.device)
    return torch.where(padding.to(ids.device), new, ids)


@torch.no_grad()
def _last_visible(
    s: Scores,
) -> tuple[Int[Tensor, "batch queries"], Bool[Tensor, "batch queries"]]:
    """The last key that each query may attend to (-1: none), and whether it may attend to all.

    Some models let padding queries attend to everything; their weights mean nothing.
    """
    batch, _, queries, keys = s.shape
    last = torch.full((batch, queries), -1, device=s.device)
    everything = torch.zeros_like(last, dtype=torch.bool)
    for rows, visible in s.visible_strips():
        seen = visible.any(1).expand(batch, rows.stop - rows.start, keys)
        end = keys - 1 - seen.flip(-1).to(torch.uint8).argmax(-1)
        last[:, rows] = end.masked_fill(~seen.any(-1), -1)
        everything[:, rows] = seen.all(-1)
    return last, everything
