"""Sentences whose relations are known: a grammar that writes, labels and scores them.

One program, `Writer`, does all three. It puts down a sentence word by word, and each decision *is*
the choice of the next word: nothing is decided that the words so far do not show. So there is one
way only to each sentence, the probability of every word given the words before it is known exactly,
and the mean of -log p is the least loss that any model can reach on these sentences: the *floor*.

A causal model must know the verb's number at the token *before* the verb. So a relation is a pair
(query -> key): the query is the word before the one to be foretold, the key is the word that
decides it, and the distractor is another word that could be taken for the key.

    the cat near the dogs sleeps        query dogs, key cat, distractor dogs

Pairs of words (a subject and its verb, two candidates for a pronoun, ...) are divided by a hash:
one in eight is held out. The split "train" never puts these two together; "test" does where it can.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from clearhead.lab.sentence_writer import Writer
from clearhead.lab.sentences import RELATIONS, Relation, Sentence, Words
from clearhead.lab.vocabulary import vocabulary
from clearhead.lab.word_pairs import held_out
from clearhead.tokenizers import WordTokenizer

__all__ = [
    "RELATIONS",
    "Relation",
    "Sentence",
    "held_out",
    "labelled",
    "score",
    "sentences",
    "tokenizer",
]


def tokenizer() -> WordTokenizer:
    """The lab's tokenizer: a token for each word of the vocabulary.

    >>> tokenizer().tokens("the cat sat on the blue mat")
    ['the', 'cat', 'sat', 'on', 'the', '<unk>', 'mat']
    """
    return WordTokenizer(vocabulary())


def sentences(seed: int, split: str = "train") -> Iterator[Sentence]:
    """Sentences without end; the same seed gives the same ones.

    >>> first, second = sentences(seed=2), sentences(seed=2)
    >>> next(first) == next(second)
    True
    """
    rng = random.Random(f"clearhead {split} {seed}")
    while True:
        yield Writer(split, rng).write()


def score(words: Iterable[str], split: str = "train") -> Sentence:
    """A given sentence with its labels, and -log p of each of its words.

    Raises:
        ValueError: the grammar does not write this sentence.

    >>> cat = score("the cat near the dogs sleeps .".split())
    >>> [(relation.name, relation.query, relation.key) for relation in cat.relations]
    [('subject', 4, 1)]
    """
    return Writer(split, forced=list(words)).write()


def labelled(
    relation: str, count: int, *, seed: int = 0, split: str = "test"
) -> list[tuple[Sentence, Relation]]:
    """Sentences with this relation, one labelled pair of each; of the split "test", held-out pairs.

    Raises:
        ValueError: no relation is called so.
    """
    if relation not in RELATIONS:
        raise ValueError(
            f"no relation is called {relation!r}.\n  There are: {', '.join(RELATIONS)}."
        )
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
    raise AssertionError("sentences() has no end")
