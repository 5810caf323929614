"""Weights of one sequence -> a layer of a page, with the name of each head's pattern."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead.drawing.html_page import MOST_CELLS, MOST_CELLS_WITH_HIDDEN, Layer, TooLarge
from clearhead.kernels.scores import Scores
from clearhead.maps.axis_labels import axis_labels
from clearhead.maps.grid_cells import count_visible
from clearhead.maps.head_patterns import HeadMeans, pattern_name
from clearhead.maps.indexing import check_batch
from clearhead.maps.positions import padding_tokens, seen_before, unique_padding_ids
from clearhead.maps.statistics import summarise_dense

# With fewer repeated tokens than this, a page has no scores for copies.
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
    """One layer of a page.

    Args:
        name: The name of the layer.
        weights: The weights of one sequence.
        hidden: True where a query may not attend to a key; None without a mask.
        tokens: The labels of the queries; t0, t1, ... by default.
        context_tokens: The labels of the keys. By default those of the queries, if there are as
            many.
        numbers: The number of each head; 0, 1, ... by default.
        start: The key position of the first query; by default the queries are the last keys.
    """
    heads, queries, keys = weights.shape
    if weights.numel() == 0:
        raise ValueError(f"A page needs weights, got {heads} heads × {queries} × {keys}.")
    start = keys - queries if start is None else start
    rows, columns = axis_labels(queries, keys, tokens, context_tokens, start)
    if hidden is not None:
        hidden = hidden.expand(heads, queries, keys)
        hidden = hidden if bool(hidden.any()) else None
    ids = None
    labelled = tokens is not None or context_tokens is not None
    if labelled and rows == columns[start : start + queries]:
        numbered = {token: number for number, token in enumerate(dict.fromkeys(columns))}
        ids = torch.tensor([[numbered[token] for token in columns]])
    scores = head_scores(weights, hidden, ids, start)
    return Layer(
        name,
        weights.detach().cpu().numpy(),
        None if hidden is None else hidden.cpu().numpy(),
        rows,
        columns,
        tuple(map(pattern_name, scores)),
        {key: [one[key] for one in scores] for key in scores[0]},
        None if numbers is None else tuple(numbers),
    )


def head_scores(
    weights: Float[Tensor, "heads queries keys"],
    hidden: Bool[Tensor, "heads queries keys"] | None,
    ids: Tensor | None,
    start: int,
) -> list[dict[str, float | None]]:
    """The mean scores of each head, as in a head table; for copies, only if there are enough.

    Args:
        weights: The weights of one sequence.
        hidden: True where a query may not attend to a key.
        ids: The tokens as numbers, (1, keys); None if queries and keys are different texts.
        start: The key position of the first query.
    """
    heads, queries, keys = weights.shape
    weights = weights.detach().cpu().nan_to_num(0.0)
    positions = start + torch.arange(queries)[None]
    padding = torch.zeros(1, keys, dtype=torch.bool)
    blind = weights.sum(-1) <= 0
    if hidden is not None:
        hidden = hidden.cpu()
        blind = hidden.all(-1)
        if start == 0 and queries <= keys:  # the keys after the queries are empty slots
            visible = ~hidden[:, :, :queries].all(0)
            own = bool(visible.diagonal().any())
            padding[:, :queries] = padding_tokens(visible.any(0)[None], own)
    first = int((weights.sum((0, 1)) > 0).int().argmax())
    requests: dict[str, object] = {
        "entropy": True,
        "distance": True,
        "previous": True,
        "sink": first,
    }
    if ids is not None and queries <= keys:
        ids = unique_padding_ids(ids, padding)
        if int(seen_before(ids).gather(1, positions).sum()) >= _REPEATED:
            requests |= {"same_token": ids, "induction": ids}
    means = HeadMeans(heads)
    means.add(summarise_dense(weights, start, requests), blind[None], padding, positions)
    return [{key: each[key] for key in requests} for each in means.per_head()]


def check_size(maps: Sequence[Scores], batch: int) -> None:
    """Raise TooLarge for maps that do not fit on a page, before their weights are computed."""
    for scores in maps:
        check_batch(batch, scores.shape[0])
    cells = sum(math.prod(scores.shape[1:]) for scores in maps)
    if cells <= MOST_CELLS:
        return
    seen = 0
    for scores in maps if cells <= MOST_CELLS_WITH_HIDDEN else ():
        seen += count_visible(scores, batch, MOST_CELLS - seen)
    if cells > MOST_CELLS_WITH_HIDDEN or seen > MOST_CELLS:
        raise TooLarge(cells)
