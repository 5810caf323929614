"""Minimal pairs: two continuations that differ in one word, of which one is grammatical.

    The author near the doctors  was / *were

A model is right if it gives the grammatical one the higher probability; guessing gives 0.5. The
word that decides, here "author", is the cue. In two of the kinds, another noun of the opposite
number is closer. The pairs are made from templates: 80 of each of six kinds.

Source of the method: Linzen et al., "Assessing the Ability of LSTMs to Learn Syntax-Sensitive
Dependencies" (2016). The templates and words are our own.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead.gpt2.model import GPT2
from clearhead.lab.head_scores import Estimate, estimate, share
from clearhead.tokenizers import Tokenizer
from clearhead.watcher import ablate, watch

PER_KIND = 80

_PEOPLE = {
    "author": "authors",
    "doctor": "doctors",
    "teacher": "teachers",
    "child": "children",
    "woman": "women",
    "boy": "boys",
    "girl": "girls",
    "king": "kings",
    "student": "students",
    "man": "men",
    "manager": "managers",
    "writer": "writers",
    "sister": "sisters",
    "brother": "brothers",
    "officer": "officers",
    "singer": "singers",
}
_THINGS = {
    "book": "books",
    "car": "cars",
    "house": "houses",
    "letter": "letters",
    "picture": "pictures",
    "door": "doors",
    "table": "tables",
    "song": "songs",
    "map": "maps",
    "game": "games",
}
_MALE = ("man", "boy", "king", "brother", "father", "husband", "son", "uncle")
_FEMALE = ("woman", "girl", "queen", "sister", "mother", "wife", "daughter", "aunt")
_MEN = {"man": "men"} | {noun: f"{noun}s" for noun in _MALE[1:]}
_WOMEN = {"woman": "women"} | {noun: f"{noun}s" for noun in _FEMALE[1:] if noun != "wife"}
_VERBS = ((" is", " are"), (" was", " were"), (" has", " have"))
_NEAR = ("near", "behind", "with", "next to")
_DID = ("saw", "knew", "helped", "met")
_TO_ONESELF = ("hurt", "found", "asked", "called", "taught")
_GOT = ("bought", "found", "saw", "took", "liked")


@dataclass(frozen=True)
class Pair:
    """One minimal pair.

    Attributes:
        kind: What it is about.
        prefix: The text that both continuations follow.
        cue: The word of the prefix that decides.
        right: The grammatical continuation.
        wrong: The other one.
    """

    kind: str
    prefix: str
    cue: str
    right: str
    wrong: str


@dataclass(frozen=True)
class PairScore:
    """How a model does on one kind of pairs, and the head that attends to the cue.

    The head is chosen in one half of the pairs; `attention` and `lost` come from the other half.

    Attributes:
        kind: What the pairs are about.
        accuracy: The share of pairs that the model gets right.
        layer: The layer of the head whose last token attends most to the cue.
        head: That head.
        attention: Its weight on the cue.
        chance: The weight under uniform attention.
        lost: The accuracy lost without it.
    """

    kind: str
    accuracy: Estimate
    layer: str
    head: int
    attention: Estimate
    chance: float
    lost: Estimate


def make_pairs(seed: int = 0) -> list[Pair]:
    """All pairs, 80 of each kind, the same ones for the same seed.

    Examples:
        >>> pairs = make_pairs()
        >>> len(pairs), len(set(pairs))
        (480, 480)
    """
    shuffle = random.Random(seed).shuffle
    found: list[Pair] = []
    kinds = (
        _simple,
        _across_phrase,
        _across_clause,
        _reflexive_gender,
        _reflexive_number,
        _determiner,
    )
    for make in kinds:
        every = list(make())
        shuffle(every)
        found += every[:PER_KIND]
    return found


def _numbers(words: dict[str, str]) -> Iterator[tuple[str, int]]:
    """Each noun in the singular (0) and in the plural (1)."""
    for one, many in words.items():
        yield one, 0
        yield many, 1


def _simple() -> Iterator[Pair]:
    for (noun, number), verbs in itertools.product(_numbers(_PEOPLE), _VERBS):
        right, wrong = verbs[number], verbs[1 - number]
        yield Pair("agreement", f"The {noun}", noun, right, wrong)


def _distracted() -> Iterator[tuple[str, str, str, str]]:
    """A noun, another noun of the opposite number, and the two verbs, the right one first."""
    for (noun, number), other, verbs in itertools.product(_numbers(_PEOPLE), _PEOPLE, _VERBS):
        if noun not in (other, _PEOPLE[other]):
            closer = _PEOPLE[other] if number == 0 else other
            yield noun, closer, verbs[number], verbs[1 - number]


def _across_phrase() -> Iterator[Pair]:
    for (noun, other, right, wrong), near in itertools.product(_distracted(), _NEAR):
        prefix = f"The {noun} {near} the {other}"
        yield Pair("agreement across a phrase", prefix, noun, right, wrong)


def _across_clause() -> Iterator[Pair]:
    for (noun, other, right, wrong), did in itertools.product(_distracted(), _DID):
        prefix = f"The {noun} who {did} the {other}"
        yield Pair("agreement across a clause", prefix, noun, right, wrong)


def _reflexive_gender() -> Iterator[Pair]:
    for noun, verb in itertools.product((*_MALE, *_FEMALE), _TO_ONESELF):
        right, wrong = " himself", " herself"
        if noun in _FEMALE:
            right, wrong = wrong, right
        yield Pair("reflexive, gender", f"The {noun} {verb}", noun, right, wrong)


def _reflexive_number() -> Iterator[Pair]:
    for nouns, one in ((_MEN, " himself"), (_WOMEN, " herself")):
        for (noun, number), verb in itertools.product(_numbers(nouns), _TO_ONESELF):
            right, wrong = (one, " themselves") if number == 0 else (" themselves", one)
            yield Pair("reflexive, number", f"The {noun} {verb}", noun, right, wrong)


def _determiner() -> Iterator[Pair]:
    for (one, many), verb, number in itertools.product(_THINGS.items(), _GOT, (0, 1)):
        word = ("this", "these")[number]
        right, wrong = (f" {one}", f" {many}") if number == 0 else (f" {many}", f" {one}")
        yield Pair("this and these", f"She {verb} {word}", word, right, wrong)


class _Batch:
    """Pairs as token ids, padded on the right, where a causal model does not see the padding."""

    def __init__(self, pairs: Sequence[Pair], tokenizer: Tokenizer) -> None:
        prefixes = [tokenizer.encode(pair.prefix) for pair in pairs]
        self.last = torch.tensor([len(ids) - 1 for ids in prefixes])
        self.cue = torch.tensor(
            [
                len(tokenizer.encode(pair.prefix[: pair.prefix.index(pair.cue) + len(pair.cue)]))
                - 1
                for pair in pairs
            ]
        )
        self.prefixes = _padded(prefixes)
        ends = [[tokenizer.encode(word) for word in (pair.right, pair.wrong)] for pair in pairs]
        self._single = all(len(ids) == 1 for both in ends for ids in both)
        self._ends = ends
        self._ids = prefixes

    @torch.no_grad()
    def right(self, model: GPT2) -> Bool[Tensor, " pairs"]:
        """Whether the model prefers the right continuation, per pair."""
        if self._single:
            logits = model(self.prefixes)[torch.arange(len(self.last)), self.last]
            ends = torch.tensor(self._ends).squeeze(-1)
            scores = logits.gather(1, ends)
        else:
            scores = torch.stack([self._score(model, which) for which in (0, 1)], dim=1)
        right: Tensor = scores[:, 0] > scores[:, 1]
        return right

    def _score(self, model: GPT2, which: int) -> Float[Tensor, " pairs"]:
        """The log-probability of one continuation, summed over its tokens."""
        whole = [[*ids, *both[which]] for ids, both in zip(self._ids, self._ends, strict=True)]
        ids = _padded(whole)
        logs = model(ids).log_softmax(-1)[:, :-1].gather(2, ids[:, 1:, None]).squeeze(-1)
        position = torch.arange(logs.shape[1])
        ends = torch.tensor([len(row) - 1 for row in whole])
        inside = (position >= self.last[:, None]) & (position < ends[:, None])
        total: Tensor = (logs * inside).sum(1)
        return total


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


@torch.no_grad()
def measure_pairs(
    model: GPT2, tokenizer: Tokenizer, pairs: Sequence[Pair] | None = None
) -> list[PairScore]:
    """Accuracy, the head that attends to the cue, and the accuracy lost without it, per kind.

    Args:
        model: A causal language model.
        tokenizer: Its tokenizer.
        pairs: The pairs; those of `make_pairs` by default.
    """
    found = []
    pairs = make_pairs() if pairs is None else pairs
    for kind in dict.fromkeys(pair.kind for pair in pairs):
        batch = _Batch([pair for pair in pairs if pair.kind == kind], tokenizer)
        with watch(model) as seen:
            model(batch.prefixes)
        row = torch.arange(len(batch.last))
        weights = {
            layer: seen[layer].dense()[row, :, batch.last, batch.cue]  # -> (pairs, heads)
            for layer in seen
        }
        choosing, measuring = row % 2 == 0, row % 2 == 1
        means = {layer: weight[choosing].mean(0) for layer, weight in weights.items()}
        layer = max(means, key=lambda name: float(means[name].max()))
        head = int(means[layer].argmax())
        right = batch.right(model)
        with ablate(model, {layer: [head]}):
            without = batch.right(model)
        lost = (right.double() - without.double())[measuring]
        found.append(
            PairScore(
                kind,
                share(right),
                layer,
                head,
                estimate(weights[layer][measuring, head]),
                float((1 / (batch.last + 1)).mean()),
                estimate(lost),
            )
        )
    return found
