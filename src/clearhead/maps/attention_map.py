"""AttentionMap: the queries × keys weights as a lazy array that is never built.

It keeps the queries, the keys, the mask and each row's log-sum-exp. That is enough for any weight,
exactly, at the cost of what is asked. Statistics over the whole map stream over it in tiles.
"""

import math
import os
from collections.abc import Callable, Sequence
from typing import NoReturn

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.drawing.text_format import memory
from clearhead.kernels import statistics
from clearhead.kernels.scores import Scores
from clearhead.maps.display import Display
from clearhead.maps.indexing import Index, as_tensor, numbers, squeeze, where
from clearhead.maps.positions import seen_before
from clearhead.maps.summary import Distance, Summary, Top
from clearhead.masks import Mask
from clearhead.validation import ShapeError, describe

# Token ids, or pairs: lists do as well.
_Ids = Int[Tensor, "batch keys"] | Sequence[Sequence[int]]
_Pairs = Int[Tensor, "pairs 2"] | Sequence[Sequence[int]]

_NAMED_HEADS = 8  # so many chosen heads are named one by one; of more, how many they are


class AttentionMap(Display):
    """Attention weights (batch, heads, queries, keys) that are computed when they are looked at.

    Args:
        q: The queries, as they meet the keys (after rotary positions and norms).
        k: The keys; heads must be a multiple of kv_heads. Neither is copied: who changes q or k in
            place changes the map.
        mask: Who may attend to whom.
        scale: What the scores are multiplied with; 1 / √head_dim by default.
        bias: What the model adds to the scores, broadcastable to (batch, heads, queries, keys).
        lse: The row log-sum-exp, where somebody has it already; else computed for the rows asked.
        detach: Whether gradients end here. If not, weights have them, but statistics do not.
        head_numbers: What each head is called where heads are named; 0, 1, ... by default.

    >>> m = AttentionMap(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), Mask.causal())
    >>> m[0, 1, 2]
    tensor([0.3333, 0.3333, 0.3333])
    >>> m.entropy()[0, 0].exp().round()
    tensor([1., 2., 3.])
    """

    __iter__ = None  # else torch and numpy would build the map row by row

    def __init__(
        self,
        q: Float[Tensor, "batch heads queries head_dim"],
        k: Float[Tensor, "batch kv_heads keys head_dim"],
        mask: Mask | None = None,
        *,
        scale: float | None = None,
        bias: Float[Tensor, "#batch #heads #queries #keys"] | None = None,
        lse: Float[Tensor, "batch heads queries"] | None = None,
        detach: bool = True,
        head_numbers: Sequence[int] | None = None,
    ) -> None:
        if q.ndim != 4 or k.ndim != 4:
            raise ShapeError(
                "q and k: expected (batch, heads, tokens, head_dim), "
                f"got {describe(q)} and {describe(k)}."
            )
        if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3] or q.shape[1] % k.shape[1]:
            raise ShapeError(
                f"q {describe(q)} and k {describe(k)}: batch and head_dim must be equal, "
                "and heads a multiple of kv_heads."
            )
        if lse is not None and lse.shape != q.shape[:3]:
            raise ShapeError(
                f"lse: expected (batch, heads, queries) = {describe(q[..., 0])}, "
                f"got {describe(lse)}."
            )
        if head_numbers is not None and len(head_numbers) != q.shape[1]:
            raise ShapeError(
                f"head_numbers: expected one for each of the {q.shape[1]} heads, "
                f"got {len(head_numbers)}."
            )
        if detach:
            q, k = q.detach(), k.detach()
            bias = None if bias is None else bias.detach()
            lse = None if lse is None else lse.detach()
        if bias is not None:
            bias = bias.expand(*(1,) * (4 - bias.ndim), *bias.shape)
        if mask is not None:
            mask = mask.to(q.device)
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        super().__init__(Scores(q, k, mask, bias, scale), lse)
        self._head_numbers = None if head_numbers is None else tuple(map(int, head_numbers))

    @property
    def mask(self) -> Mask | None:
        """Who may attend to whom."""
        return self._scores.mask

    @property
    def head_numbers(self) -> tuple[int, ...]:
        """The number of each head in its layer; `select` keeps them, so that pictures say them."""
        if self._head_numbers is None:
            return tuple(range(self.shape[1]))
        return self._head_numbers

    @property
    def nbytes(self) -> int:
        """The bytes it really holds. Tensors that it shares with the model count too."""
        held = [self._scores.q, self._scores.k, self._scores.bias, self._lse]
        masks: list[Tensor] = []
        if self.mask is not None:
            self.mask.encode(masks)
        held += masks
        return sum(_stored_bytes(t) for t in held if t is not None)

    def __repr__(self) -> str:
        batch, heads, queries, keys = self.shape
        named = self.head_numbers != tuple(range(heads)) and heads <= _NAMED_HEADS
        return (
            f"AttentionMap(batch={batch}, heads={list(self.head_numbers) if named else heads}, "
            f"queries={queries}, keys={keys}, "
            f"{memory(self.nbytes)} held, {memory(self._dense_bytes())} if built)"
        )

    # Looking.

    def __getitem__(self, index: object) -> Tensor:
        """Exact weights, indexed as a tensor is: `m[0, 3, 100:132, :64]`."""
        (batch, heads, rows, cols), removed = self._where(index)
        lse = self._lse_at(batch, heads, rows)
        lse = lse.masked_fill(lse.isneginf(), 0.0)[..., None]
        shape = (len(batch), len(heads), len(rows), len(cols))
        weights = [
            (self._scores_at(b, h, rows, cols) - lse[i, j]).exp().to(self.dtype)
            for i, b in enumerate(batch.tolist())
            for j, h in enumerate(heads.tolist())
        ]
        if not weights:
            return squeeze(torch.empty(shape, dtype=self.dtype, device=self.device), removed)
        return squeeze(torch.stack(weights).view(shape), removed)

    def scores(self, *index: Index) -> Tensor:
        """The scores before softmax (scaled, bias added, -inf where hidden): `m.scores(0, 3)`."""
        (batch, heads, rows, cols), removed = self._where(index)
        scores = [
            self._scores_at(b, h, rows, cols).to(self.dtype)
            for b in batch.tolist()
            for h in heads.tolist()
        ]
        shape = (len(batch), len(heads), len(rows), len(cols))
        return squeeze(torch.stack(scores).view(shape), removed)

    def dense(self, *, budget: int | None = None) -> Float[Tensor, "batch heads queries keys"]:
        """All weights as one tensor, unless that would take too much memory.

        Args:
            budget: The most bytes it may take; a quarter of what is free by default.
        """
        needed = self._dense_bytes()
        free = _free_bytes(self.device)
        allowed = free // 4 if budget is None else budget
        if needed > allowed:
            batch, heads, queries, keys = self.shape
            raise MemoryError(
                f"{batch} × {heads} × {queries} × {keys} weights take {memory(needed)}; "
                f"allowed are {memory(allowed)} ({memory(free)} are free).\n"
                "  Take a part (m[0, 3, 100:132]), a picture of the whole (m.thumbnail(256, 256)), "
                "a statistic (m.entropy(), m.received(), m.top(5)), or raise budget=."
            )
        return self[:]

    def __array__(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuses: conversion would build the whole map without saying so."""
        raise TypeError("An AttentionMap is not converted by itself: say m.dense(), or m[0, 3].")

    # Choosing.

    def select(self, batch: Index | None = None, heads: Index | None = None) -> "AttentionMap":
        """The map of some sequences and heads only; still lazy.

        Both are places, as in `m[0, 3]`. The heads keep their numbers: pages, figures and tables of
        `m.select(heads=[3])` say "head 3".

        >>> m = AttentionMap(torch.zeros(1, 4, 3, 4), torch.zeros(1, 4, 3, 4))
        >>> m.select(heads=[3, 1]).select(heads=0).head_numbers
        (3,)
        """
        size_b, size_h, _, _ = self.shape
        b = torch.arange(size_b) if batch is None else numbers(batch, size_b, "batch")[0]
        h = torch.arange(size_h) if heads is None else numbers(heads, size_h, "heads")[0]
        chosen = [self.head_numbers[i] for i in h.tolist()]
        b, h = b.to(self.device), h.to(self.device)
        shared = size_h // self._scores.k.shape[1]
        bias, mask, lse = self._scores.bias, self._scores.mask, self._lse
        if bias is not None:
            bias = bias[b] if bias.shape[0] > 1 else bias
            bias = bias[:, h] if bias.shape[1] > 1 else bias
        return AttentionMap(
            _choose(self._scores.q, b, h),
            _choose(self._scores.k, b, h // shared),
            None if mask is None else mask.select(b, h),
            scale=self._scores.scale,
            bias=bias,
            lse=None if lse is None else _choose(lse, b, h),
            detach=False,
            head_numbers=chosen,
        )

    def to(self, *args: object, **kwargs: object) -> "AttentionMap":
        """The same map on another device, or from numbers of another dtype."""

        def move(t: Tensor | None) -> Tensor | None:
            return None if t is None else t.to(*args, **kwargs)  # type: ignore[call-overload]  # as Tensor.to

        q, k = move(self._scores.q), move(self._scores.k)
        assert q is not None
        assert k is not None
        lse = self._lse if q.dtype == self._scores.q.dtype else None  # else from the new numbers
        return AttentionMap(
            q,
            k,
            self.mask,
            scale=self._scores.scale,
            bias=move(self._scores.bias),
            lse=None if lse is None else lse.to(q.device),
            detach=False,
            head_numbers=self._head_numbers,
        )

    def detach(self) -> "AttentionMap":
        """The same map without gradients."""
        s = self._scores
        return AttentionMap(
            *(s.q, s.k, s.mask),
            scale=s.scale,
            bias=s.bias,
            lse=self._lse,
            head_numbers=self._head_numbers,
        )

    # Statistics. Each streams over the map once; `summary` gets several from one pass.

    def entropy(self) -> Float[Tensor, "batch heads queries"]:
        """How widely each query looks, in nats: 0 = at one key, log(keys) = at all alike."""
        return _given(self.summary(entropy=True).entropy)

    def received(self) -> Float[Tensor, "batch heads keys"]:
        """How much weight each key gets from all queries together."""
        return _given(self.summary(received=True).received)

    def top(self, k: int) -> Top:
        """The k largest weights of each query, and their keys."""
        found = self.summary(top=k).top
        assert found is not None
        return found

    def thumbnail(self, rows: int, cols: int) -> Float[Tensor, "batch heads rows cols"]:
        """The whole map made small: the exact sum of the weights in each cell of a grid.

        Query i falls into row i * rows // queries, key j into column j * cols // keys.
        """
        return _given(self.summary(thumbnail=(rows, cols)).thumbnail)

    def distance(self, levels: tuple[float, ...] = (0.25, 0.5, 0.75)) -> Distance:
        """How far back (or ahead) the weights look: one mean per query, quantiles of all weight."""
        found = self.summary(distance=levels).distance
        assert found is not None
        return found

    def sink(self, first: int | Int[Tensor, " batch"] = 0) -> Float[Tensor, "batch heads queries"]:
        """Each query's weight on the first token (with left padding: say where that is)."""
        return _given(self.summary(sink=first).sink)

    def previous(self) -> Float[Tensor, "batch heads queries"]:
        """Each query's weight on the token before it; NaN for one without (use `nanmean`)."""
        return _given(self.summary(previous=True).previous)

    def same_token(self, ids: _Ids) -> Float[Tensor, "batch heads queries"]:
        """Each query's weight on earlier copies of itself; NaN for a token that is new."""
        return _given(self.summary(same_token=ids).same_token)

    def induction(self, ids: _Ids) -> Float[Tensor, "batch heads queries"]:
        """Each query's weight on what followed its earlier copies; NaN for a token that is new."""
        return _given(self.summary(induction=ids).induction)

    def relation(self, pairs: _Pairs) -> Float[Tensor, "batch heads pairs"]:
        """The weights at labelled (query, key) pairs."""
        return _given(self.summary(relation=pairs).relation)

    def summary(
        self,
        *,
        entropy: bool = False,
        received: bool = False,
        top: int | None = None,
        thumbnail: tuple[int, int] | None = None,
        distance: tuple[float, ...] | bool = False,
        sink: int | Int[Tensor, " batch"] | None = None,
        previous: bool = False,
        same_token: _Ids | None = None,
        induction: _Ids | None = None,
        relation: _Pairs | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> Summary:
        """Several statistics from one pass over the map; each as the method of its name gives it.

        Args:
            entropy: See `entropy`.
            received: See `received`.
            top: How many; see `top`.
            thumbnail: (rows, cols); see `thumbnail`.
            distance: True or the levels; see `distance`.
            sink: The first token; see `sink`.
            previous: See `previous`.
            same_token: The token ids; see `same_token`.
            induction: The token ids; see `induction`.
            relation: The pairs; see `relation`.
            on_progress: Called with the share that is done, now and then.
        """
        batch, _, queries, keys = self.shape
        lse = self.lse
        scores = self._scores
        if thumbnail is not None and not (
            1 <= thumbnail[0] <= queries and 1 <= thumbnail[1] <= keys
        ):
            raise ValueError(
                f"thumbnail: expected at most {queries} rows and {keys} columns, "
                f"and at least 1, got {thumbnail}."
            )
        found: dict[str, object] = {
            **statistics.stream_on_triton(
                scores, lse, entropy=entropy, received=received, thumbnail=thumbnail
            )
        }
        walk: dict[str, statistics.Statistic] = {}
        if entropy and "entropy" not in found:
            walk["entropy"] = statistics.Entropy(scores)
        if received and "received" not in found:
            walk["received"] = statistics.Received(scores)
        if top is not None:
            if not 1 <= top <= keys:
                raise ValueError(f"top: expected 1 to {keys} (the keys), got {top}.")
            walk["top"] = statistics.Top(scores, top)
        if thumbnail is not None and "thumbnail" not in found:
            walk["thumbnail"] = statistics.Thumbnail(scores, *thumbnail)
        if distance:
            walk["distance"] = statistics.Distance(scores, self._starts)
        new = None
        if same_token is not None:
            ids, here = self._ids(same_token)
            walk["same_token"] = statistics.Matching(scores, ids.gather(1, here), ids, self._starts)
            new = ~seen_before(ids).gather(1, here)[:, None]
        if induction is not None:
            ids, here = self._ids(induction)
            before = torch.cat([torch.full_like(ids[:, :1], -1), ids[:, :-1]], 1)
            before[:, 0] = ids.min() - 1  # no token has this id
            own = ids.gather(1, here)
            walk["induction"] = statistics.Matching(scores, own, before, self._starts, 1)
            new = ~seen_before(ids).gather(1, here)[:, None]
        if walk:
            statistics.stream(scores, lse, list(walk.values()), on_progress)
        for name, statistic in walk.items():
            found[name] = statistic.result().to(self.dtype)
        for name in ("same_token", "induction"):
            if name in walk:
                assert new is not None
                found[name] = walk[name].result().to(self.dtype).masked_fill(new, math.nan)
        if isinstance(best := walk.get("top"), statistics.Top):
            found["top"] = Top(best.result().to(self.dtype), best.keys)
        if isinstance(far := walk.get("distance"), statistics.Distance):
            levels = (0.25, 0.5, 0.75) if distance is True else tuple(distance or ())
            quantiles = _quantiles(far.result(), levels).to(self.dtype)
            found["distance"] = Distance(far.mean.to(self.dtype), quantiles, levels)
        rows = torch.arange(queries, device=self.device)
        if sink is not None:
            first = torch.as_tensor(sink, device=self.device).expand(batch)
            found["sink"] = self._pairs(rows.expand(batch, -1), first[:, None].expand(-1, queries))
        if previous:
            found["previous"] = self._previous()
        if relation is not None:
            pairs = as_tensor("pairs", relation, self.device)
            if pairs.ndim != 2 or pairs.shape[1] != 2:
                raise ShapeError(f"pairs: expected (pairs, 2), got {describe(pairs)}.")
            found["relation"] = self._pairs(
                pairs[:, 0].expand(batch, -1), pairs[:, 1].expand(batch, -1)
            )
        return Summary(**found)  # type: ignore[arg-type]  # the names are the fields' names

    # Inside.

    def _ids(self, ids: _Ids) -> tuple[Tensor, Tensor]:
        """An id for each key, and where each query has its own among them."""
        ids = as_tensor("ids", ids, self.device)
        batch, _, queries, keys = self.shape
        tokens = max(self._starts, default=0) + queries  # what follows these are empty slots
        if ids.shape not in ((batch, keys), (batch, tokens)) or queries > keys:
            raise ShapeError(
                f"ids: expected one id per key, (batch={batch}, keys={keys}), got "
                f"{describe(ids)}.\n"
                "  Only self-attention has the same tokens as queries and keys."
            )
        here = self.query_positions.clamp(0, keys - 1)
        return torch.nn.functional.pad(ids, (0, keys - ids.shape[1])), here

    def _where(self, index: object) -> tuple[list[Tensor], list[int]]:
        places, removed = where(index, self.shape)
        return [place.to(self.device) for place in places], removed

    def _dense_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def _choose(x: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """x[b, h]; of one sequence and one head it is the same memory."""
    if len(b) == len(h) == 1:
        return x[int(b) : int(b) + 1, int(h) : int(h) + 1]
    return x[b[:, None], h]


def _given(value: Tensor | None) -> Tensor:
    assert value is not None
    return value


def _quantiles(
    histogram: Float[Tensor, "batch heads distances"], levels: tuple[float, ...]
) -> Float[Tensor, "batch heads levels"]:
    """The smallest distance within which at least that share of all weight lies."""
    share = histogram.double().cumsum(-1)
    wanted = share[..., -1:] * torch.tensor(levels, dtype=share.dtype, device=share.device)
    found = torch.searchsorted(share, wanted * (1 - 1e-12))
    return found.clamp_max(histogram.shape[-1] - 1).to(histogram.dtype)


def _stored_bytes(t: Tensor) -> int:
    """The bytes of the numbers a tensor shows, axes of stride 0 counted once."""
    seen = [size for size, stride in zip(t.shape, t.stride(), strict=True) if stride]
    return math.prod(seen) * t.element_size()


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
