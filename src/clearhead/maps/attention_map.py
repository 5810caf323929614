"""AttentionMap: the queries × keys weights as a lazy array that is never built.

It keeps the queries, the keys, the mask and the log-sum-exp of each row. Any weight can be computed
from these exactly, and only the requested ones are. Statistics of the whole map stream over it in
tiles. The formula is in `clearhead.kernels.scores`.
"""

import copy
import functools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.drawing import Axis, plain
from clearhead.drawing.file_formats import save
from clearhead.drawing.heatmap import Heatmap
from clearhead.drawing.html_page import MOST_CELLS_IN_A_NOTEBOOK, Page, too_large_for_a_notebook
from clearhead.drawing.text_format import memory
from clearhead.foreign_names import explained, no_attribute
from clearhead.kernels.scores import Scores, visible_in
from clearhead.maps import (
    exact_weights,
    grid_cells,
    map_difference,
    map_figures,
    page_layers,
    positions,
    value_norms,
)
from clearhead.maps.axis_labels import axis_labels
from clearhead.maps.indexing import Index, check_batch, indices_of, numbers, squeeze
from clearhead.maps.map_difference import Difference
from clearhead.maps.statistics import Distance, Saliency, Summary, Top, summarise
from clearhead.masks import Mask
from clearhead.validation import ShapeError, describe

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console, ConsoleOptions, RenderResult

# Token ids or pairs, as a tensor or as lists.
_Ids = Int[Tensor, "batch keys"] | Sequence[Sequence[int]]
_Pairs = Int[Tensor, "*batch pairs 2"] | Sequence[Sequence[int]]
_QueryWeights = Float[Tensor, "batch queries"] | Float[Tensor, "batch heads queries"]

_T = TypeVar("_T")

_NAMED_HEADS = 8  # repr lists the numbers of up to this many selected heads
_DEFAULT_BUDGET = 2**30  # bytes that `dense` may take if the free memory is unknown


class AttentionMap:
    """Attention weights (batch, heads, queries, keys) that are computed on demand.

    Args:
        q: The queries as they are multiplied with the keys (after rotary positions and norms).
        k: The keys; heads must be a multiple of kv_heads. Neither is copied: changing q or k in
            place changes the map.
        mask: Who may attend to whom.
        scale: The factor on the scores; 1 / √head_dim by default.
        bias: Added to the scores; broadcastable to (batch, heads, queries, keys).
        cap: The soft cap of the scores, as in Gemma 2: cap · tanh(q · k · scale / cap), before the
            bias is added. None without one.
        sink: One more logit in each softmax that belongs to no key, as in gpt-oss: (heads,) or
            (batch, heads, queries). The weights of a query then add up to less than 1; `to_sink`
            is the rest. Not to be confused with the statistic `sink()`, the weight on the first
            token.
        values: What the weights are multiplied with; value_dim may differ from head_dim. Only
            `value_norms`, `by_value_norm` and `saliency` need them.
        lse: The log-sum-exp of each row, with the sink if there is one, if it is known. Otherwise
            it is computed when needed.
        detach: Whether to detach the map from autograd. If not, weights have gradients, but
            statistics do not.
        head_numbers: The number of each head in its layer; 0, 1, ... by default.

    Examples:
        >>> m = AttentionMap(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), Mask.causal())
        >>> m[0, 1, 2]
        tensor([0.3333, 0.3333, 0.3333])
        >>> m.entropy()[0, 0].exp().round()
        tensor([1., 2., 3.])
    """

    __iter__ = None  # otherwise torch and numpy would build the map row by row

    @explained
    def __init__(
        self,
        q: Float[Tensor, "batch heads queries head_dim"],
        k: Float[Tensor, "batch kv_heads keys head_dim"],
        mask: Mask | None = None,
        *,
        scale: float | None = None,
        bias: Float[Tensor, "#batch #heads #queries #keys"] | None = None,
        cap: float | None = None,
        sink: Float[Tensor, " heads"] | Float[Tensor, "batch heads queries"] | None = None,
        values: Float[Tensor, "batch kv_heads keys value_dim"] | None = None,
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
        if cap is not None and not cap > 0:
            raise ValueError(f"cap: expected a positive number, got {cap}.\n  No cap is cap=None.")
        if sink is not None and sink.shape not in (q.shape[1:2], q.shape[:3]):
            raise ShapeError(
                f"sink: expected (heads,) = ({q.shape[1]}) or (batch, heads, queries) = "
                f"{describe(q[..., 0])}, got {describe(sink)}."
            )
        if values is not None and (values.ndim != 4 or values.shape[:3] != k.shape[:3]):
            raise ShapeError(
                f"values: expected (batch, kv_heads, keys, value_dim) as k {describe(k)}, "
                f"got {describe(values)}."
            )
        if head_numbers is not None and len(head_numbers) != q.shape[1]:
            raise ShapeError(
                f"head_numbers: expected one for each of the {q.shape[1]} heads, "
                f"got {len(head_numbers)}."
            )
        if bias is not None:
            bias = bias.expand(*(1,) * (4 - bias.ndim), *bias.shape)
        if sink is not None:
            sink = (sink[:, None] if sink.ndim == 1 else sink).expand(q.shape[:3])
        if mask is not None:
            mask = mask.to(q.device)
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        biases = () if bias is None else (bias,)
        given = Scores(q, k, mask, biases, scale, cap, sink, lse)
        self._given = given.apply(Tensor.detach) if detach else given
        self._values = values.detach() if detach and values is not None else values
        self._resolved: Scores | None = None
        self._is_normalised = False
        self._head_numbers = tuple(map(int, head_numbers or range(q.shape[1])))

    # Parts.

    @property
    def queries(self) -> Float[Tensor, "batch heads queries head_dim"]:
        """The queries."""
        return self._given.queries

    @property
    def keys(self) -> Float[Tensor, "batch kv_heads keys head_dim"]:
        """The keys."""
        return self._given.keys

    @property
    def mask(self) -> Mask | None:
        """Who may attend to whom."""
        return self._given.mask

    @property
    def bias(self) -> Float[Tensor, "#batch #heads #queries #keys"] | None:
        """The bias added to the scores, or None."""
        return functools.reduce(torch.add, self._given.biases) if self._given.biases else None

    @property
    def scale(self) -> float:
        """The factor on the scores."""
        return self._given.scale

    @property
    def cap(self) -> float | None:
        """The soft cap of the scores, or None."""
        return self._given.cap

    @property
    def sink_logits(self) -> Float[Tensor, "batch heads queries"] | None:
        """The logit of each row that belongs to no key, or None."""
        return self._given.sink

    @property
    def values(self) -> Float[Tensor, "batch kv_heads keys value_dim"] | None:
        """What the weights are multiplied with, if it is known."""
        return self._values

    @property
    def lse(self) -> Float[Tensor, "batch heads queries"]:
        """The log-sum-exp of each row, computed once; -inf for a query that attends to nothing.

        With a sink, it is the sink's logit for such a query. It is float64 where float32 would
        leave no decimals.
        """
        self.normalise()
        lse = self.lazy_scores.lse
        assert lse is not None
        return lse

    @property
    def to_sink(self) -> Float[Tensor, "batch heads queries"]:
        """The weight that goes to the sink, 1 - the sum over the keys; zeros without a sink.

        Where no key is visible, it is 1 with a sink.
        """
        self.normalise()
        return self.lazy_scores.to_sink()

    @property
    def blind(self) -> Bool[Tensor, "batch heads queries"]:
        """The queries that attend to no key: none is visible, or all weight goes to the sink."""
        return self.lse.isneginf() if self.sink_logits is None else self.to_sink >= 1

    @property
    def lazy_scores(self) -> Scores:
        """All of the above as one object, from which exact scores and weights are computed.

        Its `lse` is None until it is first needed. Rows whose bias swallows their scores are
        resolved, see `Scores.resolve_saturated`.
        """
        if self._resolved is None:
            self._resolved = self._given.resolve_saturated()
        return self._resolved

    def normalise(self, on_progress: Callable[[float], None] | None = None) -> None:
        """Compute `lse` now.

        Args:
            on_progress: Called repeatedly with the share that is done; may raise to stop.
        """
        if self._given.requires_grad:
            raise RuntimeError(
                "Statistics of a map have no gradient: they stream over it in memory that is "
                "reused.\n  Weights have one: compute from map.dense() or map[0, 3]. "
                "If you need no gradient, use map.detach()."
            )
        if not self._is_normalised:
            self._resolved = exact_weights.normalised(self.lazy_scores, on_progress)
            self._is_normalised = True

    @property
    def shape(self) -> torch.Size:
        """(batch, heads, queries, keys)."""
        return torch.Size(self._given.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights: float32, or float64 for float64 queries."""
        return self._given.dtype

    @property
    def device(self) -> torch.device:
        """The device of the queries and keys."""
        return self._given.device

    @property
    def head_numbers(self) -> tuple[int, ...]:
        """The number of each head in its layer. `select` keeps the numbers."""
        return self._head_numbers

    @property
    def query_positions(self) -> Int[Tensor, "batch queries"]:
        """The key position of each query: the last keys, unless the mask shows otherwise.

        In a cache of fixed size, the slots that no query may attend to are empty, so the queries
        are before them.
        """
        start = torch.tensor(self.first_positions, dtype=torch.int64, device=self.device)
        return start[:, None] + torch.arange(self.shape[2], device=self.device)

    @functools.cached_property
    def first_positions(self) -> list[int]:
        """The key position of the first query of each sequence, derived from the mask once."""
        return positions.first_positions(self.lazy_scores)

    def is_causal(self) -> bool | None:
        """Whether no query may attend to a later key; None if there are too few queries to tell."""
        return positions.is_causal(self.lazy_scores)

    @property
    def nbytes(self) -> int:
        """The bytes of the tensors it holds, including those it shares with the model."""
        held = [] if self.values is None else [self.values]
        if self.mask is not None:
            self.mask.encode(held)
        for scores in (self._given, self._resolved or self._given):
            parts = (scores.queries, scores.keys, scores.sink, scores.lse, scores.saturated)
            held += [*scores.biases, *(t for t in parts if t is not None)]
        return sum(_stored_bytes(t) for t in {id(t): t for t in held}.values())

    def __repr__(self) -> str:
        batch, heads, queries, keys = self.shape
        named = self.head_numbers != tuple(range(heads)) and heads <= _NAMED_HEADS
        special = "" if self.cap is None else f"cap={self.cap:g}, "
        special += "" if self.sink_logits is None else "with a sink, "
        return (
            f"AttentionMap(batch={batch}, heads={list(self.head_numbers) if named else heads}, "
            f"queries={queries}, keys={keys}, {special}"
            f"{memory(self.nbytes)} held, {memory(self._dense_bytes())} if built)"
        )

    # Weights.

    def __getitem__(self, index: object) -> Tensor:
        """Exact weights, indexed as a tensor is: `m[0, 3, 100:132, :64]`."""
        block, removed = self._block(index)
        return squeeze(exact_weights.block_of_weights(self.lazy_scores, *block), removed)

    def scores(self, *index: Index) -> Tensor:
        """The scores before softmax (scaled, bias added, -inf where hidden): `m.scores(0, 3)`."""
        block, removed = self._block(index)
        return squeeze(exact_weights.block_of_scores(self.lazy_scores, *block), removed)

    def dense(self, *, budget: int | None = None) -> Float[Tensor, "batch heads queries keys"]:
        """All weights as one tensor, unless that would take too much memory.

        Args:
            budget: The most bytes that the tensor may take. By default a quarter of the free
                memory, or 1 GiB if the system does not report it.
        """
        needed = self._dense_bytes()
        if budget is None:
            free = free_memory(self.device)
            allowed = _DEFAULT_BUDGET if free is None else free // 4
            why = "free memory unknown" if free is None else f"{memory(free)} are free"
        else:
            allowed, why = budget, "budget="
        if needed > allowed:
            batch, heads, queries, keys = self.shape
            raise MemoryError(
                f"{batch} × {heads} × {queries} × {keys} weights take {memory(needed)}, more than "
                f"the {memory(allowed)} allowed ({why}).\n"
                "  Use a part (m[0, 3, 100:132]), a small version (m.thumbnail(256, 256)) or a "
                "statistic (m.entropy(), m.received(), m.top(5)), or raise budget=."
            )
        return self[:]

    def __array__(self, *args: object, **kwargs: object) -> NoReturn:
        """Not supported: the conversion would build the whole map implicitly."""
        raise TypeError(
            "An AttentionMap is not converted to an array implicitly: use m.dense(), or m[0, 3]."
        )

    # Selection and conversion.

    def select(self, batch: Index | None = None, heads: Index | None = None) -> "AttentionMap":
        """The map of some sequences and heads only; still lazy.

        Both are indices, as in `m[0, 3]`. The heads keep their numbers: pages, figures and tables
        of `m.select(heads=[3])` show "head 3".

        Examples:
            >>> m = AttentionMap(torch.zeros(1, 4, 3, 4), torch.zeros(1, 4, 3, 4))
            >>> m.select(heads=[3, 1]).select(heads=0).head_numbers
            (3,)
        """
        size_b, size_h, _, _ = self.shape
        b = numbers(slice(None) if batch is None else batch, size_b, "batch")[0].to(self.device)
        h = numbers(slice(None) if heads is None else heads, size_h, "heads")[0].to(self.device)
        s, lse, kv = self._given, self._known_lse(), h // self._given.group

        def pick(x: Tensor) -> Tensor:  # an axis of size 1 is broadcast
            x = x[b] if x.shape[0] > 1 else x
            return x[:, h] if x.shape[1] > 1 else x

        scores = replace(
            s,
            queries=_pick(s.queries, b, h),
            keys=_pick(s.keys, b, kv),
            mask=None if s.mask is None else s.mask.select(b, h),
            biases=tuple(map(pick, s.biases)),
            sink=None if s.sink is None else _pick(s.sink, b, h),
            lse=None if lse is None else _pick(lse, b, h),
            saturated=None if s.saturated is None else pick(s.saturated),
        )
        found = self._with(scores, None if self.values is None else _pick(self.values, b, kv))
        found._head_numbers = tuple(self.head_numbers[i] for i in h.tolist())
        if "first_positions" in vars(self):
            found.first_positions = [self.first_positions[i] for i in b.tolist()]
        return found

    def to(self, *args: object, **kwargs: object) -> "AttentionMap":
        """The same map on another device or computed from another dtype, as `Tensor.to`."""

        def move(t: Tensor) -> Tensor:
            return t.to(*args, **kwargs)  # type: ignore[call-overload,no-any-return]  # as Tensor.to

        lse, saturated = self._known_lse(), self._given.saturated
        moved = replace(self._given, lse=None, saturated=None).apply(move)
        same = moved.queries.dtype == self.queries.dtype
        scores = replace(
            moved,
            mask=None if self.mask is None else self.mask.to(moved.device),
            lse=lse.to(moved.device) if same and lse is not None else None,
            saturated=None if saturated is None else saturated.to(moved.device),
        )
        return self._with(scores, None if self.values is None else move(self.values))

    def detach(self) -> "AttentionMap":
        """The same map without gradients."""
        scores = replace(self._given, lse=self._known_lse()).apply(Tensor.detach)
        return self._with(scores, None if self.values is None else self.values.detach())

    # Maps made from this one.

    def uniform(self) -> "AttentionMap":
        """The same map with equal weights on all visible keys, to compute chance levels with.

        It has no sink.

        Examples:
            >>> m = AttentionMap(torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4), Mask.causal())
            >>> m.uniform().previous()[0, 0]
            tensor([   nan, 0.5000, 0.3333])
        """
        s = self.lazy_scores
        batch, heads, queries, keys = s.shape
        zeros = s.queries.new_zeros(16)  # a width that all kernels support
        scores = replace(
            s,
            queries=zeros.expand(batch, heads, queries, 16),
            keys=zeros.expand(batch, s.keys.shape[1], keys, 16),
            biases=tuple(
                torch.zeros_like(bias).masked_fill(~visible_in(bias), -torch.inf)
                for bias in s.biases
            ),
            scale=1.0,
            cap=None,
            sink=None,
            lse=None,
        )
        return self._with(scores, self.values)

    def value_norms(
        self, output: Float[Tensor, "d_model width"] | None = None
    ) -> Float[Tensor, "batch heads keys"]:
        """The norm of each key's value, per head: what a unit of weight on it contributes.

        Args:
            output: The weight of the output projection, (d_model, heads · value_dim), as in
                `nn.Linear`. With it, the norm is that of the value after the head's part of it.
        """
        values = value_norms.needed(self.values)
        return value_norms.value_norms(values, self.head_numbers, output, self.dtype)

    def by_value_norm(self, output: Float[Tensor, "d_model width"] | None = None) -> "AttentionMap":
        """The map of what each key contributes: weight · norm of its value, as shares of a row.

        After Kobayashi et al. 2020. It is a map like any other, with every statistic. It has no
        sink, which contributes nothing. A key whose value is zero is hidden.

        Args:
            output: See `value_norms`.
        """
        s, _ = self.lazy_scores, self.first_positions  # which a hidden key could change
        norms = self.value_norms(output).log()[:, :, None]
        return self._with(replace(s, biases=(*s.biases, norms), sink=None, lse=None), self.values)

    # Statistics. Each streams over the map once; `summary` computes several in one pass.

    def entropy(self) -> Float[Tensor, "batch heads queries"]:
        """How widely each query spreads, in nats: 0 = one key, log(keys) = all keys equally.

        It is -Σ_j weight log weight over the keys. The weight that goes to a sink does not count.
        """
        return _present(self.summary(entropy=True).entropy)

    def received(
        self, query_weights: _QueryWeights | None = None
    ) -> Float[Tensor, "batch heads keys"]:
        """How much weight each key gets from all queries together: Σ_i r_i weight_ij.

        Args:
            query_weights: How much each query counts, r; 1 each by default. With them this is a
                vector times the map, the step that attention rollout takes from layer to layer.
        """
        asked = True if query_weights is None else query_weights
        return _present(self.summary(received=asked).received)

    def top(self, k: int, *, tokens: Sequence[str] | None = None) -> Top:
        """The k largest weights of each query, and their keys; print it to see a table.

        Args:
            k: How many.
            tokens: The labels of the tokens, for a map of one sequence: `.tokens` then has the
                tokens at the keys.
        """
        found = _present(self.summary(top=k).top)
        if tokens is not None and self.shape[0] != 1:
            raise ShapeError(
                f"tokens: expected a map of one sequence, got one of {self.shape[0]}.\n"
                "  Choose one: m.select(batch=0).top(3, tokens=tokens)."
            )
        labels = None
        if tokens is not None:
            queries, keys = self.shape[2:]
            labels = axis_labels(queries, keys, tokens, start=self.first_positions[0])
        return replace(found, labels=labels, head_numbers=self.head_numbers)

    def thumbnail(self, rows: int, cols: int) -> Float[Tensor, "batch heads rows cols"]:
        """The whole map made small: the exact sum of the weights in each cell of a grid.

        Query i falls into row i * rows // queries, key j into column j * cols // keys.
        """
        return _present(self.summary(thumbnail=(rows, cols)).thumbnail)

    def distance(self, levels: tuple[float, ...] = (0.25, 0.5, 0.75)) -> Distance:
        """The distance from query to key: a mean per query, and quantiles over all weight.

        The mean is one over the weights on the keys, also where a sink takes a part.
        """
        return _present(self.summary(distance=levels).distance)

    def sink(self, first: int | Int[Tensor, " batch"] = 0) -> Float[Tensor, "batch heads queries"]:
        """The weight of each query on the first token; with left padding, pass its position.

        Heads often leave their weight there. For the sink of models like gpt-oss, a logit that
        belongs to no token, see `to_sink`.
        """
        return _present(self.summary(sink=first).sink)

    def previous(self) -> Float[Tensor, "batch heads queries"]:
        """The weight of each query on the token before it; NaN without one (use `nanmean`)."""
        return _present(self.summary(previous=True).previous)

    def same_token(self, ids: _Ids) -> Float[Tensor, "batch heads queries"]:
        """The weight of each query on earlier copies of its token; NaN for a new token."""
        return _present(self.summary(same_token=ids).same_token)

    def induction(self, ids: _Ids) -> Float[Tensor, "batch heads queries"]:
        """The weight of each query on what followed earlier copies of its token; NaN if new."""
        return _present(self.summary(induction=ids).induction)

    def relation(self, pairs: _Pairs) -> Float[Tensor, "batch heads pairs"]:
        """The weights at labelled (query, key) pairs: (pairs, 2), or others in each sequence."""
        return _present(self.summary(relation=pairs).relation)

    def retrieval(
        self, needle: Index | Bool[Tensor, "batch keys"]
    ) -> Float[Tensor, "batch heads queries"]:
        """The weight of each query on a needle, as in tests of long contexts.

        Args:
            needle: The keys: a slice, a list or an index, or True at the keys of each sequence.
        """
        return _present(self.summary(retrieval=needle).retrieval)

    def retrieval_score(
        self, needle: Index | Bool[Tensor, "batch keys"], queries: Index = slice(None)
    ) -> Float[Tensor, "batch heads"]:
        """The mean of `retrieval` over chosen queries, such as those that write the answer.

        Heads that score high copy from the context (Wu et al. 2024, who count how often the needle
        gets the largest weight).
        """
        chosen = numbers(queries, self.shape[2], "queries")[0].to(self.device)
        return self.retrieval(needle)[..., chosen].mean(-1)

    def saliency(self, output_gradient: Float[Tensor, "batch heads queries value_dim"]) -> Saliency:
        """Gradient times attention: weight · ∂loss/∂weight, added up per query and per key.

        Args:
            output_gradient: The gradient at the output of attention, before the heads are joined
                and projected. The map needs its `values`.
        """
        return _present(self.summary(saliency=output_gradient).saliency)

    def difference(self, other: "AttentionMap") -> Difference:
        """How far this map and another of the same shape are apart, per query.

        Examples:
            >>> q = torch.tensor([[[[0.0], [2.0]]]])
            >>> m = AttentionMap(q, q, Mask.causal())
            >>> m.difference(m.uniform()).total_variation[0, 0]
            tensor([0.0000, 0.4820])
        """
        if self.shape != other.shape:
            raise ShapeError(
                f"difference: expected a map of the same shape {tuple(self.shape)}, got "
                f"{tuple(other.shape)}.\n  Maps of two texts can be compared if the texts have "
                "equally many tokens; use select for some of the heads."
            )
        if self.device != other.device:
            raise ValueError(
                f"difference: this map is on {self.device}, the other on {other.device}.\n"
                "  Move one: m.difference(other.to(m.device))."
            )
        self.normalise()
        other.normalise()
        return map_difference.difference(self.lazy_scores, other.lazy_scores)

    def summary(
        self,
        *,
        entropy: bool = False,
        received: bool | _QueryWeights = False,
        top: int | None = None,
        thumbnail: tuple[int, int] | None = None,
        distance: tuple[float, ...] | bool = False,
        sink: int | Int[Tensor, " batch"] | None = None,
        previous: bool = False,
        same_token: _Ids | None = None,
        induction: _Ids | None = None,
        relation: _Pairs | None = None,
        retrieval: Index | Bool[Tensor, "batch keys"] | None = None,
        saliency: Float[Tensor, "batch heads queries value_dim"] | None = None,
        on_progress: Callable[[float], None] | None = None,
        **others: object,
    ) -> Summary:
        """Several statistics from one pass over the map. Each equals the method of its name.

        Args:
            entropy: See `entropy`.
            received: True or the weights of the queries; see `received`.
            top: How many; see `top`.
            thumbnail: (rows, cols); see `thumbnail`.
            distance: True or the levels; see `distance`.
            sink: The position of the first token; see `sink`.
            previous: See `previous`.
            same_token: The token ids; see `same_token`.
            induction: The token ids; see `induction`.
            relation: The pairs; see `relation`.
            retrieval: The needle; see `retrieval`.
            saliency: The gradient at the output; see `saliency`.
            on_progress: Called repeatedly with the share that is done.
            others: The arguments of other statistics registered in `maps.statistics`, by name.
        """
        requests = {
            "entropy": entropy,
            "received": received,
            "top": top,
            "thumbnail": thumbnail,
            "distance": distance,
            "sink": sink,
            "previous": previous,
            "same_token": same_token,
            "induction": induction,
            "relation": relation,
            "retrieval": retrieval,
            "saliency": saliency,
            **others,
        }
        asked = {
            name: argument
            for name, argument in requests.items()
            if argument is not None and argument is not False
        }
        self.normalise()
        return summarise(
            self.lazy_scores, self.first_positions, asked, on_progress, values=self.values
        )

    # Pages and pictures.

    def cells(
        self,
        grid: tuple[int, int],
        *,
        heads: Index | None = None,
        batch: int = 0,
        on_progress: Callable[[float], None] | None = None,
    ) -> Float[Tensor, "heads rows cols"]:
        """One sequence as a grid: a cell is the share of its queries' attention to its keys.

        The share is the sum of the weights divided by the number of queries, so that a row of cells
        adds up to 1. With as many cells as weights, it is the weight. NaN if all is hidden.

        Args:
            grid: The number of rows and columns of cells.
            heads: Which heads; all by default.
            batch: Which sequence.
            on_progress: Called repeatedly with the share that is done.
        """
        one = self.select(int(numbers(batch, self.shape[0], "batch")[0]), heads).detach()
        _, count, queries, keys = one.shape
        if grid != (queries, keys):
            found = one.summary(thumbnail=grid, on_progress=on_progress).thumbnail
            return grid_cells.thumbnail_shares(one.lazy_scores, _present(found))[0]
        whole = (slice(0, queries), slice(0, keys))
        weights_or_nan = exact_weights.weights_or_nan
        return torch.stack([weights_or_nan(one.lazy_scores, 0, h, *whole) for h in range(count)])

    def page(
        self,
        *,
        tokens: Sequence[str] | None = None,
        context_tokens: Sequence[str] | None = None,
        batch: int = 0,
        title: str = "Attention map",
    ) -> Page:
        """Every weight of one sequence, with labels, ready for a page or a figure.

        Args:
            tokens: The labels of the tokens; t0, t1, ... by default.
            context_tokens: The labels of the keys, if they are not the same tokens.
            batch: Which sequence.
            title: The title of the page.
        """
        page_layers.check_size([self.lazy_scores], batch)
        weights, hidden = exact_weights.weights_and_hidden(self.lazy_scores, batch)
        layer = page_layers.layer(
            "",
            weights,
            hidden,
            tokens,
            context_tokens,
            numbers=self.head_numbers,
            start=self.first_positions[batch],
        )
        return Page(title, (layer,))

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        head: Index | None = None,
        tokens: Sequence[str] | None = None,
        context_tokens: Sequence[str] | None = None,
        batch: int = 0,
        title: str | None = None,
        log: bool = False,
    ) -> None:
        """Write one sequence of the map as an interactive page or as a figure.

        A figure can show any length. A page holds every weight that is not hidden, 33,554,432 at
        most. A page of that size takes about 70 MB, and ten seconds or more to write.

        Args:
            path: The file; its suffix decides: `.html`, `.svg`, `.png` or `.pdf`.
            head: Which head, or several; all by default. For a figure.
            tokens: See `page`.
            context_tokens: See `page`.
            batch: See `page`.
            title: The title of the page or of the figure; a figure has none by default.
            log: Logarithmic colours. For a figure.
        """
        name = Path(path).name
        if name.lower().endswith(".safetensors"):
            raise ValueError(
                f"{path}: a single map cannot be saved as safetensors; a Seen can.\n"
                '  Add the map to one: seen = clearhead.Seen(); seen.add("map", m); '
                f'seen.save("{name}").'
            )

        def page() -> Page:
            named = {} if title is None else {"title": title}
            return self.page(tokens=tokens, context_tokens=context_tokens, batch=batch, **named)

        def figure() -> "Figure":
            return self._figure(head, batch, tokens, context_tokens, log=log, title=title or "")

        save(path, page, figure=figure)

    def plot(
        self,
        head: Index | None = None,
        *,
        batch: int = 0,
        ax: "Axes | None" = None,
        tokens: Sequence[str] | None = None,
        context_tokens: Sequence[str] | None = None,
        log: bool = False,
    ) -> "Figure":
        """Draw the map with matplotlib: weight by weight, or in blocks if there are too many.

        A block is the share of attention that its queries give to its keys. One head is drawn in
        blocks from 1,025 tokens on, several heads from 193 on. With more than 32 rows, the
        brightest colour marks a weight that a quarter of the rows exceed; the colour bar shows it.

        Args:
            head: Which head, or several as a grid, by index as in `m[0, 3]`; all by default.
            batch: Which sequence.
            ax: Axes to draw one head into; a new figure by default.
            tokens: The labels of the tokens; numbers by default.
            context_tokens: The labels of the keys, if they are not the same tokens.
            log: Logarithmic colours, so that one large weight does not leave the others dark.
        """
        return self._figure(head, batch, tokens, context_tokens, ax=ax, log=log, show=True)

    def draw(
        self,
        head: int = 0,
        *,
        batch: int = 0,
        tokens: Sequence[str] | None = None,
        context_tokens: Sequence[str] | None = None,
        log: bool = False,
    ) -> Heatmap:
        """One head for the terminal, as large as the window: `rich.print(m.draw(3))`.

        Args:
            head: Which head.
            batch: Which sequence.
            tokens: The labels of the tokens; numbers by default.
            context_tokens: The labels of the keys, if they are not the same tokens.
            log: Logarithmic colours.
        """
        index = int(numbers(head, self.shape[1], "head")[0])
        rows, columns = self._axes(batch, tokens, context_tokens)

        def source(high: int, wide: int) -> list[list[float | None]]:
            return self.cells((high, wide), heads=index, batch=batch)[0].tolist()

        return Heatmap(source, rows, columns, title=f"head {self.head_numbers[index]}", log=log)

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        """The repr, and the first head of a map that is not too large."""
        yield repr(self)
        if map_figures.is_quick(self.shape, self.device):
            yield self.draw()

    def __str__(self) -> str:
        return plain(self) if map_figures.is_quick(self.shape, self.device) else repr(self)

    def _repr_html_(self) -> str:
        cells = math.prod(self.shape[1:])
        if cells > 2 * MOST_CELLS_IN_A_NOTEBOOK:
            return too_large_for_a_notebook(repr(self), cells)
        return self.page().frame()

    def __getattr__(self, name: str) -> NoReturn:
        raise no_attribute(self, name)

    # Helpers.

    def _block(self, index: object) -> tuple[list[Tensor], list[int]]:
        block, removed = indices_of(index, self.shape)
        return [indices.to(self.device) for indices in block], removed

    def _with(self, scores: Scores, values: Tensor | None) -> "AttentionMap":
        """A map of other scores and values, with the same head numbers and positions."""
        found = copy.copy(self)
        found._given, found._values = scores, values
        found._resolved, found._is_normalised = None, False
        return found

    def _known_lse(self) -> Tensor | None:
        return (self._resolved or self._given).lse

    def _dense_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def _axes(
        self, batch: int, tokens: Sequence[str] | None, context_tokens: Sequence[str] | None
    ) -> tuple[Axis, Axis]:
        _, _, queries, keys = self.shape
        if tokens is None and context_tokens is None:
            return Axis("query", queries), Axis("key", keys)
        check_batch(batch, self.shape[0])
        start = self.first_positions[batch]
        rows, columns = axis_labels(queries, keys, tokens, context_tokens, start)
        return Axis("query", queries, rows), Axis("key", keys, columns)

    def _figure(
        self,
        head: Index | None,
        batch: int,
        tokens: Sequence[str] | None,
        context_tokens: Sequence[str] | None,
        *,
        ax: "Axes | None" = None,
        log: bool = False,
        show: bool = False,
        title: str = "",
    ) -> "Figure":
        heads = numbers(slice(None) if head is None else head, self.shape[1], "head")[0]
        rows, columns = self._axes(batch, tokens, context_tokens)
        grid = map_figures.grid_for(rows.size, columns.size, alone=len(heads) == 1)
        return map_figures.plot(
            self.cells(grid, heads=heads, batch=batch).cpu(),
            (rows, columns),
            [self.head_numbers[i] for i in heads.tolist()],
            ax=ax,
            log=log,
            show=show,
            title=title,
        )


def free_memory(device: torch.device) -> int | None:
    """The free bytes of a device, or None if the system does not report them (macOS, Windows)."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _pick(x: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """x[b, h]; a view if it is one sequence and one head."""
    if len(b) == len(h) == 1:
        return x[int(b) : int(b) + 1, int(h) : int(h) + 1]
    return x[b[:, None], h]


def _present(value: _T | None) -> _T:
    assert value is not None
    return value


def _stored_bytes(t: Tensor) -> int:
    """The bytes of a tensor's elements, counting expanded axes (stride 0) once."""
    seen = [size for size, stride in zip(t.shape, t.stride(), strict=True) if stride]
    return math.prod(seen) * t.element_size()
