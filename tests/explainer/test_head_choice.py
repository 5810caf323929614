"""Which head explain shows: the clearest one above chance, and what is said about it."""

import pytest
import torch

from clearhead.explainer.head_choice import clearest, next_tokens, summarise_heads
from clearhead.maps.head_patterns import pattern_sentence
from clearhead.models import find_model
from clearhead.watcher.one_text import see


@pytest.fixture(scope="module")
def english():
    return find_model("english")


def summaries(english, text):
    ids = english.read(text).tensor()
    return summarise_heads(see(english.network, ids), ids)


def test_the_clearest_head_is_the_furthest_above_chance(english):
    text = "We walked along the river until it was dark"
    heads = summaries(english, text)
    assert len(heads) == 48
    ids = english.read(text).tensor()
    rows = see(english.network, ids).heads(ids).rows
    above = [row.previous - row.chance["previous"] for row in rows]
    best = clearest(heads)
    assert above.index(max(above)) == 8 * best.layer + best.head
    weight = rows[above.index(max(above))].previous
    assert best.does == f"attends to the previous token ({weight:.2f} of its weight)"
    assert clearest(heads, 0).layer == 0


def test_the_last_token_attends_to_what_is_named(english):
    heads = summaries(english, "The dog barked at the cat")
    ids = english.read("The dog barked at the cat").tensor()
    seen = see(english.network, ids)
    weights = seen["h.2.attn"][0, 3, -1]
    (head,) = [each for each in heads if (each.layer, each.head) == (2, 3)]
    expected = weights.topk(2)
    assert [key for key, _ in head.last] == expected.indices.tolist()
    assert [weight for _, weight in head.last] == pytest.approx(expected.values.tolist())


def test_a_pattern_must_be_above_chance():
    scores = {"sink": 0.55, "entropy": 0.7, "distance": 1.0}
    assert pattern_sentence(scores, {"sink": 0.2}).startswith("attends to the first token (0.55")
    assert pattern_sentence(scores, {"sink": 0.45}).startswith("spreads over about 2 tokens")


def test_next_tokens_are_probabilities():
    found = next_tokens(torch.tensor([0.0, 2.0, 1.0, -5.0]), count=3)
    assert [token for token, _ in found] == [1, 2, 0]
    assert found[0][1] == pytest.approx(torch.tensor([0.0, 2.0, 1.0, -5.0]).softmax(0)[1].item())
    assert len(next_tokens(torch.zeros(2))) == 2
