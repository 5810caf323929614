"""What a sentence of the grammar is: its words, and the pairs of words that are labelled."""

from __future__ import annotations

from dataclasses import dataclass

Words = tuple[str, ...]

# What each relation is about, in the order in which they are shown.
RELATIONS = {
    "subject": "the verb's number: the subject, not a noun between them",
    "possessive": "his, her, its, their: the subject, not another candidate",
    "pronoun": "he, she, it, they: the subject, not another candidate",
    "determiner": "the noun's number: its determiner, not its adjective",
    "adjective": "what the noun can be: its adjective, not its determiner",
    "collocation": "picked .. up, turned .. off: the verb, not the subject",
    "induction": "a list of names again: what followed this name, not the name",
}


@dataclass(frozen=True)
class Relation:
    """One labelled pair of words in a sentence; places count from 0.

    Attributes:
        name: One of `RELATIONS`.
        query: The place before the word to be foretold.
        key: The place of the word that decides it.
        distractor: The place of a word that could be taken for the key.
        right: The word to be foretold.
        wrong: What it would be if the key were another; empty if every other word is wrong.
        value: The feature that the key has: "singular", "she", ...
        decisive: Whether the distractor, taken for the key, would give another word.
        held_out: Whether the pair of words is one that training never saw together.
    """

    name: str
    query: int
    key: int
    distractor: int
    right: str
    wrong: Words
    value: str
    decisive: bool
    held_out: bool


@dataclass(frozen=True)
class Sentence:
    """A sentence of the grammar.

    Attributes:
        words: Its words, the full stop last.
        nats: -log p of each word given the words before it.
        relations: What is labelled in it.
    """

    words: Words
    nats: tuple[float, ...]
    relations: tuple[Relation, ...]

    @property
    def text(self) -> str:
        """The sentence as it is written, with a capital letter."""
        text = " ".join(self.words).replace(" ,", ",").replace(" .", ".")
        return text[0].upper() + text[1:]
