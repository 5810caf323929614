"""Interventions: a model without some of its heads, or without some edges of its attention.

Both work on every model that `watch` sees, with its fused kernels, and can be combined with `watch`
and with each other. A map shows the weights without the removed edges; the weights of a head that
is ablated are shown as they are, because ablation replaces its output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead import torch_internals
from clearhead.foreign_names import explained
from clearhead.watcher import calls, padding
from clearhead.watcher.interception import AttentionCall
from clearhead.watcher.layer_names import LayerChoice, Selector
from clearhead.watcher.model_routes import Routes

Positions = int | slice | Sequence[int] | Tensor


@explained
@contextmanager
def ablate(
    model: nn.Module,
    heads: Mapping[str | int, int | Sequence[int]],
    *,
    to: Literal["zero", "mean"] | Tensor = "zero",
) -> Iterator[None]:
    """Run a model without some of its heads.

    The output of a head, before the output projection, is replaced. "mean" is the head's mean
    output over all tokens of the call, in all its sequences. Padding is left out where the mask of
    self-attention shows it, as in `seen.heads`. In generation with a cache each new token is a call
    of its own: pass a tensor of means.

    Args:
        model: Any model that `watch` sees.
        heads: For each layer the numbers of the heads. A layer is named as in `seen[...]`.
        to: "zero", "mean" or a tensor that broadcasts to (batch, queries, heads given, value_dim).

    Examples:
        >>> from clearhead import MultiHeadAttention
        >>> layer = MultiHeadAttention(8, 8, 16, 0.0, num_heads=2).eval()
        >>> x = torch.rand(1, 5, 8)
        >>> with ablate(layer, {"MultiHeadAttention": [0, 1]}):
        ...     y = layer(x)
        >>> bool((y == layer.out_proj.bias).all())
        True
    """
    if not isinstance(to, Tensor) and to not in ("zero", "mean"):
        raise ValueError(f'to: expected "zero", "mean" or a tensor, got {to!r}.')
    if not isinstance(heads, Mapping) or not heads:
        raise TypeError(
            "heads: expected the numbers of the heads for each layer, such as "
            f'{{"layers.5": [0, 3]}}, got {heads!r}.'
        )
    choice = LayerChoice("heads", list(heads), early=True)
    with _open(model, _Ablation(choice, [_numbers(one) for one in heads.values()], to)):
        yield
    choice.chosen()


@explained
@contextmanager
def knockout(
    model: nn.Module,
    layer: Selector | Sequence[Selector],
    queries: Positions,
    keys: Positions,
    *,
    heads: int | Sequence[int] | None = None,
) -> Iterator[None]:
    """Run a model in which some queries may not attend to some keys (Geva et al. 2023).

    A query that may attend to nothing any more gets zeros from the layer's attention.

    Args:
        model: Any model that `watch` sees, except with flash kernels, which take no such mask.
        layer: The layers, named as in `watch(layers=...)`; "*" for all.
        queries: The positions of the queries: a number, a slice, several numbers, or a bool tensor
            that is True at them. With a cache, positions count from the first key. In
            cross-attention they count from the first query of each call.
        keys: The positions of the keys that they may not attend to.
        heads: The heads; all by default.

    Examples:
        >>> from clearhead import MultiHeadAttention, watch
        >>> layer = MultiHeadAttention(8, 8, 16, 0.0, num_heads=2).eval()
        >>> with knockout(layer, 0, queries=4, keys=[1, 2]), watch(layer) as seen:
        ...     _ = layer(torch.rand(1, 5, 8))
        >>> (seen[0][0, 0, 4] > 0).tolist()
        [True, False, False, True, True]
    """
    choice = LayerChoice("layer", layer, early=True)
    numbers = None if heads is None else _numbers(heads)
    handler = _Knockout(choice, queries, keys, numbers)
    with _open(model, handler):
        yield
    choice.chosen()
    handler.check_something_removed()


@contextmanager
def _open(model: nn.Module, handler: _Ablation | _Knockout) -> Iterator[None]:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: expected a torch.nn.Module, got {type(model).__name__}.")
    routes = Routes.of(model)
    handler.names = routes.names
    if any(m.training and getattr(m, "gradient_checkpointing", False) for m in routes.names):
        raise ValueError(
            "ablate and knockout cannot be combined with gradient checkpointing: the backward pass "
            "would repeat the layers unchanged.\n"
            "  Turn checkpointing off, or call model.eval() where no gradients are needed."
        )
    with routes.open(handler):
        yield
    if not handler.choice.names:
        name = type(torch_internals.uncompiled_module(model)).__name__
        raise RuntimeError(
            f"{name} made no attention call inside the block, so nothing was changed.\n"
            "  watch(model) says what can be seen of it."
        )


class _Ablation:
    """The handler of `ablate`."""

    names: dict[nn.Module, str]

    def __init__(
        self, choice: LayerChoice, heads: list[list[int]], to: Literal["zero", "mean"] | Tensor
    ) -> None:
        self.choice, self._heads, self._to = choice, heads, to

    def prepare(self, call: AttentionCall) -> None:
        name = call.name_in(self.names)
        for i in [] if name is None else self.choice.of(name):
            heads = _checked_heads(self._heads[i], call, name)
            real = _real_tokens(call) if self._to == "mean" else None
            call.edits.append(partial(self._replaced, heads, real))

    def record(self, call: AttentionCall) -> None:
        """Nothing is recorded."""

    def _replaced(self, heads: list[int], real: Tensor | None, context: Tensor) -> Tensor:
        """The context vectors (batch, queries, heads, value_dim) with other ones for some heads."""
        old = context[:, :, heads]
        new = torch.zeros_like(old)
        if isinstance(self._to, Tensor):
            try:
                new = self._to.to(context).expand_as(old)
            except RuntimeError:
                raise ValueError(
                    "to: expected a tensor that broadcasts to (batch, queries, heads given, "
                    f"value_dim) = {tuple(old.shape)}, got {tuple(self._to.shape)}."
                ) from None
        elif real is not None:
            new = old[real].mean(0).expand_as(old)  # (tokens, heads, value_dim) -> their mean
        context = context.clone()
        context[:, :, heads] = new
        return context


class _Knockout:
    """The handler of `knockout`."""

    names: dict[nn.Module, str]

    def __init__(
        self, choice: LayerChoice, queries: Positions, keys: Positions, heads: list[int] | None
    ) -> None:
        self.choice, self._queries, self._keys, self._heads = choice, queries, keys, heads
        self._removed, self._longest = False, (0, 0)

    def prepare(self, call: AttentionCall) -> None:
        name = call.name_in(self.names)
        if name is None or not self.choice.of(name):
            return
        _, heads, queries, keys = call.shape
        starts = call.first_positions()
        if starts is None:
            edges = self._edges(name, 0, queries, keys, keys)[None, None]
        else:
            each = [
                self._edges(name, start, start + queries, start + queries, keys) for start in starts
            ]
            edges = torch.stack(each)[:, None]
        self._longest = max(self._longest, (queries, keys))
        if self._heads is not None:
            chosen = torch.zeros(heads, dtype=torch.bool)
            chosen[_checked_heads(self._heads, call, name)] = True
            edges = edges & chosen[None, :, None, None]
        if edges.any():
            call.block(edges)
            self._removed = True

    def _edges(self, name: str, start: int, stop: int, text: int, keys: int) -> Tensor:
        """Which edges to remove, (queries, keys), of the queries from `start` to `stop`.

        Args:
            name: The layer, for messages.
            start: The position of the first query.
            stop: The position after the last query.
            text: How many keys there are without empty slots.
            keys: How many there are with them.
        """
        rows = _mark(self._queries, stop, "queries", name)[start:]
        columns = F.pad(_mark(self._keys, text, "keys", name), (0, keys - text))
        return rows[:, None] & columns

    def check_something_removed(self) -> None:
        """Raise if no call had such queries and keys."""
        if not self._removed:
            queries, keys = self._longest
            raise ValueError(
                "knockout: no edge was removed: no call had a query of queries="
                f"{self._queries!r} and a key of keys={self._keys!r}.\n"
                f"  The longest call had {queries} queries and {keys} keys; positions count from 0."
            )

    def record(self, call: AttentionCall) -> None:
        """Nothing is recorded."""


def _real_tokens(call: AttentionCall) -> Tensor:
    """The queries of a call that are not padding, bool (batch, queries)."""
    batch, _, queries, _ = call.shape
    weights = call.inputs().map()
    padded = padding.found(calls.runs([weights])[0][0])
    if padded is None:
        padded = torch.zeros(batch, queries, dtype=torch.bool, device=weights.device)
    if int((~padded).sum()) < 2:
        raise ValueError(
            'to: the "mean" over one token is the token itself, so nothing would change.\n'
            "  With a cache each new token is a call of its own: pass a tensor of means."
        )
    return ~padded


def _numbers(heads: int | Sequence[int]) -> list[int]:
    several = [heads] if isinstance(heads, int) else heads
    if isinstance(several, str) or not isinstance(several, Iterable) or not len(several):
        raise TypeError(f"heads: expected a number or several numbers of heads, got {heads!r}.")
    return [int(head) for head in several]


def _checked_heads(heads: list[int], call: AttentionCall, name: str | None) -> list[int]:
    count = call.shape[1]
    if wrong := [head for head in heads if not 0 <= head < count]:
        raise ValueError(f"heads: {name} has the heads 0 to {count - 1}, got {wrong[0]}.")
    return heads


def _mark(positions: Positions, size: int, what: str, name: str) -> Tensor:
    """True at these positions; those beyond the size are not there yet, as with a cache."""
    marked = torch.zeros(size, dtype=torch.bool)
    if isinstance(positions, slice):
        marked[positions] = True
        return marked
    if isinstance(positions, Tensor) and positions.dtype == torch.bool:
        positions = positions.nonzero().flatten()
    several = [positions] if isinstance(positions, int) else [int(i) for i in positions]
    for i in several:
        if i < -size:
            raise ValueError(f"{what}: {name} has {size} {what}, got {i}.")
        if i < size:
            marked[i] = True
    return marked
