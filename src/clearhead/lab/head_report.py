"""What a head does, measured: attention on known keys, and what is lost without the head.

For each relation of the grammar, sentences with held-out pairs are divided into two halves. Heads
are chosen by their attention on the labelled key in the one half; every number is from the other.
Intervals are 95 %, over sentences: normal for means and for paired differences, Wilson's for
accuracies. A head has no name here but its place, which changes with the seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.lab import grammar
from clearhead.lab.ablation import Place, head_means, projections, without
from clearhead.lab.relations import Examples, Reader, answers, encode
from clearhead.watcher import watch

_Z = 1.96
_FEW = 3  # heads taken out together
_MOST_ABLATED = 48  # heads taken out one by one; of a larger model only the best few
_CHUNK = 100  # sentences at a time


@dataclass(frozen=True)
class Estimate:
    """A mean over sentences, and its interval of 95 %."""

    mean: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class HeadScore:
    """One head and one relation, in the half that did not choose.

    Attributes:
        layer: The name of the module.
        head: Its number in the layer.
        key: Attention on the labelled key.
        distractor: Attention on the word that could be taken for it.
        shuffled: Attention where the key stands in another sentence.
        by_value: Attention on the key, by the key's feature value.
        without: What the accuracy loses without this head: by "mean" and by "zero".
    """

    layer: str
    head: int
    key: Estimate
    distractor: Estimate
    shuffled: Estimate
    by_value: dict[str, float]
    without: dict[str, Estimate] | None


@dataclass(frozen=True)
class RelationScore:
    """One relation and all heads.

    Attributes:
        relation: Its name.
        about: The same in words.
        accuracy: How often the model foretells the right word; None if it foretells nothing.
        accuracy_by_value: The same, by the key's feature value.
        uniform: Attention on the key if all visible tokens had the same.
        untrained: Attention on the key of an untrained model's best head, chosen the same way;
            None if there is no such model.
        best: The place in `heads` of the head chosen in the other half.
        best_by_value: The same for each feature value.
        few: The places in `heads` of the few best.
        without_few: What the accuracy loses without these: by "mean" and by "zero".
        heads: All heads in order.
    """

    relation: str
    about: str
    accuracy: Estimate | None
    accuracy_by_value: dict[str, float]
    uniform: float
    untrained: float | None
    best: int
    best_by_value: dict[str, int]
    few: list[int]
    without_few: dict[str, Estimate] | None
    heads: list[HeadScore]


@dataclass(frozen=True)
class HeadReport:
    """What the heads of a model do with the relations of the grammar.

    Attributes:
        model: What it is called.
        causal: Whether it sees only what stands before; else it was asked at the word itself.
        layers: The names of its attention layers.
        notes: What could not be measured, and why.
        relations: A score each.
    """

    model: str
    causal: bool
    layers: list[str]
    notes: list[str]
    relations: list[RelationScore]

    def to_json(self) -> dict[str, Any]:
        """Everything, for programs."""
        return {"schema": 1, **asdict(self)}

    def __getitem__(self, relation: str) -> RelationScore:
        for score in self.relations:
            if score.relation == relation:
                return score
        raise KeyError(relation)

    def __rich__(self) -> Any:
        from clearhead.lab.head_figures import draw_report

        return draw_report(self)

    def __str__(self) -> str:
        from clearhead import drawing

        return drawing.plain(self.__rich__(), width=100)


def estimate(values: Float[Tensor, " sentences"]) -> Estimate:
    """The mean with its normal interval; of one value nothing is known: ± 1."""
    values = values.double()
    mean, count = values.mean().item(), len(values)
    half = _Z * values.std().item() / math.sqrt(count) if count > 1 else 1.0
    return Estimate(mean, mean - half, mean + half, count)


def share(right: Tensor) -> Estimate:
    """The share of True with Wilson's interval, which is not a point at 0 and at 1.

    >>> round(share(torch.ones(96, dtype=torch.bool)).low, 3)
    0.962
    """
    count, p = len(right), right.double().mean().item()
    middle = (p + _Z**2 / (2 * count)) / (1 + _Z**2 / count)
    half = _Z * math.sqrt(p * (1 - p) / count + _Z**2 / (4 * count**2)) / (1 + _Z**2 / count)
    return Estimate(p, max(0.0, middle - half), min(1.0, middle + half), count)


def measure(
    reader: Reader,
    vocabulary: int,
    *,
    sentences: int = 400,
    relations: Sequence[str] = tuple(grammar.RELATIONS),
    untrained: Reader | None = None,
    seed: int = 0,
    on_progress: Callable[[str, float], None] | None = None,
) -> HeadReport:
    """What every head does with every relation.

    Args:
        reader: The model.
        vocabulary: How many ids it can foretell.
        sentences: How many for each relation, both halves together.
        relations: Which relations.
        untrained: The same model before training, for comparison.
        seed: For the sentences.
        on_progress: Called with what is being done and the share that is done.
    """
    notes: list[str] = []
    scores: list[RelationScore] = []
    layers: list[str] = []
    for place, name in enumerate(relations):

        def report(done: float, name: str = name, place: int = place) -> None:
            if on_progress is not None:
                on_progress(name, (place + done) / len(relations))

        report(0.0)
        pairs = grammar.labelled(name, sentences, seed=seed)
        examples = encode(reader, pairs, vocabulary)
        plain = None if untrained is None else encode(untrained, pairs, vocabulary)
        one = _Measurement(reader, examples, plain)
        scores.append(one.score(untrained, notes, report))
        layers = one.layers
    return HeadReport(reader.name, reader.causal, layers, notes, scores)


class _Measurement:
    """One relation: the maps are read once, then heads are taken out."""

    def __init__(self, reader: Reader, examples: Examples, plain: Examples | None) -> None:
        self._reader, self._plain = reader, plain
        places = torch.arange(len(examples))
        self._choosing, self._scoring = places % 2 == 0, places % 2 == 1
        self._all = examples
        self._half = examples.select(places[self._scoring])
        self._rows, self.layers, self._sizes = _query_rows(reader, examples)
        self._heads = [(layer, n) for layer in self.layers for n in range(self._sizes[layer])]

    def score(
        self, untrained: Reader | None, notes: list[str], report: Callable[[float], None]
    ) -> RelationScore:
        examples, scoring = self._all, self._scoring
        key = _weight(self._rows, examples.key)  # (sentences, heads)
        distractor = _weight(self._rows, examples.distractor)
        shuffled = _weight(self._rows, _shuffled(examples))
        ranked = key[self._choosing].mean(0).argsort(descending=True).tolist()
        right = _answers(self._reader, self._half)
        if not self._half.decisive.any():
            right = None
        few = ranked[:_FEW]
        removed: dict[int, dict[str, Estimate]] = {}
        without_few = None
        if right is not None:
            removed, without_few = self._ablate(ranked, few, right, notes, report)
        belongs = {
            value: torch.tensor([each == value for each in examples.values])
            for value in sorted(set(examples.values))
        }
        halves = (scoring, self._choosing)
        values = [v for v, rows in belongs.items() if all((rows & half).any() for half in halves)]
        heads = [
            HeadScore(
                layer,
                number,
                estimate(key[scoring, i]),
                estimate(distractor[scoring, i]),
                estimate(shuffled[scoring, i]),
                {v: key[scoring & belongs[v], i].mean().item() for v in values},
                removed.get(i),
            )
            for i, (layer, number) in enumerate(self._heads)
        ]
        best_by_value = {v: int(key[self._choosing & belongs[v]].mean(0).argmax()) for v in values}
        return RelationScore(
            relation=examples.relation,
            about=grammar.RELATIONS[examples.relation],
            accuracy=None if right is None else share(right[self._half.decisive]),
            accuracy_by_value={} if right is None else self._by_value(right),
            uniform=_uniform(examples, self._reader.causal)[scoring].mean().item(),
            untrained=self._untrained(untrained),
            best=ranked[0],
            best_by_value=best_by_value,
            few=few,
            without_few=without_few,
            heads=heads,
        )

    def _by_value(self, right: Tensor) -> dict[str, float]:
        found = {}
        for value in sorted(set(self._half.values)):
            chosen = torch.tensor([each == value for each in self._half.values])
            chosen &= self._half.decisive
            if chosen.any():
                found[value] = right[chosen].double().mean().item()
        return found

    def _untrained(self, reader: Reader | None) -> float | None:
        """The best head of an untrained model, chosen and scored in the same two halves."""
        if reader is None or self._plain is None:
            return None
        rows, _, _ = _query_rows(reader, self._plain)
        key = _weight(rows, self._plain.key)
        return key[self._scoring, key[self._choosing].mean(0).argmax()].mean().item()

    def _ablate(
        self,
        ranked: list[int],
        few: list[int],
        right: Tensor,
        notes: list[str],
        report: Callable[[float], None],
    ) -> tuple[dict[int, dict[str, Estimate]], dict[str, Estimate] | None]:
        found = projections(self._reader.model, self.layers)
        if found is None:
            note = "no ablation: the output projection of its attention was not found"
            if note not in notes:
                notes.append(note)
            return {}, None
        chosen = self._all.select(torch.arange(len(self._all))[self._choosing])
        with torch.no_grad():
            means = head_means(
                found, lambda: self._reader.run(chosen.ids, chosen.real), chosen.real
            )
        singles = list(range(len(self._heads)))
        if len(singles) > _MOST_ABLATED:
            singles = few
            note = f"one by one, only the {_FEW} best heads of each relation were taken out"
            if note not in notes:
                notes.append(note)

        def lost(places: Sequence[int], fill: str) -> Estimate:
            heads: list[Place] = [self._heads[i] for i in places]
            with without(found, heads, self._sizes, means if fill == "mean" else None):
                left = _answers(self._reader, self._half)
            assert left is not None
            return estimate((right.double() - left.double())[self._half.decisive])

        removed: dict[int, dict[str, Estimate]] = {}
        for done, i in enumerate(singles):
            removed[i] = {fill: lost([i], fill) for fill in ("mean", "zero")}
            report((done + 1) / (len(singles) + 1))
        return removed, {fill: lost(few, fill) for fill in ("mean", "zero")}


def _answers(reader: Reader, examples: Examples) -> Tensor | None:
    """As `answers`, some sentences at a time."""
    parts = []
    for begin in range(0, len(examples), _CHUNK):
        part = examples.select(range(begin, min(begin + _CHUNK, len(examples))))
        found = answers(reader, part)
        if found is None:
            return None
        parts.append(found)
    return torch.cat(parts)


@torch.no_grad()
def _query_rows(reader: Reader, examples: Examples) -> tuple[Tensor, list[str], dict[str, int]]:
    """The query's row of every head, (sentences, heads, keys), and the layers with their sizes."""
    rows: list[Tensor] = []
    for begin in range(0, len(examples), _CHUNK):
        part = examples.select(range(begin, min(begin + _CHUNK, len(examples))))
        with watch(reader.model) as seen:
            reader.run(part.ids, part.real)
        keys = torch.arange(part.ids.shape[1]).expand_as(part.ids)
        pairs = torch.stack([part.query[:, None].expand_as(part.ids), keys], dim=-1)
        # One query per sentence, and all its keys: (batch, heads, keys) of each layer.
        rows.append(torch.cat([m.relation(pairs) for m in seen.values()], dim=1))
        sizes = {name: m.shape[1] for name, m in seen.items()}
    return torch.cat(rows).float(), list(sizes), sizes


def _weight(rows: Tensor, at: Tensor) -> Float[Tensor, "sentences heads"]:
    return (rows * at[:, None]).sum(-1)


def _shuffled(examples: Examples) -> Tensor:
    """The key's place of another sentence, moved back where it would lie after the query."""
    first = examples.key.int().argmax(1)
    width = examples.key.sum(1)
    other = first.roll(1)
    last = torch.minimum(examples.query, other + width - 1)
    begin = (last - width + 1).clamp(min=0)
    place = torch.arange(examples.key.shape[1])
    return (place >= begin[:, None]) & (place <= last[:, None])


def _uniform(examples: Examples, causal: bool) -> Tensor:
    visible = examples.query + 1 if causal else examples.real.sum(1)
    return examples.key.sum(1) / visible
