"""Weights and steps -> what a page or a figure shows of them.

Everything is said about one sequence. Nothing here computes attention: the weights come as they
are, and a few words about each head are measured from them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead.drawing.html_page import Layer
from clearhead.validation import ShapeError

# A pattern is named when it takes at least this share of a head's weight.
_NAMED = 0.4
_PATTERNS = {
    "previous": "previous token",
    "sink": "first token",
    "same_token": "same token",
    "induction": "after a copy",
}
# Fewer repeated tokens than this say nothing about what a head does with copies.
_REPEATED = 8


def layer(
    name: str,
    weights: Float[Tensor, "heads queries keys"],
    hidden: Bool[Tensor, "#heads queries keys"] | None,
    tokens: Sequence[str] | None = None,
    context_tokens: Sequence[str] | None = None,
    numbers: Sequence[int] | None = None,
    start: int | None = None,
) -> Layer:
    """One layer, with what each of its heads looks at.

    Args:
        name: What the layer is called.
        weights: The weights of one sequence.
        hidden: True where a query may not look at a key; None without a mask.
        tokens: One label per query; t0, t1, ... by default.
        context_tokens: One label per key. By default those of the queries, where there are as many.
        numbers: The number of each head; 0, 1, ... by default.
        start: The key at which the first query stands; by default the queries are the last keys.
    """
    heads, queries, keys = weights.shape
    if weights.numel() == 0:
        raise ValueError(f"There is nothing to show in {heads} heads × {queries} × {keys} weights.")
    start = keys - queries if start is None else start
    rows, columns = labels(queries, keys, tokens, context_tokens, start)
    if hidden is not None:
        hidden = hidden.expand(heads, queries, keys)
        hidden = hidden if bool(hidden.any()) else None
    ids = None
    if tokens is not None or context_tokens is not None:
        known = {token: place for place, token in enumerate(dict.fromkeys(columns))}
        if rows == columns[start : start + queries]:
            ids = torch.tensor([known[token] for token in columns])
    scores = measure(weights, hidden, ids, start)
    one_each = [{key: values[head] for key, values in scores.items()} for head in range(heads)]
    return Layer(
        name,
        weights.detach().cpu().numpy(),
        None if hidden is None else hidden.cpu().numpy(),
        rows,
        columns,
        tuple(map(in_words, one_each)),
        scores,
        None if numbers is None else tuple(numbers),
    )


def labels(
    queries: int,
    keys: int,
    tokens: Sequence[str] | None,
    context_tokens: Sequence[str] | None = None,
    start: int | None = None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """One label per query and one per key.

    With more keys than queries (a cache), one label per key is enough: the queries are the last, or
    stand at `start`. What follows them in a cache of fixed size are empty slots.

    >>> labels(1, 3, ["the", "cat", "sat"])
    (('sat',), ('the', 'cat', 'sat'))
    >>> labels(1, 4, ["the", "cat"], start=1)
    (('cat',), ('the', 'cat', '(empty)', '(empty)'))
    """
    shift = max(0, keys - queries if start is None else start)
    end = shift + queries
    for name, given in (("tokens", tokens), ("context_tokens", context_tokens)):
        if isinstance(given, str):
            raise ShapeError(f"{name}: expected a list of labels, got one string.")
    if tokens is not None and context_tokens is None:
        if len(tokens) == end < keys:
            tokens = [*tokens, *["(empty)"] * (keys - end)]
        if len(tokens) == keys:
            context_tokens, tokens = tokens, tokens[shift:end]
    if tokens is None:
        aligned = context_tokens is not None and end <= keys == len(context_tokens)
        tokens = (
            context_tokens[shift:end]
            if aligned and context_tokens is not None
            else [f"t{shift + i}" for i in range(queries)]
        )
    if context_tokens is None:
        context_tokens = tokens if queries == keys else [f"t{i}" for i in range(keys)]
    for name, given, count in (
        ("tokens", tokens, queries),
        ("context_tokens", context_tokens, keys),
    ):
        if len(given) != count:
            what = "query" if name == "tokens" else "key"
            raise ShapeError(
                f"{name}: expected one label per {what}, {count} of them, got {len(given)}.\n"
                "  Were the labels made by the same tokenizer as the ids?"
            )
    return tuple(map(str, tokens)), tuple(map(str, context_tokens))


def measure(
    weights: Float[Tensor, "heads queries keys"],
    hidden: Bool[Tensor, "heads queries keys"] | None,
    ids: Tensor | None = None,
    start: int | None = None,
) -> dict[str, list[float | None]]:
    """What `Seen.heads` says of a map, from its weights: each a mean over the queries, a head.

    Args:
        weights: The weights of one sequence.
        hidden: True where a query may not look at a key.
        ids: The tokens as numbers, one a key; None if queries and keys are different texts.
        start: The key at which the first query stands; by default the queries are the last keys.
    """
    _, queries, keys = weights.shape
    start = keys - queries if start is None else start
    position = torch.arange(queries)[:, None] + start
    key = torch.arange(keys)
    far = (position - key).abs()
    before = position[:, 0] - 1
    without = (before < 0) | (before >= keys)
    first = int((weights.nan_to_num(0.0).sum((0, 1)) > 0).int().argmax())
    filling = torch.zeros(keys, dtype=torch.bool)
    if hidden is not None and start == 0 and queries <= keys:
        visible = ~hidden[:, :, :queries].all(0).cpu()  # the keys after these are empty slots
        filling[:queries] = only_filling(visible.any(0)[None], bool(visible.diagonal().any()))[0]
        without |= filling[before.clamp(0, keys - 1)]
    copies = None
    if ids is not None and queries <= keys:
        copies = (ids[position] == ids) & (key < position) & ~filling & ~filling[position]
        if int(copies.any(-1).sum()) < _REPEATED:
            copies = None
    found: list[dict[str, Tensor]] = []
    for head, one in enumerate(weights.detach()):  # head by head: a map may be large
        w = one.double().cpu().nan_to_num(0.0)
        blind = w.sum(-1) <= 0 if hidden is None else hidden[head].cpu().all(-1)
        if start == 0 and queries <= keys:
            blind = blind | filling[:queries]
        previous = w[torch.arange(queries), before.clamp(0, keys - 1)]
        rows = {
            "entropy": -torch.special.xlogy(w, w).sum(-1),
            "distance": (w * far).sum(-1),
            "previous": previous.masked_fill(without, math.nan),
            "sink": w[:, first],
        }
        if copies is not None:
            new = ~copies.any(-1)
            rows["same_token"] = (w * copies).sum(-1).masked_fill(new, math.nan)
            rows["induction"] = (w[:, 1:] * copies[:, :-1]).sum(-1).masked_fill(new, math.nan)
        found.append({k: v.masked_fill(blind, math.nan).nanmean() for k, v in rows.items()})
    return {
        name: [None if each[name].isnan() else each[name].item() for each in found]
        for name in found[0]
    }


def only_filling(
    seen: Bool[Tensor, "batch tokens"], sees_itself: bool
) -> Bool[Tensor, "batch tokens"]:
    """The tokens of self-attention that only fill a batch: those that no token may see.

    Args:
        seen: Whether any token may see this one.
        sees_itself: Whether any token may see itself. Where none may, nobody can see the last one,
            filling or not: it is what the one before it is.
    """
    if not sees_itself and seen.shape[1] > 1:
        seen = torch.cat([seen[:, :-1], seen[:, -2:-1]], 1)
    # Where nothing at all is seen, it is no filling: the mask means something else.
    return (~seen).masked_fill(~seen.any(1, keepdim=True), False)


def in_words(scores: Mapping[str, float | None]) -> str:
    """The strongest pattern, or how many tokens it looks at, and how far away.

    >>> in_words({"previous": 0.93, "sink": 0.02, "entropy": 0.3, "distance": 1.2})
    'previous token 0.93'
    >>> in_words({"previous": 0.1, "sink": 0.1, "entropy": 1.6, "distance": 3.3})
    '5 tokens, 3 away'
    """
    best = max(_PATTERNS, key=lambda name: scores.get(name) or 0.0)
    share = scores.get(best) or 0.0
    if share >= _NAMED:
        return f"{_PATTERNS[best]} {share:.2f}"
    entropy, distance = scores.get("entropy"), scores.get("distance")
    if entropy is None:
        return "nothing"
    wide = math.exp(entropy)
    words = f"{wide:.0f} token{'s' if round(wide) > 1 else ''}"
    return words if distance is None else f"{words}, {distance:.0f} away"
