"""What each head does: attention on labelled keys, and the accuracy lost without the head.

For each relation of the grammar, sentences with held-out pairs are split into two halves. Heads are
chosen by their attention on the labelled key in one half; every number comes from the other half.
Intervals are 95 %, over sentences: normal for means and paired differences, Wilson for accuracies.
Heads are identified by layer and index only: which head does what changes with the training seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.lab import grammar
from clearhead.lab.ablation import Head, head_means, projections, without
from clearhead.lab.grammar_readers import Reader
from clearhead.lab.relations import Examples, answers, encode
from clearhead.watcher import watch

_Z = 1.96
_FEW = 3  # heads removed together
_MOST_ABLATED = 48  # heads removed one by one; in a larger model only the best few
_CHUNK = 100  # sentences at a time


@dataclass(frozen=True)
class Estimate:
    """A mean over sentences with its 95 % interval."""

    mean: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class HeadScore:
    """One head and one relation, in the half of the sentences that was not used for choosing.

    Attributes:
        layer: The name of the module.
        head: The index of the head in its layer.
        key: Attention on the labelled key.
        distractor: Attention on the word that could be mistaken for the key.
        shuffled: Attention on the key position of another sentence.
        by_value: Attention on the key, by the key's feature value.
        without: Accuracy lost without this head, replaced by its "mean" or by "zero".
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
        relation: The name of the relation.
        about: What it is about, in a few words.
        accuracy: How often the model predicts the right word; None if it has no output head.
        accuracy_by_value: The same, by the key's feature value.
        uniform: Attention on the key if all visible tokens got the same.
        untrained: Attention on the key of an untrained model's best head, chosen the same way;
            None without such a model.
        best: The index in `heads` of the head chosen in the other half.
        best_by_value: The same for each feature value.
        few: The indices in `heads` of the best few.
        without_few: Accuracy lost without these, replaced by their "mean" or by "zero".
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
        model: The name of the model.
        causal: Whether the model is causal; a bidirectional one is tested at the word itself.
        layers: The names of its attention layers.
        notes: What could not be measured, and why.
        relations: One score per relation.
    """

    model: str
    causal: bool
    layers: list[str]
    notes: list[str]
    relations: list[RelationScore]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {"schema": 1, **asdict(self)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> HeadReport:
        """The report that `to_json` described."""

        def estimates(given: dict[str, Any] | None) -> dict[str, Estimate] | None:
            return None if given is None else {key: Estimate(**each) for key, each in given.items()}

        def head(given: dict[str, Any]) -> HeadScore:
            parts = {name: Estimate(**given[name]) for name in ("key", "distractor", "shuffled")}
            return HeadScore(**{**given, **parts, "without": estimates(given["without"])})

        def relation(given: dict[str, Any]) -> RelationScore:
            accuracy = given["accuracy"]
            parts = {
                "accuracy": None if accuracy is None else Estimate(**accuracy),
                "without_few": estimates(given["without_few"]),
                "heads": [head(each) for each in given["heads"]],
            }
            return RelationScore(**{**given, **parts})

        relations = [relation(each) for each in found["relations"]]
        return cls(found["model"], found["causal"], found["layers"], found["notes"], relations)

    def __getitem__(self, relation: str) -> RelationScore:
        for score in self.relations:
            if score.relation == relation:
                return score
        raise KeyError(relation)


def estimate(values: Float[Tensor, " sentences"]) -> Estimate:
    """The mean with its normal interval; a single value gets ± 1."""
    values = values.double()
    mean, count = values.mean().item(), len(values)
    half = _Z * values.std().item() / math.sqrt(count) if count > 1 else 1.0
    return Estimate(mean, mean - half, mean + half, count)


def share(right: Tensor) -> Estimate:
    """The share of True with Wilson's interval, which has a width at 0 and 1 too.

    Examples:
        >>> round(share(torch.ones(96, dtype=torch.bool)).low, 3)
        0.962
    """
    count, p = len(right), right.double().mean().item()
    middle = (p + _Z**2 / (2 * count)) / (1 + _Z**2 / count)
    half = _Z * math.sqrt(p * (1 - p) / count + _Z**2 / (4 * count**2)) / (1 + _Z**2 / count)
    return Estimate(p, max(0.0, middle - half), min(1.0, middle + half), count)


def measure(
    reader: Reader,
    *,
    sentences: int = 400,
    relations: Sequence[str] = tuple(grammar.RELATIONS),
    untrained: Reader | None = None,
    seed: int = 0,
    on_progress: Callable[[str, float], None] | None = None,
) -> HeadReport:
    """Measure every head on every relation.

    Args:
        reader: The model.
        sentences: The number of sentences per relation, both halves together.
        relations: The names of the relations.
        untrained: The same model before training, for comparison.
        seed: Determines the sentences.
        on_progress: Called with the relation being measured and the share of all work done.
    """
    notes: list[str] = []
    scores: list[RelationScore] = []
    layers: list[str] = []
    for index, name in enumerate(relations):

        def report(done: float, name: str = name, index: int = index) -> None:
            if on_progress is not None:
                on_progress(name, (index + done) / len(relations))

        report(0.0)
        pairs = grammar.labelled(name, sentences, seed=seed)
        one = _Measurement(reader, encode(reader, pairs))
        plain = None if untrained is None else one.best_untrained(untrained, pairs)
        scores.append(one.score(plain, notes, report))
        layers = one.layers
    return HeadReport(reader.name, reader.causal, layers, list(dict.fromkeys(notes)), scores)


class _Measurement:
    """One relation: attention is recorded once, then heads are removed."""

    def __init__(self, reader: Reader, examples: Examples) -> None:
        self._reader, self._all = reader, examples
        indices = torch.arange(len(examples))
        self._choosing, self._scoring = indices % 2 == 0, indices % 2 == 1
        self._half = examples.select(indices[self._scoring])
        self._rows, self.layers, self._sizes = _query_rows(reader, examples)
        self._heads = [(layer, n) for layer in self.layers for n in range(self._sizes[layer])]

    def best_untrained(
        self, untrained: Reader, pairs: Sequence[tuple[grammar.Sentence, grammar.Relation]]
    ) -> float:
        """Attention on the key of an untrained model's best head, in the same two halves."""
        examples = encode(untrained, pairs)
        rows, _, _ = _query_rows(untrained, examples)
        key = _weight(rows, examples.key)
        return key[self._scoring, key[self._choosing].mean(0).argmax()].mean().item()

    def score(
        self, untrained: float | None, notes: list[str], report: Callable[[float], None]
    ) -> RelationScore:
        examples, scoring, choosing = self._all, self._scoring, self._choosing
        key = _weight(self._rows, examples.key)  # (sentences, heads)
        distractor = _weight(self._rows, examples.distractor)
        shuffled = _weight(self._rows, _shuffled(examples))
        ranked = key[choosing].mean(0).argsort(descending=True).tolist()
        few = ranked[:_FEW]
        right = _answers(self._reader, self._half) if self._half.decisive.any() else None
        removed: dict[int, dict[str, Estimate]] = {}
        without_few = None
        if right is not None:
            removed, without_few = self._ablate(few, right, notes, report)
        has_value = _by_value(examples)
        values = [
            v for v, at in has_value.items() if (at & scoring).any() and (at & choosing).any()
        ]
        heads = [
            HeadScore(
                layer,
                number,
                estimate(key[scoring, i]),
                estimate(distractor[scoring, i]),
                estimate(shuffled[scoring, i]),
                {v: key[scoring & has_value[v], i].mean().item() for v in values},
                removed.get(i),
            )
            for i, (layer, number) in enumerate(self._heads)
        ]
        return RelationScore(
            relation=examples.relation,
            about=grammar.RELATIONS[examples.relation],
            accuracy=None if right is None else share(right[self._half.decisive]),
            accuracy_by_value={} if right is None else self._accuracy_by_value(right),
            uniform=_uniform(examples, self._reader.causal)[scoring].mean().item(),
            untrained=untrained,
            best=ranked[0],
            best_by_value={v: int(key[choosing & has_value[v]].mean(0).argmax()) for v in values},
            few=few,
            without_few=without_few,
            heads=heads,
        )

    def _accuracy_by_value(self, right: Tensor) -> dict[str, float]:
        chosen = {value: at & self._half.decisive for value, at in _by_value(self._half).items()}
        return {v: right[at].double().mean().item() for v, at in chosen.items() if at.any()}

    def _ablate(
        self, few: list[int], right: Tensor, notes: list[str], report: Callable[[float], None]
    ) -> tuple[dict[int, dict[str, Estimate]], dict[str, Estimate] | None]:
        """The accuracy lost without each head, and without the best few together."""
        found = projections(self._reader.model, self.layers)
        if found is None:
            notes.append("no ablation: the output projection of the attention was not found")
            return {}, None
        chosen = self._all.select(torch.arange(len(self._all))[self._choosing])
        with torch.no_grad():
            means = head_means(
                found, lambda: self._reader.run(chosen.ids, chosen.real), chosen.real
            )
        singles = list(range(len(self._heads)))
        if len(singles) > _MOST_ABLATED:
            singles = few
            notes.append(f"only the {_FEW} best heads of each relation were removed one by one")

        def lost(indices: Sequence[int]) -> dict[str, Estimate]:
            heads: list[Head] = [self._heads[i] for i in indices]
            losses = {}
            for fill in ("mean", "zero"):
                with without(found, heads, self._sizes, means if fill == "mean" else None):
                    left = _answers(self._reader, self._half)
                assert left is not None
                losses[fill] = estimate((right.double() - left.double())[self._half.decisive])
            return losses

        removed: dict[int, dict[str, Estimate]] = {}
        for done, i in enumerate(singles):
            removed[i] = lost([i])
            report((done + 1) / (len(singles) + 1))
        return removed, lost(few)


def _by_value(examples: Examples) -> dict[str, Tensor]:
    """Which sentences have a key with each feature value."""
    return {
        value: torch.tensor([each == value for each in examples.values])
        for value in sorted(set(examples.values))
    }


def _chunks(examples: Examples) -> list[Examples]:
    return [examples.select(rows) for rows in torch.split(torch.arange(len(examples)), _CHUNK)]


def _answers(reader: Reader, examples: Examples) -> Tensor | None:
    """As `answers`, in chunks of sentences."""
    parts = []
    for chunk in _chunks(examples):
        found = answers(reader, chunk)
        if found is None:
            return None
        parts.append(found)
    return torch.cat(parts)


@torch.no_grad()
def _query_rows(reader: Reader, examples: Examples) -> tuple[Tensor, list[str], dict[str, int]]:
    """The query's row of every head, (sentences, heads, keys); layers, and their head counts."""
    rows: list[Tensor] = []
    for chunk in _chunks(examples):
        with watch(reader.model) as seen:
            reader.run(chunk.ids, chunk.real)
        batch = torch.arange(len(chunk))
        # One query per sentence and all its keys: (batch, heads, keys) per layer.
        rows.append(torch.cat([m.dense()[batch, :, chunk.query] for m in seen.values()], dim=1))
        sizes = {name: m.shape[1] for name, m in seen.items()}
    return torch.cat(rows).float(), list(sizes), sizes


def _weight(rows: Tensor, at: Tensor) -> Float[Tensor, "sentences heads"]:
    return (rows * at[:, None]).sum(-1)


def _shuffled(examples: Examples) -> Tensor:
    """The key position of another sentence, moved back if it would lie after the query."""
    first = examples.key.int().argmax(1)
    width = examples.key.sum(1)
    other = first.roll(1)
    last = torch.minimum(examples.query, other + width - 1)
    begin = (last - width + 1).clamp(min=0)
    position = torch.arange(examples.key.shape[1])
    return (position >= begin[:, None]) & (position <= last[:, None])


def _uniform(examples: Examples, causal: bool) -> Tensor:
    visible = examples.query + 1 if causal else examples.real.sum(1)
    return examples.key.sum(1) / visible
