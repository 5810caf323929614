"""The calls of a layer: which of them continue one text, and which are cross-attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from clearhead.maps import AttentionMap


@dataclass(frozen=True)
class Step:
    """A call, and its position in a text that several calls read, as with a cache.

    Attributes:
        map: Its weights.
        origin: The position of its first key; not 0 where a cache has dropped the oldest keys.
        start: The key position of its first query, in the longest sequence.
    """

    map: AttentionMap
    origin: int
    start: int

    @property
    def end(self) -> int:
        """How many tokens of the text have been read when it ends."""
        return self.origin + self.start + self.map.shape[2]


Run = Sequence[Step]


def runs(maps: Sequence[AttentionMap]) -> list[list[Step]]:
    """The calls of a layer, grouped by the text that they read.

    A call continues the text of the previous one if its queries follow the tokens that were read
    then. With a window, the cache drops old keys; the remaining keys must then have the same values
    as before. In the first call of a run, the first key counts as the first token.
    """
    found: list[list[Step]] = []
    for m in maps:
        start = max(m.first_positions, default=0)
        step = Step(m, 0, start)
        before = found[-1][-1] if found else None
        gone = None if before is None else _gone(before, step)
        if before is None or gone is None:
            found.append([step])
        else:
            found[-1].append(Step(m, before.origin + gone, start))
    return found


def _gone(before: Step, step: Step) -> int | None:
    """How many of the oldest keys were dropped since the previous call; None if another text."""
    a, b = before.map, step.map
    if a.shape[:2] != b.shape[:2] or min(before.start, step.start) < 0:
        return None
    if len(set(a.first_positions)) > 1 or len(set(b.first_positions)) > 1:
        return None
    end = before.start + a.shape[2]
    gone = end - step.start
    if gone <= 0 or not step.start:
        return 0 if gone == 0 else None
    same = _same(a.keys[:, :, gone:end], b.keys[:, :, : step.start])
    return gone if same else None


def about(
    layers: Mapping[str, Sequence[Run]], given: Tensor, *rules: Callable[[Run], set[int]]
) -> dict[str, list[int]]:
    """The runs of each layer with as many sequences and tokens as `given`, by number.

    Args:
        layers: The runs of each layer.
        given: One number per token, (batch, tokens).
        rules: The numbers of tokens that fit a run. The first rule that any run fits is used, so
            that a text that fits one layer exactly is not taken for that of another one.
    """
    if given.ndim != 2:
        return {}
    for rule in rules:
        found = {
            name: [
                i
                for i, run in enumerate(runs)
                if run[0].map.shape[0] == given.shape[0] and given.shape[1] in rule(run)
            ]
            for name, runs in layers.items()
        }
        if any(found.values()):
            return found
    return {}


def check_one_text(
    name: str, layers: Mapping[str, Sequence[Run]], found: Mapping[str, Sequence[int]]
) -> None:
    """Raise if causal and other layers read as many tokens, as a decoder and an encoder do.

    Args:
        name: What was given.
        layers: The runs of each layer.
        found: The runs of self-attention that it may belong to, by number.
    """
    kinds: dict[bool, str] = {}
    for layer, numbers in found.items():
        for run in [layers[layer][number] for number in numbers]:
            causal = len(run) > 1 or run[0].map.is_causal()
            if causal is not None:
                kinds.setdefault(causal, layer)
    if len(kinds) == 2:
        raise ValueError(
            f"{name}: as many tokens were read by {kinds[False]}, which is not causal, and by "
            f"{kinds[True]}, which is: an encoder and a decoder?\n"
            f"  It is ambiguous whose {name} this is. Watch one of the two, such as "
            f'watch(model, layers="encoder.*"), or leave {name} out.'
        )


def crossing(layers: Mapping[str, Sequence[AttentionMap]]) -> set[str]:
    """The layers of cross-attention, whose keys belong to another text than their queries.

    It is known where there are more queries than keys, where there are fewer queries than keys and
    no causality, and where later queries meet the same keys. Cross-attention with as many queries
    as keys looks like self-attention without causality; after a causal layer with as many queries,
    as in a decoder, it is taken for cross-attention.

    Args:
        layers: The maps of each layer, in the order of the first calls.
    """
    found: set[str] = set()
    causal: set[int] = set()  # the numbers of queries of the causal layers so far
    for name, maps in layers.items():
        kinds = [(m, m.is_causal()) for m in _different(maps)]
        known = any(_is_crossing(m, kind) for m, kind in kinds) or _keys_stay(maps)
        if known or any(kind is False and m.shape[2] in causal for m, kind in kinds):
            found.add(name)
        causal |= {m.shape[2] for m, kind in kinds if kind}
    return found


def _is_crossing(m: AttentionMap, causal: bool | None) -> bool:
    _, _, queries, keys = m.shape
    return queries > keys or (queries < keys and causal is False)


def _keys_stay(maps: Sequence[AttentionMap]) -> bool:
    """Whether other queries met the same keys; a cache would have added the new tokens."""
    return any(
        a.shape == b.shape
        and b.shape[2] < b.shape[3]
        and _same(a.keys, b.keys)
        and not _same(a.queries, b.queries)
        for a, b in pairwise(maps)
    )


def _different(maps: Sequence[AttentionMap]) -> list[AttentionMap]:
    """The first map of each size; the others tell nothing new about the layer."""
    return list({m.shape: m for m in reversed(maps)}.values())


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same values; False if that is unknown."""
    return a.device == b.device and a.device.type != "meta" and torch.equal(a, b)
