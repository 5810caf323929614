"""Exact scores and weights at chosen positions of a map, in float64.

    weight_ij = exp(score_ij - lse_i)          scores and lse as in `clearhead.kernels.scores`

Few positions are requested at a time, so float64 costs little. If the log-sum-exp is not known, it
is computed for the requested rows only.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.kernels.scores import HIDDEN, Scores
from clearhead.kernels.tile_loop import log_sum_exp

# A log-sum-exp beyond this size is kept in float64: exp(score - lse) in float32 is off by a share
# of |lse| · 6e-8, so up to here by 4e-6.
_LARGE = 64.0
_AT_ONCE = 2**22  # numbers of queries, keys or scores that are gathered at once
_STEP = 2**26  # weights between two reports of progress


def normalised(scores: Scores, on_progress: Callable[[float], None] | None = None) -> Scores:
    """The same scores with the log-sum-exp of every row.

    Args:
        scores: The map.
        on_progress: Called repeatedly with the share that is done; may raise to stop. The rows are
            then computed in parts, which is slower.
    """
    lse = scores.lse
    if lse is None and on_progress is None:
        lse = log_sum_exp(scores)
    elif lse is None:
        _, _, queries, keys = scores.shape
        step, parts = max(1, _STEP // keys), []
        for start in range(0, queries, step):
            on_progress(start / queries)  # type: ignore[misc]  # not None in this branch
            parts.append(log_sum_exp(scores, slice(start, min(start + step, queries))))
        lse = torch.cat(parts, 2)
    if lse.dtype != torch.float64 and _is_large(lse):
        lse = log_sum_exp(scores, dtype=torch.float64)
    return replace(scores, lse=lse)


def block_of_scores(
    s: Scores, batch: Tensor, heads: Tensor, rows: Tensor, cols: Tensor
) -> Float[Tensor, "batch heads rows cols"]:
    """The scores at these batch, head, row and column indices; -inf where hidden."""
    return _per_head(
        s,
        (batch, heads, rows, cols),
        lambda b, h: _scores_at(s, b, h, rows, cols).to(s.dtype),
    )


def block_of_weights(
    s: Scores, batch: Tensor, heads: Tensor, rows: Tensor, cols: Tensor
) -> Float[Tensor, "batch heads rows cols"]:
    """The weights at these batch, head, row and column indices."""
    return _per_head(
        s, (batch, heads, rows, cols), lambda b, h: _weights_at(s, b, h, rows, cols)[0]
    )


def weights_or_nan(
    s: Scores, batch: int, head: int, rows: slice, cols: slice
) -> Float[Tensor, "rows cols"]:
    """The weights of one tile; NaN where a query may not attend to the key."""
    i, j = (torch.arange(part.start, part.stop, device=s.device) for part in (rows, cols))
    weights, hidden = _weights_at(s, batch, head, i, j)
    return weights.masked_fill(hidden, torch.nan)


def weights_and_hidden(
    s: Scores, batch: int
) -> tuple[Float[Tensor, "heads queries keys"], Bool[Tensor, "heads queries keys"]]:
    """All weights of one sequence, and True where a query may not attend to the key."""
    _, heads, queries, keys = s.shape
    rows, cols = (torch.arange(size, device=s.device) for size in (queries, keys))
    found = [_weights_at(s, batch, head, rows, cols) for head in range(heads)]
    return torch.stack([weights for weights, _ in found]), torch.stack([h for _, h in found])


def lse_at(s: Scores, b: int, h: int, rows: Tensor) -> Float[Tensor, " rows"]:
    """The log-sum-exp of some rows in float64, computed for these rows unless it is known."""
    if s.lse is not None and not s.requires_grad:  # the stored one has no gradient
        lse = s.lse[b, h, rows].double()
        if s.lse.dtype == torch.float64 or not _is_large(lse):
            return lse
    width = max(1, _AT_ONCE // max(1, len(rows)))
    lse = torch.full((len(rows),), -torch.inf, dtype=torch.float64, device=s.device)
    for start in range(0, s.shape[3], width):
        cols = torch.arange(start, min(start + width, s.shape[3]), device=s.device)
        lse = torch.logaddexp(lse, _scores_at(s, b, h, rows, cols).logsumexp(-1))
    return lse if s.sink is None else torch.logaddexp(lse, s.sink[b, h, rows].double())


def weights_at_pairs(
    s: Scores,
    rows: Int[Tensor, "batch pairs"],
    cols: Int[Tensor, "batch pairs"],
    dtype: torch.dtype = torch.float64,
) -> Float[Tensor, "batch heads pairs"]:
    """The weights at (rows[b, p], cols[b, p]) of every head: one dot product per pair.

    `s.lse` must be known. The products are computed in `dtype`.
    """
    batch, heads, queries, keys = s.shape
    some = max(1, _AT_ONCE // max(1, batch * heads * s.queries.shape[3]))
    if rows.shape[1] > some:
        parts = zip(torch.split(rows, some, 1), torch.split(cols, some, 1), strict=True)
        return torch.cat([weights_at_pairs(s, *part, dtype) for part in parts], 2)
    assert s.lse is not None
    b = torch.arange(batch, device=s.device)[:, None]
    q = s.queries[b, :, rows].to(dtype)  # (batch, pairs, heads, head_dim)
    k = s.keys[b, :, cols].to(dtype)
    k = k if s.group == 1 else k.repeat_interleave(s.group, 2)
    lse = s.lse.to(dtype).gather(2, rows[:, None].expand(-1, heads, -1))
    logs = s.capped((q * k).sum(-1).transpose(1, 2) * s.scale) - lse
    where = (
        b[:, None],
        torch.arange(heads, device=s.device)[:, None],
        rows[:, None],
        cols[:, None],
    )
    for bias in s.biases:
        logs = logs + _gather(bias, *where)
    if s.mask is not None:
        logs = logs.masked_fill(~s.mask.to_flex(queries, keys)(*where), -torch.inf)
    return logs.masked_fill(lse.isneginf(), -torch.inf).exp().to(s.dtype)


def _scores_at(s: Scores, b: int, h: int, rows: Tensor, cols: Tensor) -> Tensor:
    """The scores of one head at rows × columns, in float64."""
    products = s.queries[b, h, rows].double() @ s.keys[b, h // s.group, cols].double().T
    scores = s.capped(products * s.scale)
    batch, head = (torch.full((1, 1), i, device=s.device) for i in (b, h))
    for bias in s.biases:
        scores = scores + _gather(bias, batch, head, rows[:, None], cols)
    if s.mask is not None:
        visible = s.mask.to_flex(*s.shape[2:])(batch, head, rows[:, None], cols)
        scores = scores.masked_fill(~visible, -torch.inf)
    return scores


def _weights_at(
    s: Scores, b: int, h: int, rows: Tensor, cols: Tensor
) -> tuple[Float[Tensor, "rows cols"], Bool[Tensor, "rows cols"]]:
    """The weights of one head at rows × columns, and where they are hidden."""
    scores, lse = _scores_at(s, b, h, rows, cols), lse_at(s, b, h, rows)
    lse = lse.masked_fill(lse.isneginf(), 0.0)[:, None]
    return (scores - lse).exp().to(s.dtype), scores < HIDDEN


def _per_head(
    s: Scores, block: tuple[Tensor, Tensor, Tensor, Tensor], compute: Callable[[int, int], Tensor]
) -> Float[Tensor, "batch heads rows cols"]:
    """A block computed head by head, so that the float64 tensors stay small."""
    shape = tuple(map(len, block))
    found = [compute(b, h) for b in block[0].tolist() for h in block[1].tolist()]
    if not found:
        return torch.empty(shape, dtype=s.dtype, device=s.device)
    return torch.stack(found).view(shape)


def _is_large(lse: Tensor) -> bool:
    """Whether float32 is too coarse for exp(score - lse)."""
    if lse.device.type == "meta":
        return False
    return bool((lse.abs().masked_fill(lse.isneginf(), 0.0) > _LARGE).any())


def _gather(x: Tensor, b: Tensor, h: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
    """x[b, h, rows, cols], where an axis of size 1 is broadcast."""
    where = [i if size > 1 else i * 0 for i, size in zip((b, h, rows, cols), x.shape, strict=True)]
    return x[tuple(where)]
