"""One naming: whole names, parts of them, patterns and numbers."""

import pytest

from clearhead.watcher.layer_names import LayerChoice, matching, one_name

NAMES = [f"model.layers.{i}.{part}" for i in (0, 1, 10, 11) for part in ("self_attn", "cross_attn")]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("model.layers.1.self_attn", ["model.layers.1.self_attn"]),
        ("1.self_attn", ["model.layers.1.self_attn"]),
        ("10.self", ["model.layers.10.self_attn"]),
        ("layers.1", ["model.layers.1.self_attn", "model.layers.1.cross_attn"]),
        ("*.self_attn", [name for name in NAMES if name.endswith("self_attn")]),
        (3, ["model.layers.1.cross_attn"]),
        (-1, ["model.layers.11.cross_attn"]),
        (8, []),
        (lambda name: "10" in name, ["model.layers.10.self_attn", "model.layers.10.cross_attn"]),
        ("zzz", []),
        ("", []),
    ],
)
def test_matching(selector, expected):
    assert matching(selector, NAMES) == expected


def test_one_name():
    assert one_name("0.self_attn", NAMES) == "model.layers.0.self_attn"
    with pytest.raises(LookupError, match=r"'layers\.1' fits 2 attention layers:\n    2  model"):
        one_name("layers.1", NAMES)
    with pytest.raises(LookupError, match=r"Did you mean 'model\.layers\.0\.self_attn'"):
        one_name("model.layers.0.selfattn", NAMES)


def test_a_better_fit_wins():
    choice = LayerChoice("layers", "1.self_attn")
    for name in reversed(NAMES):  # "11.self_attn" contains the characters, and comes first
        choice.may_be(name)
    assert choice.chosen() == ["model.layers.1.self_attn"]


def test_ambiguous_names():
    choice = LayerChoice("layers", "self_attn")
    for name in NAMES:
        choice.may_be(name)
    with pytest.raises(ValueError, match=r"layers: 'self_attn' fits more than one(.|\n)*pattern"):
        choice.chosen()
    early = LayerChoice("heads", "self_attn", early=True)
    early.of(NAMES[0])
    with pytest.raises(ValueError, match="heads: 'self_attn' fits more than one"):
        early.of(NAMES[2])
    early = LayerChoice("heads", "1.self_attn", early=True)
    early.of("layers.11.self_attn")  # a better fit follows too late
    with pytest.raises(ValueError, match="fits more than one"):
        early.of("layers.1.self_attn")
