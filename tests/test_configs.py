"""Model sizes: the right numbers, the names people type, and the hint about heads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.configs import GPT2_CONFIGS, GPT3_CONFIG, config_name, explain_heads, find_config

KEYS = [
    "vocab_size",
    "context_length",
    "d_model",
    "num_heads",
    "num_layers",
    "dropout",
    "qkv_bias",
]


@pytest.mark.parametrize(
    ("name", "layers", "d_model", "heads"),
    [
        ("gpt2-small", 12, 768, 12),
        ("gpt2-medium", 24, 1024, 16),
        ("gpt2-large", 36, 1280, 20),
        ("gpt2-xl", 48, 1600, 25),
    ],
)
def test_gpt2_sizes(name, layers, d_model, heads):
    config = GPT2_CONFIGS[name]
    assert list(config) == KEYS
    assert list(config.values()) == [50257, 1024, d_model, heads, layers, 0.1, True]
    assert d_model // heads == 64
    assert d_model % heads == 0


def test_gpt3_size():
    assert list(GPT3_CONFIG) == KEYS
    assert list(GPT3_CONFIG.values()) == [50257, 2048, 12288, 96, 96, 0.1, True]


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("gpt2", "gpt2-small"),
        ("GPT2", "gpt2-small"),
        ("GPT-2", "gpt2-small"),
        ("gpt2_medium", "gpt2-medium"),
        ("GPT2-Large", "gpt2-large"),
        (" gpt-2-xl ", "gpt2-xl"),
        ("gpt3", "gpt3"),
    ],
)
def test_names_people_type(typed, name):
    assert config_name(typed) == name
    expected = GPT3_CONFIG if name == "gpt3" else GPT2_CONFIGS[name]
    assert find_config(typed) == expected


def test_unknown_name_suggests_and_lists():
    with pytest.raises(ValueError, match=r"'gpt2-mediun'\. Did you mean gpt2-medium\?") as caught:
        find_config("gpt2-mediun")
    for name in (*GPT2_CONFIGS, "gpt3"):
        assert name in str(caught.value)


def test_changing_a_found_config_changes_nothing_else():
    find_config("gpt2")["dropout"] = 0.5
    assert find_config("gpt2")["dropout"] == 0.1


@pytest.mark.parametrize(
    ("d_model", "num_heads", "hint"),
    [
        (1024, 24, "24 is GPT-2 medium's number of layers; it has 16 heads."),
        (1280, 36, "36 is GPT-2 large's number of layers; it has 20 heads."),
        (1600, 48, "48 is GPT-2 xl's number of layers; it has 25 heads."),
        (256, 12, "Numbers of heads near 12 that divide 256: 8 or 16."),
        (7, 3, "Numbers of heads near 3 that divide 7: 1 or 7."),
        (8, 11, "A width of 8 can be divided among 8 heads at most."),
        (768, 12, None),
        (768, 0, None),
        (768, -5, None),
    ],
)
def test_explain_heads(d_model, num_heads, hint):
    assert explain_heads(d_model, num_heads) == hint


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_every_number_of_heads_that_does_not_fit_gets_a_hint(d_model, num_heads):
    assert (explain_heads(d_model, num_heads) is None) == (d_model % num_heads == 0)
