"""AttentionMap: the queries × keys weights as a lazy array that is never built.

It keeps the queries, the keys, the mask and the log-sum-exp of each row. Any weight can be computed
from these exactly, and only the requested ones are. Statistics of the whole map stream over it in
tiles.
"""

import math
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.drawing import Axis, plain
from clearhead.drawing.file_formats import save
from clearhead.drawing.heatmap import Heatmap
from clearhead.drawing.html_page import MOST_CELLS_IN_A_NOTEBOOK, Page, too_large_for_a_notebook
from clearhead.drawing.text_format import memory
from clearhead.kernels.scores import Scores
from clearhead.maps import exact_weights, grid_cells, map_figures, page_layers, positions
from clearhead.maps.axis_labels import axis_labels
from clearhead.maps.indexing import Index, check_batch, indices_of, numbers, squeeze
from clearhead.maps.statistics import Distance, Summary, Top, summarise
from clearhead.masks import Mask
from clearhead.validation import ShapeError, describe

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console, ConsoleOptions, RenderResult

# Token ids or pairs, as a tensor or as lists.
_Ids = Int[Tensor, "batch keys"] | Sequence[Sequence[int]]
_Pairs = Int[Tensor, "*batch pairs 2"] | Sequence[Sequence[int]]

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
        lse: The log-sum-exp of each row, if it is known. Otherwise it is computed when needed.
        detach: Whether to detach the map from autograd. If not, weights have gradients, but
            statistics do not.
        head_numbers: The number of each head in its layer; 0, 1, ... by default.

    >>> m = AttentionMap(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), Mask.causal())
    >>> m[0, 1, 2]
    tensor([0.3333, 0.3333, 0.3333])
    >>> m.entropy()[0, 0].exp().round()
    tensor([1., 2., 3.])
    """

    __iter__ = None  # otherwise torch and numpy would build the map row by row

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
        self._given = Scores(q, k, mask, bias, scale, lse)
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
        return self._given.bias

    @property
    def scale(self) -> float:
        """The factor on the scores."""
        return self._given.scale

    @property
    def lse(self) -> Float[Tensor, "batch heads queries"]:
        """The log-sum-exp of each row, computed once; -inf for a query that attends to nothing.

        It is float64 where float32 would leave no decimals.
        """
        self.normalise()
        lse = self.lazy_scores.lse
        assert lse is not None
        return lse

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

    @cached_property
    def first_positions(self) -> list[int]:
        """The key position of the first query of each sequence, derived from the mask once."""
        return positions.first_positions(self.lazy_scores)

    def is_causal(self) -> bool | None:
        """Whether no query may attend to a later key; None if there are too few queries to tell."""
        return positions.is_causal(self.lazy_scores)

    @property
    def nbytes(self) -> int:
        """The bytes of the tensors it holds, including those it shares with the model."""
        held: list[Tensor] = []
        if self.mask is not None:
            self.mask.encode(held)
        for scores in (self._given, self._resolved or self._given):
            parts = (scores.queries, scores.keys, scores.bias, scores.lse, scores.saturated)
            held += [t for t in parts if t is not None]
        return sum(_stored_bytes(t) for t in {id(t): t for t in held}.values())

    def __repr__(self) -> str:
        batch, heads, queries, keys = self.shape
        named = self.head_numbers != tuple(range(heads)) and heads <= _NAMED_HEADS
        return (
            f"AttentionMap(batch={batch}, heads={list(self.head_numbers) if named else heads}, "
            f"queries={queries}, keys={keys}, "
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

        >>> m = AttentionMap(torch.zeros(1, 4, 3, 4), torch.zeros(1, 4, 3, 4))
        >>> m.select(heads=[3, 1]).select(heads=0).head_numbers
        (3,)
        """
        size_b, size_h, _, _ = self.shape
        b = numbers(slice(None) if batch is None else batch, size_b, "batch")[0].to(self.device)
        h = numbers(slice(None) if heads is None else heads, size_h, "heads")[0].to(self.device)
        bias, lse = self.bias, self._known_lse()
        if bias is not None:
            bias = bias[b] if bias.shape[0] > 1 else bias
            bias = bias[:, h] if bias.shape[1] > 1 else bias
        return AttentionMap(
            _pick(self.queries, b, h),
            _pick(self.keys, b, h // self._given.group),
            None if self.mask is None else self.mask.select(b, h),
            scale=self.scale,
            bias=bias,
            lse=None if lse is None else _pick(lse, b, h),
            detach=False,
            head_numbers=[self.head_numbers[i] for i in h.tolist()],
        )

    def to(self, *args: object, **kwargs: object) -> "AttentionMap":
        """The same map on another device or computed from another dtype, as `Tensor.to`."""

        def move(t: Tensor) -> Tensor:
            return t.to(*args, **kwargs)  # type: ignore[call-overload,no-any-return]  # as Tensor.to

        q = move(self.queries)
        lse = self._known_lse() if q.dtype == self.queries.dtype else None
        return AttentionMap(
            q,
            move(self.keys),
            self.mask,
            scale=self.scale,
            bias=None if self.bias is None else move(self.bias),
            lse=None if lse is None else lse.to(q.device),
            detach=False,
            head_numbers=self.head_numbers,
        )

    def detach(self) -> "AttentionMap":
        """The same map without gradients."""
        return AttentionMap(
            self.queries,
            self.keys,
            self.mask,
            scale=self.scale,
            bias=self.bias,
            lse=self._known_lse(),
            head_numbers=self.head_numbers,
        )

    # Statistics. Each streams over the map once; `summary` computes several in one pass.

    def entropy(self) -> Float[Tensor, "batch heads queries"]:
        """How widely each query spreads, in nats: 0 = one key, log(keys) = all keys equally."""
        return _present(self.summary(entropy=True).entropy)

    def received(self) -> Float[Tensor, "batch heads keys"]:
        """How much weight each key gets from all queries together."""
        return _present(self.summary(received=True).received)

    def top(self, k: int) -> Top:
        """The k largest weights of each query, and their keys."""
        return _present(self.summary(top=k).top)

    def thumbnail(self, rows: int, cols: int) -> Float[Tensor, "batch heads rows cols"]:
        """The whole map made small: the exact sum of the weights in each cell of a grid.

        Query i falls into row i * rows // queries, key j into column j * cols // keys.
        """
        return _present(self.summary(thumbnail=(rows, cols)).thumbnail)

    def distance(self, levels: tuple[float, ...] = (0.25, 0.5, 0.75)) -> Distance:
        """The distance from query to key: a mean per query, and quantiles over all weight."""
        return _present(self.summary(distance=levels).distance)

    def sink(self, first: int | Int[Tensor, " batch"] = 0) -> Float[Tensor, "batch heads queries"]:
        """The weight of each query on the first token; with left padding, pass its position."""
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
        **others: object,
    ) -> Summary:
        """Several statistics from one pass over the map. Each equals the method of its name.

        Args:
            entropy: See `entropy`.
            received: See `received`.
            top: How many; see `top`.
            thumbnail: (rows, cols); see `thumbnail`.
            distance: True or the levels; see `distance`.
            sink: The position of the first token; see `sink`.
            previous: See `previous`.
            same_token: The token ids; see `same_token`.
            induction: The token ids; see `induction`.
            relation: The pairs; see `relation`.
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
            **others,
        }
        asked = {
            name: argument
            for name, argument in requests.items()
            if argument is not None and argument is not False
        }
        self.normalise()
        return summarise(self.lazy_scores, self.first_positions, asked, on_progress)

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

    # Helpers.

    def _block(self, index: object) -> tuple[list[Tensor], list[int]]:
        block, removed = indices_of(index, self.shape)
        return [indices.to(self.device) for indices in block], removed

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
