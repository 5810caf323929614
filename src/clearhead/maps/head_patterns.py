"""The mean scores of a head, and the name of its pattern."""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from clearhead.maps.statistics import Summary

# The statistics whose means describe a head.
SCORES = ("entropy", "distance", "previous", "sink", "same_token", "induction")

# A head is named after a pattern if at least this share of its weight follows it.
_NAMED = 0.4
_ABOVE_CHANCE = 0.15
_PATTERNS = {
    "previous": "previous token",
    "sink": "first token",
    "same_token": "same token",
    "induction": "after a copy",
}
_PHRASES = {
    "previous": "the previous token",
    "sink": "the first token",
    "same_token": "earlier copies of the same token",
    "induction": "what followed an earlier copy of the token",
}


class HeadMeans:
    """The mean of each score over sequences and queries, per head; maps are added one by one."""

    def __init__(self, heads: int) -> None:
        self._sums = {name: torch.zeros(heads, dtype=torch.float64) for name in SCORES}
        self._counts = {name: torch.zeros(heads, dtype=torch.float64) for name in SCORES}

    def add(
        self,
        found: Summary,
        blind: Bool[Tensor, "batch heads queries"],
        padding: Bool[Tensor, "batch keys"] | None = None,
        positions: Int[Tensor, "batch queries"] | None = None,
    ) -> None:
        """Add the scores of a map, those that the summary has.

        Args:
            found: The statistics of the map.
            blind: The queries that attend to nothing; they do not count.
            padding: The keys that are padding. They do not count as queries, and a query after one
                of them has no previous token.
            positions: The key position of each query; needed with `padding`.
        """
        values = {name: getattr(found, name) for name in SCORES}
        if found.distance is not None:
            values["distance"] = found.distance.mean
        if padding is not None and positions is not None:
            own = positions.clamp(0, padding.shape[1] - 1)
            blind = blind | padding.gather(1, own)[:, None]
            if found.previous is not None:
                after_padding = padding.gather(1, (own - 1).clamp_min(0))[:, None]
                values["previous"] = found.previous.masked_fill(after_padding, math.nan)
        for name, value in values.items():
            if value is not None:
                value = value.detach().double().masked_fill(blind, math.nan)
                self._sums[name] += value.nansum(dim=(0, 2)).cpu()
                self._counts[name] += (~value.isnan()).sum(dim=(0, 2)).cpu()

    def per_head(self) -> list[dict[str, float | None]]:
        """The mean scores of each head; None where no query has one."""
        means = {name: (self._sums[name] / self._counts[name]).tolist() for name in SCORES}
        return [
            {name: None if math.isnan(x) else x for name, x in zip(SCORES, head, strict=True)}
            for head in zip(*means.values(), strict=True)
        ]


def pattern_name(
    scores: Mapping[str, float | None], *, brief: bool = False, way: str = "away"
) -> str:
    """The name of a head's pattern.

    Args:
        scores: The mean scores of the head, as returned by `HeadMeans.per_head`.
        brief: A shorter form, for a column of a table.
        way: Where its keys are: "away" on both sides of the query, "back" in a causal model.

    Examples:
        >>> pattern_name({"previous": 0.93, "sink": 0.02, "entropy": 0.3, "distance": 1.2})
        'previous token 0.93'
        >>> pattern_name({"previous": 0.1, "sink": 0.1, "entropy": 1.6, "distance": 3.3})
        'spreads over about 5 tokens, 3 positions away'
        >>> pattern_name({"entropy": 1.6, "distance": 3.3}, brief=True)
        'about 5 tokens, 3 away'
        >>> pattern_name({"entropy": 0.1, "distance": 0.2})
        'attends to itself'
    """
    best, share = _strongest(scores)
    if share >= _NAMED:
        return f"{_PATTERNS[best]} {share:.2f}"
    entropy, distance = scores.get("entropy"), scores.get("distance")
    if entropy is None:
        return "nothing" if brief else "attends to nothing"
    one = round(math.exp(entropy)) == 1
    if one and distance is not None and round(distance) == 0:
        return "itself" if brief else "attends to itself"
    name = "one token" if one else f"about {_count(math.exp(entropy), 'token')}"
    if not brief:
        name = f"{'attends to' if one else 'spreads over'} {name}"
    if distance is None:
        return name
    return f"{name}, {f'{distance:.0f}' if brief else _count(distance, 'position')} {way}"


def pattern_sentence(scores: Mapping[str, float | None], chance: Mapping[str, float | None]) -> str:
    """What a head of a causal model does, as the end of a sentence that begins with the head.

    Args:
        scores: The mean scores of the head, as returned by `HeadMeans.per_head`.
        chance: The same under uniform attention. In a short text, every pattern has much weight, so
            a head is named after a pattern only if its weight is well above chance.

    Examples:
        >>> scores = {"previous": 0.93, "sink": 0.02, "entropy": 0.3, "distance": 1.2}
        >>> pattern_sentence(scores, {"previous": 0.2})
        'attends to the previous token (0.93 of its weight)'
        >>> pattern_sentence({"sink": 0.45, "entropy": 1.6, "distance": 3.3}, {"sink": 0.41})
        'spreads over about 5 tokens, 3 positions back'
        >>> pattern_sentence({"entropy": 0.2, "distance": 4.1}, {})
        'attends to one token, 4 positions back'
    """
    above = {
        name: score
        for name in _PATTERNS
        if (score := scores.get(name) or 0.0) >= (chance.get(name) or 0.0) + _ABOVE_CHANCE
    }
    best, share = _strongest(above)
    if share >= _NAMED:
        return f"attends to {_PHRASES[best]} ({share:.2f} of its weight)"
    return pattern_name({**scores, **dict.fromkeys(_PATTERNS)}, way="back")


def _strongest(scores: Mapping[str, float | None]) -> tuple[str, float]:
    """The pattern that most of the weight follows, and how much of it."""
    best = max(_PATTERNS, key=lambda name: scores.get(name) or 0.0)
    return best, scores.get(best) or 0.0


def _count(number: float, what: str) -> str:
    return f"{number:.0f} {what}{'' if round(number) == 1 else 's'}"
