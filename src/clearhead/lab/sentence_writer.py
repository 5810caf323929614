"""The writer: puts down one sentence word by word, labels it and knows its probability.

See `clearhead.lab.grammar`. Every decision is the choice of the next word, in `_pick`, and depends
on nothing but the words so far.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from clearhead.lab.sentences import Relation, Sentence, Words
from clearhead.lab.vocabulary import (
    ADJECTIVES,
    CLOSERS,
    CONNECTIVES,
    DETERMINERS,
    INTRANSITIVE,
    IS,
    NAMES,
    OPENERS,
    PARTICLES,
    PAST_INTRANSITIVE,
    PAST_TRANSITIVE,
    POSSESSIVES,
    PREPOSITIONS,
    PRONOUNS,
    SAYINGS,
    WAS,
)
from clearhead.lab.word_pairs import (
    ALL_NAMES,
    ANY_NUMBER,
    LIFELESS,
    LIVING,
    NOUN,
    VERB,
    Groups,
    allowed,
    determiners,
    forms_of,
    held_out,
    lemma,
    nouns_of,
    pair_held_out,
)

_SAYING = {saying[0]: saying for saying in SAYINGS}
_LONGEST_LIST = 7
_SHORTEST_LIST = 4


@dataclass(frozen=True)
class Phrase:
    """Who or what a phrase speaks of: the word, its place and its features."""

    word: str
    place: int
    number: str
    pronoun: str


class Writer:
    """Writes one sentence: at random, or the given one word for word."""

    def __init__(
        self, split: str, rng: random.Random | None = None, forced: Sequence[str] | None = None
    ) -> None:
        self._split, self._rng, self._forced = split, rng, forced
        self.words: list[str] = []
        self.nats: list[float] = []
        self.relations: list[Relation] = []
        self.candidates: list[Phrase] = []  # whom a pronoun could mean
        self.between: list[Phrase] = []  # nouns since the subject

    def write(self) -> Sentence:
        """The whole sentence."""
        first = self._pick(
            *determiners(4.0),
            (4.0, ALL_NAMES),
            (1.0, ("with",)),
            (1.0, OPENERS),
            (0.4, tuple(_SAYING)),
        )
        if first in _SAYING:
            for word in _SAYING[first][1:]:
                self._pick((1.0, (word,)))
            self._pick((1.0, (".",)))
        else:
            self._opened(first)
        if self._forced is not None and len(self._forced) > len(self.words):
            raise ValueError(f"the sentence ends at {' '.join(self.words)!r}, and more words came.")
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
        """The next word: a group by its weight, then one of its words, all equally likely."""
        groups = tuple(group for group in groups if group[1])
        total = sum(weight for weight, _ in groups)
        if self._forced is not None:
            word, weight, size = self._next_forced(groups)
        else:
            assert self._rng is not None
            left = self._rng.random() * total
            place = 0
            while place < len(groups) - 1 and (left := left - groups[place][0]) >= 0:
                place += 1
            weight, words = groups[place]
            size = len(words)
            word = words[int(self._rng.random() * size)]
        self.words.append(word)
        self.nats.append(math.log(total * size / weight))
        return word

    def _next_forced(self, groups: Groups) -> tuple[str, float, int]:
        assert self._forced is not None
        place = len(self.words)
        word = self._forced[place] if place < len(self._forced) else ""
        for weight, words in groups:
            if word in words:
                return word, weight, len(words)
        some = ", ".join(words[0] for _, words in groups)
        raise ValueError(
            f"not a sentence of the grammar: after {' '.join(self.words)!r} came {word!r}.\n"
            f"  There could be: {some}, and others of their kinds."
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
        """Label the word just written: it was to be foretold at the place before."""
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
        """A name, or a noun with what stands before it."""
        first = self._pick(*starts)
        return self._name(first) if first in ALL_NAMES else self._noun_phrase(first, kinds)

    def _noun_phrase(self, determiner: str, kinds: Words, verb: str = "") -> Phrase:
        """The rest of a phrase that began with this determiner (or possessive).

        `verb` is the one whose object it is, where the two are a pair.
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
        # The test holds out one pair at a time: now that of the adjective, now the determiner's.
        partners += pairs if len(self.words) % 2 else pairs[::-1]
        return allowed(nouns_of(kinds, numbers), partners, self._split)

    def _label_noun(self, start: int, determiner: str, adjective: str, numbers: Words) -> None:
        """The noun just written has a determiner and two adjectives before it."""
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

    # The subject, and what it does.

    def _after_name(self, name: Phrase) -> None:
        """A sentence that begins with a name: a list of names, two subjects, or one."""
        others = self._fresh([name.word])
        word = self._after_subject(name, phrases=0, extra=((2.5, others), (0.3, ("and",))))
        if word == "and":
            second = self._pick((1.0, self._names()))
            self.candidates.clear()  # "they" are both of them: nothing to label
            self._after_subject(Phrase(second, self._last, "plural", "they"), phrases=0)
        elif word in ALL_NAMES:
            self._list([name.word, word])

    def _fresh(self, names: list[str]) -> Words:
        """Names to go on with; in the longest list the last one must end it well."""
        fresh = tuple(name for name in ALL_NAMES if name not in names)
        if len(names) < _LONGEST_LIST - 1:
            return fresh
        ending = tuple(name for name in fresh if self._may_end(names[0], name))
        return ending or fresh

    def _may_end(self, first: str, last: str) -> bool:
        """The pair that is held out is that of a list's first name and its last one."""
        return held_out("induction", first, last) == (self._split == "test")

    def _list(self, names: list[str]) -> None:
        """Different names, then again from any of them on to the end of the list, perhaps twice."""
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
                if not again:  # the third time there are two keys
                    key = begin + names.index(name)
                    self._relate("induction", key, key - 1, (), "name", held=held)
            word = self._pick((1.0, (".",)), (1.0, () if again else tuple(names[:-2])))
            if word == ".":
                return

    def _after_subject(self, subject: Phrase, *, phrases: int, extra: Groups = ()) -> str:
        """Phrases that say more of the subject, then its verb and the rest; the next word.

        Words of the groups `extra` end this at once: what follows is the caller's.
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
        """Verbs that agree with the subject; everything = not only those that take an object."""
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
        """The verb just written agrees with the subject, over nouns of the other number."""
        word = self.words[-1]
        rivals = [noun for noun in self.between if noun.number != subject.number]
        if word not in VERB or not rivals:
            return
        verb = VERB[word]
        other = verb.plural if word == verb.singular else verb.singular
        self._relate(
            "subject",
            subject.place,
            rivals[-1].place,
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

    # The verb, and what comes after it.

    def _after_verb(self, subject: Phrase, verb: str) -> None:
        if verb in (*IS, *WAS):
            self._pick((1.0, ADJECTIVES["living"]), (0.5, ADJECTIVES["any"]))
            self._finish(subject, place=False)
        elif verb in PARTICLES:
            key = self._last
            self._pick(*determiners(1.0))
            things = self._noun_phrase(self.words[-1], ("thing",), verb)
            self._pick((1.0, (PARTICLES[verb],)))
            others = tuple(p for p in PARTICLES.values() if p != PARTICLES[verb])
            held = pair_held_out("collocation", verb, things.word)
            value = self.words[-1]
            self._relate("collocation", key, subject.place, others, value, held=held)
            self._finish(subject, place=False)
        elif verb in PAST_INTRANSITIVE or VERB.get(verb) in INTRANSITIVE:
            self._finish(subject, place=True)
        else:
            self._object(subject)
            self._finish(subject, place=True)

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
        """The possessive just written, and what is the subject's own."""
        self._label_pronoun("possessive", subject, tuple(POSSESSIVES.values()))
        self._noun_phrase(self.words[-1], LIFELESS)

    def _label_pronoun(self, name: str, subject: Phrase, forms: Words) -> None:
        rivals = [other for other in self.candidates if other.place != subject.place]
        if not rivals or subject not in self.candidates:
            return
        rival = rivals[-1]
        self._relate(
            name,
            subject.place,
            rival.place,
            tuple(form for form in forms if form != self.words[-1]),
            subject.pronoun,
            held=self._held_candidates(subject, rival),
            decisive=rival.pronoun != subject.pronoun,
        )

    def _held_candidates(self, subject: Phrase, rival: Phrase) -> bool:
        first, second = sorted((subject, rival), key=lambda phrase: phrase.place)
        return pair_held_out("candidates", first.word, second.word)

    def _finish(self, subject: Phrase, *, place: bool) -> None:
        """Where it was, and why; then the full stop."""
        groups: Groups = ((3.0, (".",)), (1.5, CONNECTIVES))
        groups += ((0.4, CLOSERS),)
        word = self._pick(*groups, *(((2.0, PREPOSITIONS),) if place else ()))
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
