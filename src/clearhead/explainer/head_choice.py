"""Which head of a model to look at: what every head does with one text, and the clearest of them.

A head is clear if much more of its weight follows one pattern than uniform attention would give.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.maps.head_patterns import pattern_sentence
from clearhead.maps.positions import seen_before
from clearhead.watcher.head_table import Head
from clearhead.watcher.one_text import see

# A head that attends to the first token mostly does nothing, so this pattern is not instructive.
_INSTRUCTIVE = ("previous", "same_token", "induction")
_REPEATED = 0.2  # the share of tokens that must have occurred before, to judge heads by copies


@dataclass(frozen=True)
class HeadSummary:
    """What one head does with a text.

    Attributes:
        layer: The layer, counted from 0.
        head: The head, counted from 0.
        does: What it attends to, as a phrase: "attends to the previous token (0.66 of its weight)".
        clearness: How far its clearest pattern is above chance.
        last: The keys that the last token attends to most, and their weights.
    """

    layer: int
    head: int
    does: str
    clearness: float
    last: tuple[tuple[int, float], ...]


def summarise_heads(model: nn.Module, ids: Tensor, *, name: str = "") -> list[HeadSummary]:
    """What each head of a model does with a text, (1, tokens), in order."""
    seen = see(model, ids, name=name)
    repeated = float(seen_before(ids).float().mean()) >= _REPEATED
    patterns = _INSTRUCTIVE if repeated else _INSTRUCTIVE[:1]
    layers = list(seen)
    found = []
    for row in seen.heads(ids).rows:
        scores = {
            name: getattr(row, name) for name in (*_INSTRUCTIVE, "sink", "entropy", "distance")
        }
        weights: Float[Tensor, " keys"] = seen[row.layer][0, row.head, -1]
        top = weights.topk(min(2, len(weights)))
        found.append(
            HeadSummary(
                layers.index(row.layer),
                row.head,
                pattern_sentence(scores, row.chance),
                max(_above_chance(row, pattern) for pattern in patterns),
                tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True)),
            )
        )
    return found


def clearest(heads: list[HeadSummary], layer: int | None = None) -> HeadSummary:
    """The head whose pattern is clearest, in one layer or in all; the first among equals."""
    return max(
        (head for head in heads if layer in (None, head.layer)), key=lambda head: head.clearness
    )


def _above_chance(row: Head, pattern: str) -> float:
    value: float | None = getattr(row, pattern)
    return 0.0 if value is None else value - (row.chance.get(pattern) or 0.0)


@torch.no_grad()
def next_tokens(logits: Float[Tensor, " vocab_size"], count: int = 5) -> list[tuple[int, float]]:
    """The most likely next tokens and their probabilities."""
    top = torch.softmax(logits.float(), dim=-1).topk(min(count, len(logits)))
    return list(zip(top.indices.tolist(), top.values.tolist(), strict=True))
