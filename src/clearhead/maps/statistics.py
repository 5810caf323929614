"""The statistics of a map. To add one, write its class here: it registers itself under its name.

`AttentionMap.summary(name=argument)` looks the name up and creates the class with a `Layout` and
the argument. A `Statistic` then reads the tiles of the weights, all statistics in one pass. An
`AtPairs` lists the (query, key) pairs whose weights it needs, and needs no tiles. The usual
statistics are also methods of `AttentionMap`.
"""

# ruff: noqa: D102  # the methods of the statistics are documented in Statistic

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from rich.text import Text
from torch import Tensor

from clearhead.drawing import Drawn, plain, table, visible
from clearhead.kernels import tile_loop
from clearhead.kernels.scores import HIDDEN_SCORE, Scores
from clearhead.kernels.tile_loop import Tile
from clearhead.maps.exact_weights import weights_at_pairs
from clearhead.maps.grid_cells import membership
from clearhead.maps.indexing import Index, as_tensor, numbers
from clearhead.maps.positions import seen_before
from clearhead.maps.value_norms import needed
from clearhead.validation import ByShape, ShapeError, describe

_SHOWN_HEADS, _SHOWN_QUERIES = 4, 12  # of the largest weights, when they are printed


@dataclass(frozen=True, repr=False)
class Distance(ByShape):
    """The distance from queries to the keys they attend to, in tokens.

    Attributes:
        mean: The mean distance of each query, (batch, heads, queries).
        quantiles: The distances within which the shares `levels` of all weight lie.
        levels: The shares.
    """

    mean: Float[Tensor, "batch heads queries"]
    quantiles: Float[Tensor, "batch heads levels"]
    levels: tuple[float, ...]


@dataclass(frozen=True, repr=False)
class Top(Drawn):
    """The largest weights of each query, and their keys (-1 if it attends to fewer).

    It prints as a table of the first heads and queries.

    Attributes:
        weights: The weights, largest first.
        keys: Their keys.
        labels: One label per query and per key, if the tokens are known.
        head_numbers: The number of each head in its layer.
    """

    weights: Float[Tensor, "batch heads queries k"]
    keys: Int[Tensor, "batch heads queries k"]
    labels: tuple[Sequence[str], Sequence[str]] | None = None
    head_numbers: Sequence[int] | None = None

    @property
    def tokens(self) -> list[list[list[list[str]]]]:
        """The tokens at the keys, [batch][head][query]; fewer than k if it attends to fewer."""
        if self.labels is None:
            raise ValueError("tokens: not known. Pass them: m.top(3, tokens=[...]).")
        key_labels = self.labels[1]
        return [
            [[[key_labels[key] for key in row if key >= 0] for row in head] for head in sequence]
            for sequence in self.keys.tolist()
        ]

    def __rich__(self) -> Text:
        batch, heads, queries, k = self.keys.shape
        lines = [f"Top(k={k}, batch={batch}, heads={heads}, queries={queries})"]
        numbers = self.head_numbers or range(heads)
        for head in range(min(heads, _SHOWN_HEADS) if batch else 0):
            title = f"head {numbers[head]}" + (", sequence 0" if batch > 1 else "")
            rows = [self._row(head, query) for query in range(min(queries, _SHOWN_QUERIES))]
            lines.append(plain(table([title, *[""] * k], rows, left=1 + k)))
        if heads > _SHOWN_HEADS or queries > _SHOWN_QUERIES or batch > 1:
            lines.append("... Choose what is shown: m.select(batch=0, heads=[3]).top(3).")
        return Text("\n".join(lines), no_wrap=True, overflow="ignore")

    def _row(self, head: int, query: int) -> list[str]:
        """The cells of one query: its label, then key and weight for each of its largest."""

        def label(axis: int, index: int) -> str:
            return str(index) if self.labels is None else visible(self.labels[axis][index])

        found = zip(self.keys[0, head, query].tolist(), self.weights[0, head, query], strict=True)
        cells = [f"{label(1, key)} {weight:.2f}" if key >= 0 else "" for key, weight in found]
        return [label(0, query), *cells]


@dataclass(frozen=True, repr=False)
class Saliency(ByShape):
    """Gradient times attention, weight · ∂loss/∂weight, added up per query and per key.

    Attributes:
        queries: The sum over the keys of each query.
        keys: The sum over the queries of each key.
    """

    queries: Float[Tensor, "batch heads queries"]
    keys: Float[Tensor, "batch heads keys"]


@dataclass(frozen=True)
class Summary:
    """The statistics requested from `AttentionMap.summary`; the others are None.

    Registered statistics that have no field here are in `others`, by name.
    """

    entropy: Tensor | None = None
    received: Tensor | None = None
    top: Top | None = None
    thumbnail: Tensor | None = None
    distance: Distance | None = None
    sink: Tensor | None = None
    previous: Tensor | None = None
    same_token: Tensor | None = None
    induction: Tensor | None = None
    relation: Tensor | None = None
    retrieval: Tensor | None = None
    saliency: Saliency | None = None
    others: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        own = [each.name for each in fields(self) if each.name != "others"]
        names = [name for name in own if getattr(self, name) is not None]
        return f"Summary({', '.join([*names, *self.others])})"


@dataclass(frozen=True)
class Layout:
    """The properties of a map that a statistic can use before it reads the weights.

    Attributes:
        shape: (batch, heads, queries, keys).
        starts: The key position of the first query of each sequence.
        dtype: The dtype of results.
        sum_dtype: The dtype of sums.
        device: The device of the weights.
        sums_to_one: Whether each row adds up to 1, or to 0; False if a sink may take a part.
        values: The values, if the map holds them.
    """

    shape: tuple[int, int, int, int]
    starts: Sequence[int]
    dtype: torch.dtype
    sum_dtype: torch.dtype
    device: torch.device
    sums_to_one: bool
    values: Float[Tensor, "batch kv_heads keys value_dim"] | None = None

    @property
    def positions(self) -> Int[Tensor, "batch queries"]:
        """The key position of each query."""
        start = torch.tensor(self.starts, dtype=torch.int64, device=self.device)
        return start[:, None] + torch.arange(self.shape[2], device=self.device)

    def zeros(self, *shape: int) -> Float[Tensor, "batch heads ..."]:
        """Zeros to add up in."""
        return torch.zeros(*self.shape[:2], *shape, dtype=self.sum_dtype, device=self.device)


STATISTICS: dict[str, type["Statistic"]] = {}


class Statistic:
    """Gathers one statistic from the tiles of a map; subclasses register under `name`.

    Args:
        layout: The properties of the map.
        argument: The argument of `summary` with the statistic's name.
    """

    name: ClassVar[str]
    order = 1  # readers of lower order get a tile first; see `Tile`

    def __init_subclass__(cls, *, name: str = "") -> None:
        if name:
            cls.name = name
            STATISTICS[name] = cls

    def __init__(self, layout: Layout, argument: Any) -> None:
        self.layout = layout

    def reach(self, rows: slice, reach: slice) -> slice:
        """The keys that it reads in these rows; by default as far as the mask reaches."""
        return reach

    def add(self, tile: Tile) -> None:
        """Read one tile."""
        raise NotImplementedError

    def result(self) -> Any:
        """The statistic, after all tiles."""
        raise NotImplementedError


class AtPairs(Statistic):
    """A statistic of the weights at chosen (query, key) pairs."""

    exact = True  # whether to compute the products in float64
    rows: Int[Tensor, "batch pairs"]
    cols: Int[Tensor, "batch pairs"]
    weights: Float[Tensor, "batch heads pairs"]

    def result(self) -> Tensor:
        return self.weights


def summarise(
    scores: Scores,
    starts: Sequence[int],
    requests: Mapping[str, Any],
    on_progress: Callable[[float], None] | None = None,
    values: Float[Tensor, "batch kv_heads keys value_dim"] | None = None,
) -> Summary:
    """The requested statistics of a map whose `lse` is known, from one pass over it.

    Args:
        scores: The map.
        starts: The key position of the first query of each sequence.
        requests: The argument of each statistic, by its name.
        on_progress: Called repeatedly with the share that is done.
        values: The values of the map, for the statistics that need them.
    """
    dtypes = (scores.dtype, scores.sum_dtype)
    layout = Layout(scores.shape, starts, *dtypes, scores.device, scores.sink is None, values)
    asked = _create(layout, requests)
    fast = tile_loop.on_triton(scores, requests)
    readers = [s for n, s in asked.items() if n not in fast and not isinstance(s, AtPairs)]
    if readers:
        tile_loop.stream(scores, readers, on_progress)
    for statistic in asked.values():
        if isinstance(statistic, AtPairs):
            statistic.weights = weights_at_pairs(
                scores,
                statistic.rows,
                statistic.cols,
                torch.float64 if statistic.exact else scores.sum_dtype,
            )
    return _summary({name: fast[name] if name in fast else s.result() for name, s in asked.items()})


def summarise_dense(
    weights: Float[Tensor, "heads queries keys"], start: int, requests: Mapping[str, Any]
) -> Summary:
    """The same statistics of one sequence whose weights exist already, in float64."""
    heads, queries, keys = weights.shape
    shape = (1, heads, queries, keys)
    layout = Layout(shape, [start], torch.float64, torch.float64, weights.device, False)
    asked = _create(layout, requests)
    readers = [s for s in asked.values() if not isinstance(s, AtPairs)]
    for head in range(heads):  # a map may be large
        w = weights[head : head + 1].double()
        here = slice(head, head + 1)
        logs = w.log().clamp_min(HIDDEN_SCORE)
        tile = Tile(0, here, slice(0, queries), slice(0, keys), w, logs)
        for reader in sorted(readers, key=lambda reader: reader.order):
            reader.add(tile)
    for statistic in asked.values():
        if isinstance(statistic, AtPairs):
            statistic.weights = weights[None, :, statistic.rows[0], statistic.cols[0]].double()
    return _summary({name: statistic.result() for name, statistic in asked.items()})


def _create(layout: Layout, requests: Mapping[str, Any]) -> dict[str, Statistic]:
    for name in requests:
        if name not in STATISTICS:
            raise TypeError(
                f"summary: expected names of {', '.join(STATISTICS)}, got {name!r}.\n"
                "  A new statistic registers itself: see clearhead.maps.statistics."
            )
    return {name: STATISTICS[name](layout, argument) for name, argument in requests.items()}


def _summary(found: Mapping[str, Any]) -> Summary:
    own = {each.name for each in fields(Summary)}
    others = {name: value for name, value in found.items() if name not in own}
    return Summary(**{n: value for n, value in found.items() if n in own}, others=others)


class _Sums(Statistic):
    """A statistic that adds up in one tensor."""

    sum: Tensor

    def result(self) -> Tensor:
        return self.sum.to(self.layout.dtype)


class Entropy(_Sums, name="entropy"):
    """-Σ_j weight log weight per row: 0 for all weight on one key, log(keys) at most."""

    order = 2  # it writes over the logarithms

    def __init__(self, layout: Layout, argument: bool) -> None:
        super().__init__(layout, argument)
        self.sum = layout.zeros(layout.shape[2])

    def add(self, tile: Tile) -> None:
        self.sum[tile.b, tile.heads, tile.rows] -= tile.logs.mul_(tile.weights).sum(-1)


class Received(_Sums, name="received"):
    """Σ_i weight per column: the total weight that a key receives from all queries.

    With query weights r, Σ_i r_i weight: a vector times the map.
    """

    def __init__(self, layout: Layout, argument: bool | Tensor) -> None:
        super().__init__(layout, argument)
        batch, heads, queries, keys = layout.shape
        self.sum = layout.zeros(keys)
        self.query_weights = None
        if isinstance(argument, Tensor):
            each = argument.to(self.sum)
            each = each[:, None] if each.ndim == 2 else each
            if each.ndim != 3 or each.shape not in ((batch, 1, queries), (batch, heads, queries)):
                raise ShapeError(
                    f"query_weights: expected (batch={batch}, queries={queries}) or "
                    f"(batch, heads={heads}, queries), got {describe(argument)}."
                )
            self.query_weights = each.expand(batch, heads, queries)
            self.counts = (each != 0).any(0).any(0).cpu()

    def reach(self, rows: slice, reach: slice) -> slice:
        if self.query_weights is not None and not self.counts[rows].any():
            return slice(0, 0)
        return reach

    def add(self, tile: Tile) -> None:
        if self.query_weights is not None:
            each = self.query_weights[tile.b, tile.heads, None, tile.rows]
            sums = (each @ tile.weights)[:, 0]  # (heads, 1, rows) @ (heads, rows, cols)
        else:
            sums = tile.weights.sum(1) if tile.column_sums is None else tile.column_sums
        self.sum[tile.b, tile.heads, tile.cols] += sums


class Thumbnail(_Sums, name="thumbnail"):
    """The sum of the weights in each cell of a coarse grid over the whole map."""

    order = 0  # it computes column sums, which others can use

    def __init__(self, layout: Layout, argument: tuple[int, int]) -> None:
        super().__init__(layout, argument)
        _, _, queries, keys = layout.shape
        rows, cols = argument
        if not (1 <= rows <= queries and 1 <= cols <= keys):
            raise ValueError(
                f"thumbnail: expected at most {queries} rows and {keys} columns, "
                f"and at least 1, got {argument}."
            )
        self.sum = layout.zeros(rows, cols)
        self._membership = functools.cache(membership)  # most tiles share their rows or columns

    def add(self, tile: Tile) -> None:
        (_, _, queries, keys), (_, _, rows, cols) = self.layout.shape, self.sum.shape
        like = (self.sum.dtype, self.sum.device)
        by_row = self._membership(tile.rows.start, tile.rows.stop, queries, rows, *like)
        by_col = self._membership(tile.cols.start, tile.cols.stop, keys, cols, *like)
        sums = by_row @ tile.weights
        tile.column_sums = sums.sum(1)
        sums = sums @ by_col.T
        top, left = tile.rows.start * rows // queries, tile.cols.start * cols // keys
        here = self.sum[tile.b, tile.heads]
        here[:, top : top + sums.shape[1], left : left + sums.shape[2]] += sums


class LargestWeights(Statistic, name="top"):
    """The k largest weights of each row, and their keys."""

    def __init__(self, layout: Layout, argument: int) -> None:
        super().__init__(layout, argument)
        keys = layout.shape[3]
        if not 1 <= argument <= keys:
            raise ValueError(f"top: expected 1 to {keys} (the keys), got {argument}.")
        self.k = argument
        self.weights = layout.zeros(layout.shape[2], self.k) - 1.0
        self.keys = torch.full(self.weights.shape, -1, device=layout.device)

    def add(self, tile: Tile) -> None:
        where = (tile.b, tile.heads, tile.rows)
        best, index = tile.weights.topk(min(self.k, tile.weights.shape[-1]), dim=-1)
        both = torch.cat([self.weights[where], best], -1)
        keys = torch.cat([self.keys[where], index + tile.cols.start], -1)
        best, index = both.topk(self.k, dim=-1)
        self.weights[where] = best
        self.keys[where] = keys.gather(-1, index)

    def result(self) -> Top:
        """The weights and keys; 0 and -1 where a row has fewer than k visible keys."""
        empty = self.weights <= 0
        weights = self.weights.masked_fill(empty, 0.0).to(self.layout.dtype)
        return Top(weights, self.keys.masked_fill(empty, -1))


class Distances(Statistic, name="distance"):
    """The total weight at each distance |query position - key|, and the mean per query."""

    def __init__(self, layout: Layout, argument: tuple[float, ...] | bool) -> None:
        super().__init__(layout, argument)
        self.levels = (0.25, 0.5, 0.75) if isinstance(argument, bool) else tuple(argument)
        _, _, queries, keys = layout.shape
        # From the first query to the last key, or from the last query to the first key.
        farthest = max((max(keys - 1 - s, s + queries - 1) for s in layout.starts), default=0)
        self.histogram = layout.zeros(farthest + 1)
        self.sum = layout.zeros(queries)
        self.weight = None if layout.sums_to_one else layout.zeros(queries)

    def add(self, tile: Tile) -> None:
        heads, rows, cols = tile.weights.shape
        device = tile.weights.device
        # Shear the tile so that each of its diagonals becomes a column, then add up the columns.
        sheared = tile.weights.new_zeros(heads, rows, rows + cols)
        sheared[:, :, :cols] = tile.weights.flip(1)
        sheared = sheared.flatten(1)[:, : rows * (rows + cols - 1)].view(heads, rows, -1)
        first = tile.rows.start + self.layout.starts[tile.b]  # the position of the first query
        diagonal = torch.arange(rows + cols - 1, device=device) - (rows - 1)
        distance = (diagonal + tile.cols.start - first).abs()
        self.histogram[tile.b, tile.heads].index_add_(1, distance, sheared.sum(1))
        position = torch.arange(rows, device=device)[:, None] + first
        key = torch.arange(tile.cols.start, tile.cols.stop, device=device)
        far = (position - key).abs().to(tile.weights.dtype)
        self.sum[tile.b, tile.heads, tile.rows] += (tile.weights * far).sum(-1)
        if self.weight is not None:
            self.weight[tile.b, tile.heads, tile.rows] += tile.weights.sum(-1)

    def result(self) -> Distance:
        """A quantile is the smallest distance within which at least that share of weight lies."""
        share = self.histogram.double().cumsum(-1)
        wanted = share[..., -1:] * torch.tensor(self.levels, dtype=share.dtype, device=share.device)
        found = torch.searchsorted(share, wanted * (1 - 1e-12)).clamp_max(share.shape[-1] - 1)
        mean, dtype = self.sum, self.layout.dtype
        if self.weight is not None:
            mean = (mean / self.weight).masked_fill(self.weight == 0, 0.0)
        return Distance(mean.to(dtype), found.to(dtype), self.levels)


class SameToken(_Sums, name="same_token"):
    """The weight of each row on earlier copies of its token; NaN where the token is new."""

    shift = 0  # how many positions after a copy the key is

    def __init__(self, layout: Layout, argument: Tensor | Sequence[Sequence[int]]) -> None:
        super().__init__(layout, argument)
        batch, _, queries, keys = layout.shape
        ids = as_tensor("ids", argument, layout.device)
        tokens = max(layout.starts, default=0) + queries  # the keys after these are empty slots
        if ids.shape not in ((batch, keys), (batch, tokens)) or queries > keys:
            raise ShapeError(
                f"ids: expected one id per key, (batch={batch}, keys={keys}), got "
                f"{describe(ids)}.\n"
                "  Only self-attention has the same tokens as queries and keys."
            )
        ids = torch.nn.functional.pad(ids, (0, keys - ids.shape[1]))
        own = layout.positions.clamp(0, keys - 1)
        self.row_ids = ids.gather(1, own)
        self.new = ~seen_before(ids).gather(1, own)[:, None]
        # Compare with the id `shift` positions before a key. The first keys get an id that no token
        # has.
        none = torch.full_like(ids[:, : self.shift], int(ids.min()) - 1 if ids.numel() else 0)
        self.key_ids = torch.cat([none, ids[:, : keys - self.shift]], 1)
        self.sum = layout.zeros(queries)

    def add(self, tile: Tile) -> None:
        row, col = self.row_ids[tile.b, tile.rows], self.key_ids[tile.b, tile.cols]
        position = torch.arange(tile.rows.start, tile.rows.stop, device=row.device)
        position = position[:, None] + self.layout.starts[tile.b]
        key = torch.arange(tile.cols.start, tile.cols.stop, device=row.device)
        same = (row[:, None] == col) & (key < position + self.shift)
        self.sum[tile.b, tile.heads, tile.rows] += (tile.weights * same).sum(-1)

    def result(self) -> Tensor:
        """The sums, NaN where a token is new."""
        return super().result().masked_fill(self.new, math.nan)


class Induction(SameToken, name="induction"):
    """The weight of each row on what followed earlier copies of its token; NaN where it is new."""

    shift = 1


class Retrieval(_Sums, name="retrieval"):
    """The weight of each row on a needle: some keys, shared or given per sequence."""

    def __init__(self, layout: Layout, argument: Index | Bool[Tensor, "batch keys"]) -> None:
        super().__init__(layout, argument)
        batch, _, queries, keys = layout.shape
        if isinstance(argument, Tensor) and argument.dtype == torch.bool and argument.ndim == 2:
            if argument.shape != (batch, keys):
                raise ShapeError(
                    f"needle: expected (batch={batch}, keys={keys}), got {describe(argument)}."
                )
            needle = argument.cpu()
        else:
            needle = torch.zeros(batch, keys, dtype=torch.bool)
            needle[:, numbers(argument, keys, "needle")[0]] = True
        columns = needle.any(0).nonzero().flatten().tolist()
        if not columns:
            raise ValueError(f"needle: expected at least one of the {keys} keys, got none.")
        self.span = slice(columns[0], columns[-1] + 1)
        self.sum = layout.zeros(queries)
        self.needle = needle.to(self.sum)

    def reach(self, rows: slice, reach: slice) -> slice:
        return slice(max(reach.start, self.span.start), min(reach.stop, self.span.stop))

    def add(self, tile: Tile) -> None:
        self.sum[tile.b, tile.heads, tile.rows] += tile.weights @ self.needle[tile.b, tile.cols]


class GradientTimesAttention(Statistic, name="saliency"):
    """weight · ∂loss/∂weight per row and per column; ∂loss/∂weight_ij = ∂loss/∂output_i · v_j."""

    def __init__(self, layout: Layout, argument: Float[Tensor, "batch heads q value_dim"]) -> None:
        super().__init__(layout, argument)
        self.values, self.gradient = needed(layout.values), argument
        expected = torch.Size((*layout.shape[:3], self.values.shape[3]))
        if argument.shape != expected:
            raise ShapeError(
                "output_gradient: expected (batch, heads, queries, value_dim) = "
                f"{tuple(expected)}, got {describe(argument)}.\n  It is the gradient at the output "
                "of attention, before the heads are joined and projected."
            )
        self.queries, self.keys = layout.zeros(layout.shape[2]), layout.zeros(layout.shape[3])

    def add(self, tile: Tile) -> None:
        group = self.layout.shape[1] // self.values.shape[1]
        which = torch.arange(tile.heads.start, tile.heads.stop, device=self.layout.device) // group
        v = self.values[tile.b][which, tile.cols].to(tile.weights.dtype)
        gradient = self.gradient[tile.b, tile.heads, tile.rows].to(v)
        found = (gradient @ v.mT).mul_(
            tile.weights
        )  # (.., rows, value_dim) @ (.., value_dim, cols)
        self.queries[tile.b, tile.heads, tile.rows] += found.sum(2)
        self.keys[tile.b, tile.heads, tile.cols] += found.sum(1)

    def result(self) -> Saliency:
        return Saliency(self.queries.to(self.layout.dtype), self.keys.to(self.layout.dtype))


class Sink(AtPairs, name="sink"):
    """The weight of each row on the first token, whose position may differ per sequence.

    The sink of a map, one more logit that belongs to no token, is something else.
    """

    def __init__(self, layout: Layout, argument: int | Int[Tensor, " batch"]) -> None:
        super().__init__(layout, argument)
        batch, _, queries, _ = layout.shape
        first = torch.as_tensor(argument, device=layout.device).expand(batch)
        self.rows = torch.arange(queries, device=layout.device).expand(batch, -1)
        self.cols = first[:, None].expand(-1, queries)


class Previous(AtPairs, name="previous"):
    """The weight of each row on the token before it; NaN for the first token."""

    exact = False  # one pair for every query: float64 would take four times as long

    def __init__(self, layout: Layout, argument: bool) -> None:
        super().__init__(layout, argument)
        batch, _, queries, keys = layout.shape
        before = layout.positions - 1
        self.missing = ((before < 0) | (before >= keys))[:, None]
        self.rows = torch.arange(queries, device=layout.device).expand(batch, -1)
        self.cols = before.clamp(0, keys - 1)

    def result(self) -> Tensor:
        """The weights, NaN for the first token."""
        return self.weights.masked_fill(self.missing, math.nan)


class Relation(AtPairs, name="relation"):
    """The weights at labelled (query, key) pairs, shared or given per sequence."""

    def __init__(self, layout: Layout, argument: Tensor | Sequence[Sequence[int]]) -> None:
        super().__init__(layout, argument)
        pairs = as_tensor("pairs", argument, layout.device)
        batch = layout.shape[0]
        same = pairs.ndim == 2 and pairs.shape[1] == 2
        if not same and not (pairs.ndim == 3 and pairs.shape[::2] == (batch, 2)):
            raise ShapeError(
                f"pairs: expected (pairs, 2) or (batch={batch}, pairs, 2), got {describe(pairs)}."
            )
        self.rows, self.cols = pairs.expand(batch, -1, -1).unbind(-1)
