"""Minimal pairs: what they consist of, and how a model is judged by them."""

from collections import Counter

import pytest
import torch

import clearhead
from clearhead.lab.minimal_pairs import PER_KIND, make_pairs, measure_pairs
from clearhead.tokenizers import WordTokenizer

PAIRS = make_pairs()
CONFIG = {"context_length": 16, "d_model": 12, "num_heads": 3, "num_layers": 2, "dropout": 0.0}


def test_there_are_eighty_of_each_kind():
    assert len(PAIRS) >= 400
    assert set(Counter(pair.kind for pair in PAIRS).values()) == {PER_KIND}
    assert len(set(PAIRS)) == len(PAIRS)
    assert make_pairs() == PAIRS
    assert make_pairs(seed=1) != PAIRS


def test_right_and_wrong_are_balanced():
    """So that a model which always prefers one word is right half of the time."""
    for kind in {pair.kind for pair in PAIRS}:
        rights = Counter(pair.right for pair in PAIRS if pair.kind == kind)
        for word, count in rights.items():
            wrongs = sum(pair.wrong == word for pair in PAIRS if pair.kind == kind)
            assert abs(count - wrongs) <= PER_KIND / 2, (kind, word)


def test_the_cue_decides():
    plural = {" are", " were", " have", " themselves"}
    for pair in PAIRS:
        assert pair.cue in pair.prefix.split()
        assert pair.right != pair.wrong
        if pair.kind.startswith("agreement"):
            many = pair.cue in ("children", "women", "men") or pair.cue.endswith("s")
            assert (pair.right in plural) == many, pair
        if "across" in pair.kind:
            closer = pair.prefix.split()[-1]
            assert closer != pair.cue
            other_many = closer in ("children", "women", "men") or closer.endswith("s")
            assert other_many != many, pair
        if pair.kind == "reflexive, gender":
            female = {"woman", "girl", "queen", "sister", "mother", "wife", "daughter", "aunt"}
            assert (pair.right == " herself") == (pair.cue in female)


@pytest.fixture
def words():
    every = sorted({w for p in PAIRS for w in (p.prefix + p.right + p.wrong).split()})
    return WordTokenizer(every)


@pytest.fixture
def model(words):
    torch.manual_seed(3)
    return clearhead.GPT2({**CONFIG, "vocab_size": words.vocab_size, "qkv_bias": True}).eval()


class Spaceless:
    """The word tokenizer, which implies the space that the pairs write."""

    def __init__(self, words):
        self._words = words
        self.vocab_size = words.vocab_size

    def encode(self, text):
        return self._words.encode(text.strip())


def test_a_model_that_prefers_one_word_is_right_where_that_is_right(model, words):
    favourite = words.encode("is")[0]
    with torch.no_grad():
        model.embedding.token.weight.zero_()
        model.norm.weight.zero_()
        model.norm.bias.fill_(1.0)
        model.embedding.token.weight[favourite] = 1.0
    pairs = [pair for pair in PAIRS if pair.kind == "agreement" and "is" in pair.right + pair.wrong]
    pairs = [pair for pair in pairs if " is" in (pair.right, pair.wrong)]
    (found,) = measure_pairs(model, Spaceless(words), pairs)
    share = sum(pair.right == " is" for pair in pairs) / len(pairs)
    assert found.accuracy.mean == pytest.approx(share)
    assert 0 < share < 1
    assert found.lost.mean == 0.0  # no head matters here


def test_the_head_is_the_one_that_attends_to_the_cue(model, words):
    pairs = [pair for pair in PAIRS if pair.kind == "agreement across a phrase"]
    (found,) = measure_pairs(model, Spaceless(words), pairs)
    weights = []
    for pair in pairs[1::2]:
        ids = torch.tensor([words.encode(pair.prefix)])
        with torch.no_grad(), clearhead.watch(model) as seen:
            model.hidden(ids)
        weights.append(seen[found.layer][0, found.head, -1, 1])
    assert found.attention.mean == pytest.approx(torch.stack(weights).mean().item(), abs=1e-5)
    lengths = [len(words.encode(pair.prefix)) for pair in pairs]
    assert found.chance == pytest.approx(sum(1 / n for n in lengths) / len(lengths))
