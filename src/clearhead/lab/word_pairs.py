"""Which words may stand together: groups of words, and the pairs that are kept for the test."""

from __future__ import annotations

import hashlib
from functools import cache

from clearhead.lab.sentences import Words
from clearhead.lab.vocabulary import DETERMINERS, INTRANSITIVE, IS, NAMES, NOUNS, TRANSITIVE, WAS

Groups = tuple[tuple[float, Words], ...]  # weights, and the words that share them

ALL_NAMES = NAMES["he"] + NAMES["she"]
NOUN = {form: noun for noun in NOUNS for form in noun[:2]}
VERB = {form: verb for verb in (*TRANSITIVE, *INTRANSITIVE, IS, WAS) for form in verb}
LIVING, LIFELESS = ("person", "animal"), ("thing", "place")
ANY_NUMBER = ("singular", "plural")
_HELD_OUT = 8  # one pair in so many


@cache
def held_out(kind: str, first: str, second: str) -> bool:
    """Whether this pair of words is kept for the test."""
    digest = hashlib.sha256(f"{kind} {first} {second}".encode()).digest()
    return digest[0] % _HELD_OUT == 0


def lemma(word: str) -> str:
    """One name for both numbers of a noun or a verb."""
    if word in NOUN:
        return NOUN[word].singular
    return VERB[word].plural if word in VERB else word


@cache
def allowed(words: Words, partners: tuple[tuple[str, str], ...], split: str) -> Words:
    """The words that may stand with these partners (kind, lemma), whose pairs may be held out."""
    for kind, partner in partners:
        kept = tuple(w for w in words if held_out(kind, partner, lemma(w)) == (split == "test"))
        if split == "train":
            words = kept
        elif kept:  # the test asks for one held-out pair, the most telling one first
            return kept
    return words


def pair_held_out(kind: str, first: str, second: str) -> bool:
    """The same for two words in any form."""
    return held_out(kind, lemma(first), lemma(second))


@cache
def nouns_of(kinds: Words, numbers: Words) -> Words:
    """All nouns of these kinds in these numbers."""
    chosen = [noun for noun in NOUNS if noun.kind in kinds]
    return tuple(getattr(noun, number) for number in numbers for noun in chosen)


@cache
def forms_of(transitive: bool, number: str) -> Words:
    """All verbs of the present tense, with or without an object, in one number."""
    return tuple(getattr(verb, number) for verb in (TRANSITIVE if transitive else INTRANSITIVE))


@cache
def determiners(weight: float) -> Groups:
    """Half the time "the", else one that shows the number."""
    shown = DETERMINERS["singular"] + DETERMINERS["plural"]
    return (weight / 2, DETERMINERS["either"]), (weight / 2, shown)
