"""A grammar that writes sentences, labels their relations and computes their probabilities.

One class, `Writer`, does all three. It writes a sentence word by word, and every decision *is* the
choice of the next word: nothing is decided that the words so far do not show. So there is exactly
one derivation of each sentence, the probability of each word given the previous ones is known, and
the mean of -log p is the lowest loss any model can reach on these sentences: the *floor*.

A causal model must know the verb's number at the token *before* the verb. So a relation is a pair
(query -> key): the query is the word before the one to predict, the key is the word that determines
it, and the distractor is another word that could be mistaken for the key.

    the cat near the dogs sleeps        query dogs, key cat, distractor dogs

Pairs of words (a subject and its verb, two candidates for a pronoun, ...) are divided by a hash:
one in eight is held out. The "train" split never contains a held-out pair; the "test" split uses
one wherever it can.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from clearhead.lab.vocabulary import (
    ADJECTIVES,
    CLOSERS,
    CONNECTIVES,
    DETERMINERS,
    INTRANSITIVE,
    IS,
    NAMES,
    NOUNS,
    OPENERS,
    PARTICLES,
    PAST_INTRANSITIVE,
    PAST_TRANSITIVE,
    POSSESSIVES,
    PREPOSITIONS,
    PRONOUNS,
    PROVERBS,
    TRANSITIVE,
    WAS,
    vocabulary,
)
from clearhead.tokenizers import WordTokenizer

Words = tuple[str, ...]
Groups = tuple[tuple[float, Words], ...]  # weights, and the words that share them

# What determines the predicted word, and what does not; in the order of display.
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
    """One labelled pair of words in a sentence; positions count from 0.

    Attributes:
        name: One of `RELATIONS`.
        query: The position before the word to predict.
        key: The position of the word that determines it.
        distractor: The position of a word that could be mistaken for the key.
        right: The word to predict.
        wrong: The words a different key would call for; empty if every other word is wrong.
        value: The feature of the key: "singular", "she", ...
        decisive: Whether mistaking the distractor for the key would give a different word.
        held_out: Whether the pair of words never occurs together in training.
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
        words: The words, ending with the full stop.
        nats: -log p of each word given the previous ones.
        relations: The labelled pairs.
    """

    words: Words
    nats: tuple[float, ...]
    relations: tuple[Relation, ...]

    @property
    def text(self) -> str:
        """The sentence as a string, capitalized and punctuated."""
        text = " ".join(self.words).replace(" ,", ",").replace(" .", ".")
        return text[0].upper() + text[1:]


def tokenizer() -> WordTokenizer:
    """The grammar's tokenizer: one token per word of the vocabulary.

    Examples:
        >>> tokenizer().tokens("the cat sat on the blue mat")
        ['the', 'cat', 'sat', 'on', 'the', '<unk>', 'mat']
    """
    return WordTokenizer(vocabulary())


def sentences(seed: int, split: str = "train") -> Iterator[Sentence]:
    """An endless stream of sentences, determined by the seed.

    Examples:
        >>> first, second = sentences(seed=2), sentences(seed=2)
        >>> next(first) == next(second)
        True
    """
    rng = random.Random(f"clearhead {split} {seed}")
    while True:
        yield Writer(split, rng).write()


def score(words: Iterable[str], split: str = "train") -> Sentence:
    """Label a given sentence and compute -log p of each word.

    Raises:
        ValueError: The grammar does not generate this sentence.

    Examples:
        >>> cat = score("the cat near the dogs sleeps .".split())
        >>> [(relation.name, relation.query, relation.key) for relation in cat.relations]
        [('subject', 4, 1)]
    """
    return Writer(split, forced=list(words)).write()


def labelled(
    relation: str, count: int, *, seed: int = 0, split: str = "test"
) -> list[tuple[Sentence, Relation]]:
    """Distinct sentences with this relation, one labelled pair of each.

    The "test" split gives only held-out pairs, the "train" split none of them.

    Raises:
        ValueError: There is no relation of this name.
    """
    if relation not in RELATIONS:
        raise ValueError(f"relation: expected one of {', '.join(RELATIONS)}, got {relation!r}.")
    found: list[tuple[Sentence, Relation]] = []
    seen: set[Words] = set()
    for sentence in sentences(seed, split):
        fitting = [r for r in sentence.relations if r.name == relation]
        fitting = [r for r in fitting if r.held_out == (split == "test")]
        if fitting and sentence.words not in seen:
            seen.add(sentence.words)
            found.append((sentence, fitting[len(found) % len(fitting)]))
            if len(found) == count:
                return found
    raise AssertionError("sentences() is endless")


# Word pairs.

ALL_NAMES = NAMES["he"] + NAMES["she"]
NOUN = {form: noun for noun in NOUNS for form in noun[:2]}
VERB = {form: verb for verb in (*TRANSITIVE, *INTRANSITIVE, IS, WAS) for form in verb}
LIVING, LIFELESS = ("person", "animal"), ("thing", "place")
ANY_NUMBER = ("singular", "plural")
_HELD_OUT = 8  # one pair in eight


@cache
def held_out(kind: str, first: str, second: str) -> bool:
    """Whether this pair of words is reserved for the test split."""
    digest = hashlib.sha256(f"{kind} {first} {second}".encode()).digest()
    return digest[0] % _HELD_OUT == 0


def lemma(word: str) -> str:
    """The same form for the singular and the plural of a noun or a verb."""
    if word in NOUN:
        return NOUN[word].singular
    return VERB[word].plural if word in VERB else word


@cache
def allowed(words: Words, partners: tuple[tuple[str, str], ...], split: str) -> Words:
    """The words that this split allows with the given partners, each a (kind, lemma)."""
    for kind, partner in partners:
        kept = tuple(w for w in words if held_out(kind, partner, lemma(w)) == (split == "test"))
        if split == "train":
            words = kept
        elif kept:  # the test split wants one held-out pair; partners are in order of importance
            return kept
    return words


def pair_held_out(kind: str, first: str, second: str) -> bool:
    """Whether two words, in any form, are a held-out pair."""
    return held_out(kind, lemma(first), lemma(second))


@cache
def nouns_of(kinds: Words, numbers: Words) -> Words:
    """All nouns of these kinds in these numbers."""
    chosen = [noun for noun in NOUNS if noun.kind in kinds]
    return tuple(getattr(noun, number) for number in numbers for noun in chosen)


@cache
def forms_of(transitive: bool, number: str) -> Words:
    """All present-tense verbs in one number, either transitive or intransitive."""
    return tuple(getattr(verb, number) for verb in (TRANSITIVE if transitive else INTRANSITIVE))


@cache
def determiners(weight: float) -> Groups:
    """Half of the weight on "the", half on determiners that show the number."""
    shown = DETERMINERS["singular"] + DETERMINERS["plural"]
    return (weight / 2, DETERMINERS["either"]), (weight / 2, shown)


# Writing.

_PROVERB = {proverb[0]: proverb for proverb in PROVERBS}
_LONGEST_LIST = 7
_SHORTEST_LIST = 4


@dataclass(frozen=True)
class Phrase:
    """The head of a noun phrase: the word, its position and its features."""

    word: str
    position: int
    number: str
    pronoun: str


class Writer:
    """Writes one sentence: at random with `rng`, or exactly the words of `forced`."""

    def __init__(
        self, split: str, rng: random.Random | None = None, forced: Sequence[str] | None = None
    ) -> None:
        self._split, self._rng, self._forced = split, rng, forced
        self.words: list[str] = []
        self.nats: list[float] = []
        self.relations: list[Relation] = []
        self.candidates: list[Phrase] = []  # possible referents of a pronoun
        self.between: list[Phrase] = []  # nouns since the subject

    def write(self) -> Sentence:
        """Write the whole sentence."""
        first = self._pick(
            *determiners(4.0),
            (4.0, ALL_NAMES),
            (1.0, ("with",)),
            (1.0, OPENERS),
            (0.4, tuple(_PROVERB)),
        )
        if first in _PROVERB:
            for word in _PROVERB[first][1:]:
                self._pick((1.0, (word,)))
            self._pick((1.0, (".",)))
        else:
            self._opened(first)
        if self._forced is not None and len(self._forced) > len(self.words):
            raise ValueError(
                "not a sentence of the grammar: expected the end after "
                f"{' '.join(self.words)!r}, got {self._forced[len(self.words)]!r}."
            )
        return Sentence(tuple(self.words), tuple(self.nats), tuple(self.relations))

    def _opened(self, first: str) -> None:
        if first == "with":
            self._phrase(LIVING, *determiners(1.0), (2.0, self._names()))
            self._pick((1.0, (",",)))
        if first in OPENERS or first == "with":
            subject = self._phrase(LIVING, *determiners(1.0), (1.0, self._names()))
            self._after_subject(subject, phrases=1)
        elif first in ALL_NAMES:
            self._after_name(self._name(first))
        else:
            self._after_subject(self._noun_phrase(first, LIVING), phrases=2)

    # One word.

    def _pick(self, *groups: tuple[float, Words]) -> str:
        """Choose the next word: a group by its weight, then one of its words uniformly."""
        groups = tuple(group for group in groups if group[1])
        total = sum(weight for weight, _ in groups)
        if self._forced is not None:
            word, weight, size = self._next_forced(groups)
        else:
            assert self._rng is not None
            left = self._rng.random() * total
            index = 0
            while index < len(groups) - 1 and (left := left - groups[index][0]) >= 0:
                index += 1
            weight, words = groups[index]
            size = len(words)
            word = words[int(self._rng.random() * size)]
        self.words.append(word)
        self.nats.append(math.log(total * size / weight))
        return word

    def _next_forced(self, groups: Groups) -> tuple[str, float, int]:
        assert self._forced is not None
        index = len(self.words)
        word = self._forced[index] if index < len(self._forced) else ""
        for weight, words in groups:
            if word in words:
                return word, weight, len(words)
        some = ", ".join(words[0] for _, words in groups)
        raise ValueError(
            f"not a sentence of the grammar: after {' '.join(self.words)!r} got {word!r}.\n"
            f"  Expected a word like: {some}."
        )

    @property
    def _last(self) -> int:
        return len(self.words) - 1

    def _relate(
        self,
        name: str,
        key: int,
        distractor: int,
        wrong: Words,
        value: str,
        *,
        held: bool,
        decisive: bool = True,
    ) -> None:
        """Label the word just written; the position before it must predict it."""
        query, right = self._last - 1, self.words[-1]
        self.relations.append(
            Relation(name, query, key, distractor, right, wrong, value, decisive, held)
        )

    # Phrases.

    def _names(self) -> Words:
        return allowed(ALL_NAMES, self._partners(), self._split)

    def _partners(self) -> tuple[tuple[str, str], ...]:
        return tuple(("candidates", lemma(other.word)) for other in self.candidates)

    def _name(self, word: str) -> Phrase:
        pronoun = "he" if word in NAMES["he"] else "she"
        return self._candidate(Phrase(word, self._last, "singular", pronoun))

    def _candidate(self, phrase: Phrase) -> Phrase:
        self.candidates.append(phrase)
        self.between.append(phrase)
        return phrase

    def _phrase(self, kinds: Words, *starts: tuple[float, Words]) -> Phrase:
        """A name, or a noun with its determiner and adjectives."""
        first = self._pick(*starts)
        return self._name(first) if first in ALL_NAMES else self._noun_phrase(first, kinds)

    def _noun_phrase(self, determiner: str, kinds: Words, verb: str = "") -> Phrase:
        """The rest of a phrase that began with this determiner or possessive.

        Args:
            determiner: The word just written.
            kinds: The kinds of noun that fit.
            verb: The verb whose object this is, if the two form a pair that may be held out.
        """
        start = self._last
        numbers = tuple(n for n in ANY_NUMBER if determiner in DETERMINERS[n]) or ANY_NUMBER
        living = tuple(kind for kind in kinds if kind in LIVING)
        lifeless = tuple(kind for kind in kinds if kind in LIFELESS)
        nouns = self._fitting(kinds, numbers, verb)
        word = self._pick(
            (3.0, nouns),
            (0.5, ADJECTIVES["any"]),
            (0.5, ADJECTIVES["living"] if living else ()),
            (0.5, ADJECTIVES["lifeless"] if lifeless else ()),
        )
        adjective = ""
        if word in ADJECTIVES["any"]:
            word = self._pick((1.0, nouns))
        elif word not in NOUN:
            adjective, kinds = word, living if word in ADJECTIVES["living"] else lifeless
            pairs = (("adjective", adjective), ("determiner", determiner))
            nouns = self._fitting(kinds, numbers, verb, pairs)
            word = self._pick((1.0, nouns), (1.5, ADJECTIVES["any"]))
            if word not in NOUN:
                word = self._pick((1.0, nouns))
                self._label_noun(start, determiner, adjective, numbers)
        noun = NOUN[word]
        number = "singular" if word == noun.singular else "plural"
        pronoun = noun.pronoun if number == "singular" else "they"
        phrase = Phrase(word, self._last, number, pronoun)
        if noun.kind in LIVING:
            return self._candidate(phrase)
        self.between.append(phrase)
        return phrase

    def _fitting(
        self, kinds: Words, numbers: Words, verb: str, pairs: tuple[tuple[str, str], ...] = ()
    ) -> Words:
        partners = self._partners() if set(kinds) & set(LIVING) else ()
        if verb:
            partners += (("collocation", verb),)
        # The test split uses one held-out pair at a time: alternately adjective and determiner.
        partners += pairs if len(self.words) % 2 else pairs[::-1]
        return allowed(nouns_of(kinds, numbers), partners, self._split)

    def _label_noun(self, start: int, determiner: str, adjective: str, numbers: Words) -> None:
        """Label the noun just written, which follows a determiner and two adjectives."""
        word = self.words[-1]
        noun = NOUN[word]
        if len(numbers) == 1:
            other = noun.plural if word == noun.singular else noun.singular
            held = held_out("determiner", determiner, noun.singular)
            self._relate("determiner", start, start + 1, (other,), numbers[0], held=held)
        living = noun.kind in LIVING
        number = "singular" if word == noun.singular else "plural"
        self._relate(
            "adjective",
            start + 1,
            start,
            nouns_of(LIFELESS if living else LIVING, (number,)),
            "living" if living else "lifeless",
            held=held_out("adjective", adjective, noun.singular),
        )

    # The subject and its verb.

    def _after_name(self, name: Phrase) -> None:
        """Continue a sentence that begins with a name: a list of names, two subjects, or one."""
        others = self._fresh([name.word])
        word = self._after_subject(name, phrases=0, extra=((2.5, others), (0.3, ("and",))))
        if word == "and":
            second = self._pick((1.0, self._names()))
            self.candidates.clear()  # "they" is both of them: nothing to label
            self._after_subject(Phrase(second, self._last, "plural", "they"), phrases=0)
        elif word in ALL_NAMES:
            self._list([name.word, word])

    def _fresh(self, names: list[str]) -> Words:
        """Names to continue a list with; the last of the longest list must be able to end it."""
        fresh = tuple(name for name in ALL_NAMES if name not in names)
        if len(names) < _LONGEST_LIST - 1:
            return fresh
        ending = tuple(name for name in fresh if self._may_end(names[0], name))
        return ending or fresh

    def _may_end(self, first: str, last: str) -> bool:
        """Whether the split allows this pair of first and last name of a list."""
        return held_out("induction", first, last) == (self._split == "test")

    def _list(self, names: list[str]) -> None:
        """Different names, then the list repeated from any of them to its end, once or twice."""
        begin = self._last - 1
        while True:
            whole = len(names) == _LONGEST_LIST
            ends = len(names) >= _SHORTEST_LIST and self._may_end(names[0], names[-1])
            old = tuple(names[:-2]) if ends or whole else ()
            fresh = () if whole else self._fresh(names)
            word = self._pick((2.0, fresh), (1.0, old))
            if word in names:
                break
            names.append(word)
        held = held_out("induction", names[0], names[-1])
        for again in (False, True):
            for name in names[names.index(word) + 1 :]:
                self._pick((1.0, (name,)))
                if not again:  # the third time, there would be two keys
                    key = begin + names.index(name)
                    self._relate("induction", key, key - 1, (), "name", held=held)
            word = self._pick((1.0, (".",)), (1.0, () if again else tuple(names[:-2])))
            if word == ".":
                return

    def _after_subject(self, subject: Phrase, *, phrases: int, extra: Groups = ()) -> str:
        """Write phrases that modify the subject, its verb and the rest; return the next word.

        A word from the groups in `extra` returns at once: the caller continues from there.
        """
        if len(self.between) and self.between[-1] is subject:
            self.between.clear()
        groups = self._verbs(subject, everything=True)
        if phrases:
            groups += ((2.0, PREPOSITIONS), (2.0, ("that",)))
        word = self._pick(*groups, *extra)
        if any(word in words for _, words in extra):
            return word
        if word in PREPOSITIONS:
            self._phrase(LIVING + LIFELESS, *determiners(3.0), (0.6, self._names()))
            self._after_subject(subject, phrases=phrases - 1)
        elif word == "that":
            self._relative_clause(subject)
            self._after_subject(subject, phrases=0)
        else:
            self._label_verb(subject)
            self._after_verb(subject, word)
        return word

    def _verbs(self, subject: Phrase, *, everything: bool) -> Groups:
        """Verbs that agree with the subject; without `everything`, only transitive ones."""
        partners = (("subject", lemma(subject.word)),)

        def present(words: Words) -> Words:
            return allowed(words, partners, self._split)

        groups: Groups = ((2.0, present(forms_of(True, subject.number))), (1.0, PAST_TRANSITIVE))
        if everything:
            be = present((getattr(IS, subject.number), getattr(WAS, subject.number)))
            groups += ((2.0, present(forms_of(False, subject.number))), (1.0, be))
            groups += ((1.2, PAST_INTRANSITIVE), (0.8, tuple(PARTICLES)))
        return groups

    def _label_verb(self, subject: Phrase) -> None:
        """Label the verb just written, if a noun of the other number follows the subject."""
        word = self.words[-1]
        rivals = [noun for noun in self.between if noun.number != subject.number]
        if word not in VERB or not rivals:
            return
        verb = VERB[word]
        other = verb.plural if word == verb.singular else verb.singular
        self._relate(
            "subject",
            subject.position,
            rivals[-1].position,
            (other,),
            subject.number,
            held=pair_held_out("subject", subject.word, word),
        )

    def _relative_clause(self, subject: Phrase) -> None:
        word = self._pick(
            *determiners(2.0), (0.6, self._names()), *self._verbs(subject, everything=False)
        )
        if word in VERB or word in PAST_TRANSITIVE:
            self._label_verb(subject)
            self._phrase(LIVING, *determiners(3.0), (0.6, self._names()))
            return
        inner = self._name(word) if word in ALL_NAMES else self._noun_phrase(word, LIVING)
        self._pick(*self._verbs(inner, everything=False))

    # What follows the verb.

    def _after_verb(self, subject: Phrase, verb: str) -> None:
        if verb in (*IS, *WAS):
            self._pick((1.0, ADJECTIVES["living"]), (0.5, ADJECTIVES["any"]))
            self._finish(subject, location=False)
        elif verb in PARTICLES:
            key = self._last
            self._pick(*determiners(1.0))
            things = self._noun_phrase(self.words[-1], ("thing",), verb)
            self._pick((1.0, (PARTICLES[verb],)))
            others = tuple(p for p in PARTICLES.values() if p != PARTICLES[verb])
            held = pair_held_out("collocation", verb, things.word)
            value = self.words[-1]
            self._relate("collocation", key, subject.position, others, value, held=held)
            self._finish(subject, location=False)
        elif verb in PAST_INTRANSITIVE or VERB.get(verb) in INTRANSITIVE:
            self._finish(subject, location=True)
        else:
            self._object(subject)
            self._finish(subject, location=True)

    def _object(self, subject: Phrase) -> None:
        own = POSSESSIVES[subject.pronoun]
        word = self._pick(*determiners(1.5), (1.5, self._names()), (1.0, (own,)))
        if word == own:
            self._own(subject)
        elif word in ALL_NAMES:
            self._name(word)
        else:
            self._noun_phrase(word, (*LIVING, "thing"))

    def _own(self, subject: Phrase) -> None:
        """Label the possessive just written, and write the noun that it belongs to."""
        self._label_pronoun("possessive", subject, tuple(POSSESSIVES.values()))
        self._noun_phrase(self.words[-1], LIFELESS)

    def _label_pronoun(self, name: str, subject: Phrase, forms: Words) -> None:
        rivals = [other for other in self.candidates if other.position != subject.position]
        if not rivals or subject not in self.candidates:
            return
        rival = rivals[-1]
        self._relate(
            name,
            subject.position,
            rival.position,
            tuple(form for form in forms if form != self.words[-1]),
            subject.pronoun,
            held=self._held_candidates(subject, rival),
            decisive=rival.pronoun != subject.pronoun,
        )

    def _held_candidates(self, subject: Phrase, rival: Phrase) -> bool:
        first, second = sorted((subject, rival), key=lambda phrase: phrase.position)
        return pair_held_out("candidates", first.word, second.word)

    def _finish(self, subject: Phrase, *, location: bool) -> None:
        """Where and why, both optional; then the full stop."""
        groups: Groups = ((3.0, (".",)), (1.5, CONNECTIVES))
        groups += ((0.4, CLOSERS),)
        word = self._pick(*groups, *(((2.0, PREPOSITIONS),) if location else ()))
        if word in PREPOSITIONS:
            own = POSSESSIVES[subject.pronoun]
            if self._pick(*determiners(1.0), (1.2, (own,))) == own:
                self._own(subject)
            else:
                self._noun_phrase(self.words[-1], LIFELESS)
            word = self._pick(*groups)
        if word in CONNECTIVES:
            self._pick((1.0, (subject.pronoun,)))
            self._label_pronoun("pronoun", subject, PRONOUNS)
            number = "plural" if subject.pronoun == "they" else "singular"
            self._pick((1.0, PAST_INTRANSITIVE), (1.0, forms_of(False, number)))
        if word != ".":
            self._pick((1.0, (".",)))
