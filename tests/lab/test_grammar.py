"""The lab's grammar: what it writes is scored exactly, labelled rightly, and split cleanly."""

import contextlib
import itertools
import math

import pytest

from clearhead.lab import grammar, vocabulary
from clearhead.lab.grammar import RELATIONS, Writer, labelled, score, sentences


def some(count, seed=0, split="train"):
    return list(itertools.islice(sentences(seed, split), count))


def test_the_vocabulary_has_200_to_300_words_and_the_two_sentences():
    found = vocabulary.vocabulary()
    assert 200 <= len(found) <= 300
    assert len(set(found)) == len(found)
    assert {
        *grammar.score(["the", "cat", "sat", "on", "the", "mat", "."]).words,
        *vocabulary.PROVERBS[0],
    } <= set(found)
    used = {word for sentence in some(8000) for word in sentence.words}
    assert used == set(found)


def test_the_tokenizer_reads_every_sentence_without_unknown_words():
    tokens = grammar.tokenizer()
    for sentence in some(300):
        text = " ".join(sentence.words).replace(" .", ".").replace(" ,", ",")
        assert tokens.tokens(text) == list(sentence.words)
        assert tokens.decode(tokens.encode(text)) == text
        assert sentence.text[0].isupper()
        assert sentence.text.endswith(".")


def test_the_same_seed_gives_the_same_sentences():
    assert some(50, seed=3) == some(50, seed=3)
    assert some(50, seed=3) != some(50, seed=4)


def test_score_gives_back_what_was_written():
    """Writing and scoring are one program: words, probabilities and labels agree."""
    for split in ("train", "test"):
        for sentence in some(500, seed=5, split=split):
            assert score(sentence.words, split) == sentence


def continuations(prefix):
    """Every next word that the grammar allows, with its probability."""
    found = {}
    for word in vocabulary.vocabulary():
        try:
            score([*prefix, word])
        except ValueError as error:
            # An error about a later place means that this word was accepted.
            if f"after {' '.join([*prefix, word])!r} got" not in str(error):
                continue
        found[word] = math.exp(-_nats(prefix, word))
    return found


def _nats(prefix, word):
    writer = Writer("train", forced=[*prefix, word])
    with contextlib.suppress(ValueError):  # the sentence need not be whole
        writer.write()
    return writer.nats[len(prefix)]


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "the",
        "the cat",
        "the hungry",
        "the cat near the dogs",
        "the cat that the dogs",
        "Mary",
        "Mary and",
        "Mary met",
        "Mary met Adam in",
        "Mary sat because",
        "Adam Eva Ben Mary",
        "Adam Eva Ben Mary Leo Nina Tom",
        "with these foxes ,",
        "the cat picked the",
        "the cat picked the wooden",
    ],
)
def test_the_probabilities_of_the_next_word_sum_to_one(prefix):
    """So -log p of a sentence is exact, and its mean is a floor under every model's loss."""
    found = continuations(prefix.split())
    assert len(found) >= 1
    assert math.isclose(sum(found.values()), 1.0, rel_tol=1e-9)


def test_a_sentence_outside_the_grammar_is_told_where():
    with pytest.raises(ValueError, match="after 'the cat' got 'sleep'"):
        score(["the", "cat", "sleep", "."])
    with pytest.raises(ValueError, match="after 'the cat sat' got ''"):
        score(["the", "cat", "sat"])
    with pytest.raises(ValueError, match=r"the end after 'Mary sat \.', got 'Mary'"):
        score(["Mary", "sat", ".", "Mary"])


@pytest.mark.parametrize(
    ("text", "name", "query", "key", "distractor", "right", "wrong"),
    [
        ("the cat near the dogs sleeps", "subject", 4, 1, 4, "sleeps", ("sleep",)),
        ("the cats that the girl saw are hungry", "subject", 5, 1, 4, "are", ("is",)),
        ("Mary met Adam in her house", "possessive", 3, 0, 2, "her", ("his", "its", "their")),
        ("with Mary , Adam lost his hat", "possessive", 4, 3, 1, "his", ("her", "its", "their")),
        ("the dogs saw Tom when they ran", "pronoun", 4, 1, 3, "they", ("he", "she", "it")),
        ("these wooden small hats", "determiner", 2, 0, 1, "hats", ("hat",)),
        ("Mary picked the cup up", "collocation", 3, 1, 0, "up", None),
        ("Adam Eva Ben Mary Eva Ben Mary", "induction", 4, 2, 1, "Ben", ()),
    ],
)
def test_labels_are_the_ones_a_person_would_give(text, name, query, key, distractor, right, wrong):
    if name == "determiner":
        text = f"Mary picked {text} up"
        query, key, distractor = query + 2, key + 2, distractor + 2
    split = "train"
    try:
        sentence = score([*text.split(), "."], split)
    except ValueError:  # its pair is held out
        split = "test"
        sentence = score([*text.split(), "."], split)
    found = next(r for r in sentence.relations if r.name == name)
    assert (found.query, found.key, found.distractor) == (query, key, distractor)
    assert found.right == right == sentence.words[query + 1]
    if wrong is not None:
        assert set(found.wrong) == set(wrong)


def test_every_label_is_causal_and_predicts_the_next_word():
    for split in ("train", "test"):
        for sentence in some(3000, seed=1, split=split):
            for relation in sentence.relations:
                assert relation.key <= relation.query
                assert relation.distractor <= relation.query
                assert relation.key != relation.distractor
                assert relation.right == sentence.words[relation.query + 1]
                assert relation.right not in relation.wrong


def test_training_never_sees_a_held_out_pair():
    for sentence in some(8000, seed=11):
        for relation in sentence.relations:
            assert not relation.held_out, (sentence.text, relation)


@pytest.mark.parametrize("name", RELATIONS)
def test_the_test_asks_for_held_out_pairs_only(name):
    for sentence, relation in labelled(name, 30):
        assert relation.held_out
        assert relation.name == name
        with pytest.raises(ValueError, match="not a sentence of the grammar"):
            score(sentence.words, "train")


def test_an_unknown_relation_is_told():
    with pytest.raises(ValueError, match=r"expected one of subject, .*, got 'verb'"):
        labelled("verb", 1)
