"""The grammar's vocabulary: about 260 English words, grouped by their role.

Plain data. No noun or adjective starts with a vowel, so that "a" is always right. Names are
capitalized and everything else is lower case, so that pretrained models can read the sentences.
"""

from __future__ import annotations

from typing import NamedTuple


class Noun(NamedTuple):
    """A noun in both numbers.

    Attributes:
        singular: This form also identifies the noun.
        plural: The other form.
        kind: "person", "animal", "thing" or "place".
        pronoun: "he", "she" or "it".
    """

    singular: str
    plural: str
    kind: str
    pronoun: str


class Verb(NamedTuple):
    """A present-tense verb in both numbers; for "be", also the past tense."""

    singular: str
    plural: str


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _nouns(text: str, kind: str, pronoun: str) -> list[Noun]:
    pairs = (word.split("/") for word in text.split())
    return [Noun(pair[0], pair[-1] if len(pair) > 1 else pair[0] + "s", kind, pronoun)
            for pair in pairs]  # fmt: skip


def _verbs(text: str) -> tuple[Verb, ...]:
    pairs = (word.split("/") for word in text.split())
    return tuple(Verb(pair[-1] if len(pair) > 1 else pair[0] + "s", pair[0]) for pair in pairs)


NAMES = {
    "he": _words("Adam Ben Carl David Eric Felix Hugo Jack Leo Mark Paul Tom"),
    "she": _words("Anna Clara Emma Eva Helen Jane Kate Laura Mary Nina Rosa Sara"),
}
NOUNS = (
    *_nouns("boy man/men king father brother son", "person", "he"),
    *_nouns("girl woman/women queen mother sister daughter", "person", "she"),
    *_nouns("cat dog bird horse fox/foxes rabbit duck wolf/wolves", "animal", "it"),
    *_nouns("hat coat book ball cup box/boxes key letter mat chair table lamp", "thing", "it"),
    *_nouns("garden house park kitchen river tree street school", "place", "it"),
)
TRANSITIVE = _verbs("see like know help follow watch love chase visit hear")
INTRANSITIVE = _verbs("sleep sing run laugh wait dance smile swim work play")
IS, WAS = Verb("is", "are"), Verb("was", "were")
PAST_TRANSITIVE = _words("saw met found lost liked helped watched followed")
PAST_INTRANSITIVE = _words("sat slept stood waited played sang ran worked")
# The verb, then its object, then always this particle.
PARTICLES = {
    "picked": "up",
    "turned": "off",
    "threw": "away",
    "brought": "back",
    "wrote": "down",
    "handed": "over",
}
DETERMINERS = {
    "singular": ("a", "this", "every", "each"),
    "plural": ("these", "some", "many", "few"),
    "either": ("the",),
}
ADJECTIVES = {
    "living": _words("hungry brave clever sleepy proud gentle"),
    "lifeless": _words("wooden broken rusty heavy dusty shiny"),
    "any": _words("small big white little strange black"),
}
PREPOSITIONS = _words("on near behind with in by under beside")
OPENERS = _words("yesterday today sometimes")
CLOSERS = _words("again quietly outside")
CONNECTIVES = _words("because when while")
PRONOUNS = ("he", "she", "it", "they")
POSSESSIVES = {"he": "his", "she": "her", "it": "its", "they": "their"}
PROVERBS = tuple(
    tuple(proverb.split())
    for proverb in (
        "your journey starts with one step",
        "practice makes perfect",
        "better late than never",
        "two heads are better than one",
        "no news is good news",
        "time flies like an arrow",
        "still waters run deep",
    )
)


def vocabulary() -> list[str]:
    """Every word once, sorted, with the comma and the full stop.

    Examples:
        >>> {"the", "cat", "sat", "on", "mat", "journey"} <= set(vocabulary())
        True
    """
    words = {",", ".", "that", "and"}
    for verb in (*TRANSITIVE, *INTRANSITIVE, IS, WAS):
        words |= set(verb)
    for noun in NOUNS:
        words |= {noun.singular, noun.plural}
    for group in (*NAMES.values(), *DETERMINERS.values(), *ADJECTIVES.values(), *PROVERBS):
        words |= set(group)
    for group in (PAST_TRANSITIVE, PAST_INTRANSITIVE, PREPOSITIONS, OPENERS, CLOSERS, CONNECTIVES):
        words |= set(group)
    words |= {*PARTICLES, *PARTICLES.values(), *PRONOUNS, *POSSESSIVES.values()}
    return sorted(words)
