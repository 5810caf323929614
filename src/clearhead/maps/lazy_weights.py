"""LazyWeights: scores, normalisers and weights of a map, computed where somebody looks.

weight_ij = exp(q_i · k_j scale + bias_ij - lse_i)
"""

import math
from dataclasses import replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.kernels import statistics
from clearhead.kernels.scores import Scores
from clearhead.maps.positions import starts

# Scores and log-sum-exp beyond this size are computed in float64: exp(score - lse) in float32 is
# off by a share of |lse| · 6e-8, so up to here by 4e-6.
_LARGE = 64.0
# A bias below this leaves nothing of a score, in the model's own arithmetic too.
_SWALLOWS = -1e20


class LazyWeights:
    """What a map is made of, and its numbers at chosen places; `AttentionMap` stands on it."""

    def __init__(self, scores: Scores, lse: Float[Tensor, "batch heads queries"] | None) -> None:
        self._scores = scores
        self._lse = lse
        self._settled = scores.bias is None
        self._swallowed: Tensor | None = None  # rows whose bias leaves nothing of the scores

    @property
    def shape(self) -> torch.Size:
        """(batch, heads, queries, keys)."""
        return torch.Size(self._scores.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights: float32, or float64 for float64 queries."""
        return torch.float64 if self._scores.q.dtype == torch.float64 else torch.float32

    @property
    def device(self) -> torch.device:
        """Where it lives."""
        return self._scores.q.device

    @property
    def query_positions(self) -> Int[Tensor, "batch queries"]:
        """The key at whose place each query stands: the last ones, unless the mask tells others.

        It tells others with a cache of fixed size: the slots that no query may see are empty.
        """
        _, _, queries, _ = self.shape
        start = torch.tensor(self._starts, device=self.device)
        return start[:, None] + torch.arange(queries, device=self.device)

    @cached_property
    def _starts(self) -> list[int]:
        """Where the first query of each sequence stands; read from the mask when first needed."""
        return starts(self)

    @property
    def lse(self) -> Float[Tensor, "batch heads queries"]:
        """Each row's log-sum-exp, computed once; -inf for a query that sees nothing.

        It is float64 where float32 would leave no decimals.
        """
        if self._learns():
            raise RuntimeError(
                "Statistics of a map have no gradient: they stream over it in memory that is used "
                "again.\n  Weights have one: compute from map.dense() or map[0, 3]. "
                "For the numbers alone: map.detach()."
            )
        self._settle()
        if self._lse is None:
            self._lse = statistics.log_sum_exp(self._scores)
        if self._lse.dtype != torch.float64 and _is_large(self._lse):
            self._scores = replace(self._scores, wide=True)
            self._lse = statistics.log_sum_exp(self._scores)
        return self._lse

    def _settle(self) -> None:
        """Say what a bias so low that it swallows the scores means.

        Some models hide a key with the most negative number there is. Where they hide a whole row
        so, nothing is left of its scores, and softmax gives all its keys the same weight. Looked
        at when it is first needed, since it reads values.
        """
        if self._settled or self.device.type == "meta":
            return
        self._settled = True
        s, bias = self._scores, self._scores.bias
        assert bias is not None
        highest = bias.amax(-1, keepdim=True)
        swallowed = highest.isfinite() & (highest < _SWALLOWS)
        if swallowed.any():
            alike = torch.zeros_like(bias).masked_fill(bias < highest, -torch.inf)
            self._scores = replace(
                s,
                q=s.q.masked_fill(swallowed, 0.0),
                bias=torch.where(swallowed, alike, bias),
            )
            self._lse = None
            self._swallowed = swallowed

    def _learns(self) -> bool:
        """Whether gradients of the weights are recorded."""
        parts = (self._scores.q, self._scores.k, self._scores.bias)
        return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in parts)

    def _previous(self) -> Tensor:
        """Weights one left of the diagonal: a dot product a row, some rows at a time."""
        lse = self.lse
        s = self._scores
        batch, heads, queries, keys = self.shape
        shared = heads // s.k.shape[1]
        found = torch.full((batch, heads, queries), math.nan, dtype=self.dtype, device=self.device)
        height = max(1, 2**24 // (batch * heads * s.q.shape[3]))
        number, head = self._numbers_of_heads()
        for first in sorted(set(self._starts)):  # nearly always one for all
            here = [i for i, start in enumerate(self._starts) if start == first]
            b = slice(None) if len(here) == batch else here
            back = first - 1  # the key before query i is i + back
            for start in range(max(0, -back), min(queries, keys - back), height):
                rows = slice(start, min(start + height, queries, keys - back))
                k = s.k[b, :, rows.start + back : rows.stop + back].to(s.dtype)
                q = torch.unflatten(s.q[b, :, rows].to(s.dtype), 1, (-1, shared))
                logs = (q * k[:, :, None]).sum(-1).flatten(1, 2) * s.scale - lse[b, :, rows]
                i = torch.arange(rows.start, rows.stop, device=self.device)
                where = (number[b], head, i, i + back)
                found[b, :, rows] = self._finish(logs, lse[b, :, rows], where)
        return found

    def _numbers_of_heads(self) -> tuple[Tensor, Tensor]:
        batch, heads, _, _ = self.shape
        b = torch.arange(batch, device=self.device)[:, None, None]
        return b, torch.arange(heads, device=self.device)[None, :, None]

    def _finish(self, logs: Tensor, lse: Tensor, where: tuple[Tensor, ...]) -> Tensor:
        """Weights from q · k scale - lse at some places: bias and mask are still to come."""
        s = self._scores
        if s.bias is not None:
            logs = logs + _gather(s.bias, *where)
        if s.mask is not None:
            visible = s.mask.to_flex(self.shape[2], self.shape[3])(*where)
            logs = logs.masked_fill(~visible, -torch.inf)
        return logs.masked_fill(lse.isneginf(), -torch.inf).exp().to(self.dtype)

    def _pairs(self, rows: Tensor, cols: Tensor) -> Tensor:
        """Weights at (rows[b, p], cols[b, p]) of every head: one dot product a pair."""
        some = max(1, 2**24 // (self.shape[0] * self.shape[1] * self._scores.q.shape[3]))
        if rows.shape[1] > some:
            parts = zip(torch.split(rows, some, 1), torch.split(cols, some, 1), strict=True)
            return torch.cat([self._pairs(*part) for part in parts], 2)
        s = self._scores
        shared = s.q.shape[1] // s.k.shape[1]
        b = torch.arange(rows.shape[0], device=self.device)[:, None]
        q = s.q[b, :, rows].double()  # (batch, pairs, heads, head_dim)
        k = s.k[b, :, cols].double()
        if shared > 1:
            k = k.repeat_interleave(shared, 2)
        lse = self.lse.double().gather(2, rows[:, None].expand(-1, q.shape[2], -1))
        logs = (q * k).sum(-1).transpose(1, 2) * s.scale - lse
        where = (*self._numbers_of_heads(), rows[:, None], cols[:, None])
        return self._finish(logs, lse, where)

    def _scores_at(self, b: int, h: int, rows: Tensor, cols: Tensor) -> Tensor:
        """Scores of one head, in float64: what is looked at is little, so it can be exact."""
        self._settle()
        s = self._scores
        k = s.k[b, h * s.k.shape[1] // s.q.shape[1]]
        scores = s.q[b, h, rows].double() @ k[cols].double().T * s.scale
        batch, head = (torch.full((1, 1), i, device=self.device) for i in (b, h))
        if s.bias is not None:
            scores = scores + _gather(s.bias, batch, head, rows[:, None], cols)
        if s.mask is not None:
            visible = s.mask.to_flex(*self.shape[2:])(batch, head, rows[:, None], cols)
            scores = scores.masked_fill(~visible, -torch.inf)
        return scores

    def _lse_at(self, batch: Tensor, heads: Tensor, rows: Tensor) -> Tensor:
        """The normalisers of these rows; computed for these alone, unless they are known."""
        if self._lse is not None and not self._learns():  # what is known has no gradient
            lse = self._lse[batch[:, None, None], heads[:, None], rows].double()
            if self._lse.dtype == torch.float64 or not _is_large(lse):
                return lse
        width = max(1, 2**22 // max(1, len(rows)))
        found = []
        for b in batch.tolist():
            for h in heads.tolist():
                lse = torch.full((len(rows),), -torch.inf, device=self.device).double()
                for start in range(0, self.shape[3], width):
                    stop = min(start + width, self.shape[3])
                    cols = torch.arange(start, stop, device=self.device)
                    lse = torch.logaddexp(lse, self._scores_at(b, h, rows, cols).logsumexp(-1))
                found.append(lse)
        shape = (len(batch), len(heads), len(rows))
        if not found:
            return torch.empty(shape, dtype=torch.float64, device=self.device)
        return torch.stack(found).view(shape)


def _is_large(lse: Tensor) -> bool:
    """Whether float32 leaves the exponential of a difference too few decimals."""
    if lse.device.type == "meta":
        return False
    return bool((lse.abs().masked_fill(lse.isneginf(), 0.0) > _LARGE).any())


def _gather(x: Tensor, b: Tensor, h: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
    """x[b, h, rows, cols], where an axis of size 1 stands for all."""
    where = [i if size > 1 else i * 0 for i, size in zip((b, h, rows, cols), x.shape, strict=True)]
    return x[tuple(where)]
