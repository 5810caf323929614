"""Labelled sentences as a model's own tokens: where to look in its maps, what it should foretell.

A `Reader` is a model that can be shown sentences of the grammar. The lab's own reads whole words; a
checkpoint of others cuts words into pieces, and each word is then a span of tokens. A causal model
is asked at the last piece of the query. A model that sees both sides is asked at the word itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from clearhead.gpt2.model import GPT2
from clearhead.lab.grammar import Relation, Sentence
from clearhead.tokenizers import END_OF_TEXT, WordTokenizer

Span = tuple[int, int]


class Reader(Protocol):
    """A model, and how it reads the grammar's sentences.

    Attributes:
        name: What it is called.
        causal: Whether a token sees only what stands before it.
    """

    name: str
    causal: bool

    @property
    def model(self) -> nn.Module:
        """What is watched."""

    def read(self, sentence: Sentence) -> tuple[list[int], list[Span]]:
        """The ids of a sentence, and the tokens [begin, end) of each of its words."""

    def piece(self, word: str) -> int:
        """The id of the first piece of a word inside a sentence."""

    def run(self, ids: Int[Tensor, "batch tokens"], real: Bool[Tensor, "batch tokens"]) -> Tensor:
        """Let the model read; its last vectors (batch, tokens, d_model)."""

    def logits(self, hidden: Float[Tensor, "places d_model"]) -> Tensor | None:
        """What it foretells there, (places, vocabulary); None if it foretells nothing."""


class WordReader:
    """The lab's own model, or another of its kind, with whole words as tokens."""

    causal = True

    def __init__(self, model: GPT2, words: WordTokenizer, name: str = "the lab's model") -> None:
        self._model = model
        self.name = name
        self._words = words
        self._start = words.encode(END_OF_TEXT)[0]
        self._ids: dict[str, int] = {}

    @property
    def model(self) -> GPT2:
        """What is watched."""
        return self._model

    def read(self, sentence: Sentence) -> tuple[list[int], list[Span]]:
        """<|endoftext|>, then one id per word."""
        ids = [self.piece(word) for word in sentence.words]
        return [self._start, *ids], [(i + 1, i + 2) for i in range(len(ids))]

    def piece(self, word: str) -> int:
        """The id of the word."""
        if word not in self._ids:
            self._ids[word] = self._words.encode(word)[0]
        return self._ids[word]

    def run(self, ids: Tensor, real: Tensor) -> Tensor:
        """The hidden vectors; filling on the right is never seen by what stands before it."""
        return self._model.hidden(ids)

    def logits(self, hidden: Tensor) -> Tensor:
        """One number per word of the vocabulary."""
        return self._model.head(hidden)


@dataclass(frozen=True)
class Examples:
    """Sentences with one labelled pair each, as a reader's tokens.

    Attributes:
        relation: Its name.
        ids: The tokens, filled up on the right.
        real: Where they are tokens and not filling.
        query: The token that is asked.
        key: True at the tokens of the key.
        distractor: True at the tokens of the distractor.
        right: The id to be foretold.
        wrong: True at the ids it must beat.
        decisive: Whether it counts for the accuracy.
        values: The feature value of each key.
    """

    relation: str
    ids: Int[Tensor, "batch tokens"]
    real: Bool[Tensor, "batch tokens"]
    query: Int[Tensor, " batch"]
    key: Bool[Tensor, "batch tokens"]
    distractor: Bool[Tensor, "batch tokens"]
    right: Int[Tensor, " batch"]
    wrong: Bool[Tensor, "batch vocabulary"]
    decisive: Bool[Tensor, " batch"]
    values: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, places: Sequence[int] | Int[Tensor, " chosen"]) -> Examples:
        """Some of them."""
        rows = torch.as_tensor(places, dtype=torch.long)
        chosen = {
            field.name: getattr(self, field.name)[rows]
            for field in fields(self)
            if field.name not in ("relation", "values")
        }
        return replace(self, values=tuple(self.values[i] for i in rows.tolist()), **chosen)

    def correct(self, logits: Float[Tensor, "batch vocabulary"]) -> Bool[Tensor, " batch"]:
        """Whether the right word beats every wrong one, at the query's token."""
        right = logits.gather(1, self.right[:, None])  # (batch, 1)
        return (right > logits.masked_fill(~self.wrong, -torch.inf)).all(1)


def encode(reader: Reader, pairs: Sequence[tuple[Sentence, Relation]], vocabulary: int) -> Examples:
    """Labelled sentences as the reader's tokens.

    Args:
        reader: The model that is to read them.
        pairs: Sentences of one relation, from `grammar.labelled`.
        vocabulary: How many ids the model can foretell.
    """
    read = [reader.read(sentence) for sentence, _ in pairs]
    batch, tokens = len(pairs), max(len(ids) for ids, _ in read)
    all_ids = torch.zeros(batch, tokens, dtype=torch.long)
    real, key, distractor = (torch.zeros(batch, tokens, dtype=torch.bool) for _ in range(3))
    wrong = torch.zeros(batch, vocabulary, dtype=torch.bool)
    query, right = [], []
    for row, ((ids, spans), (_, relation)) in enumerate(zip(read, pairs, strict=True)):
        all_ids[row, : len(ids)] = torch.tensor(ids)
        real[row, : len(ids)] = True
        query.append(
            spans[relation.query][1] - 1 if reader.causal else spans[relation.query + 1][0]
        )
        key[row, slice(*spans[relation.key])] = True
        distractor[row, slice(*spans[relation.distractor])] = True
        right.append(reader.piece(relation.right))
        others = {reader.piece(word) for word in relation.wrong} if relation.wrong else None
        if others is None:
            wrong[row] = True
            wrong[row, right[-1]] = False
        else:
            wrong[row, sorted(others)] = True
    # Two words with the same first piece cannot be told apart there.
    told_apart = ~wrong.gather(1, torch.tensor(right)[:, None])[:, 0]
    decisive = torch.tensor([relation.decisive for _, relation in pairs]) & told_apart
    return Examples(
        pairs[0][1].name,
        all_ids,
        real,
        torch.tensor(query),
        key,
        distractor,
        torch.tensor(right),
        wrong,
        decisive,
        tuple(relation.value for _, relation in pairs),
    )


@torch.no_grad()
def answers(reader: Reader, examples: Examples) -> Bool[Tensor, " batch"] | None:
    """Whether the model foretells each sentence's word; None if it foretells nothing."""
    hidden = reader.run(examples.ids, examples.real)
    logits = reader.logits(hidden[torch.arange(len(examples)), examples.query])
    return None if logits is None else examples.correct(logits)


def readers(
    model: GPT2, tokens: WordTokenizer, name: str = "the lab's model"
) -> tuple[WordReader, WordReader]:
    """The model as a reader of the grammar's sentences, and an untrained one of its size."""
    torch.manual_seed(0)
    plain = GPT2(model.config, rope=model.rope).eval()
    return WordReader(model, tokens, name), WordReader(plain, tokens, f"{name}, untrained")
