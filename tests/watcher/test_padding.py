"""Padding is left out of the table of heads."""

import math

import pytest
import torch
import transformers

from clearhead import AttentionMap, Mask, Seen, ShapeError, watch

NUMBERS = ("entropy", "distance", "previous", "sink", "same_token", "induction")
LENGTHS = (13, 7, 10)


def texts_alone(build_model, ids, lengths, side="right"):
    """The scores of each text alone, pooled over all queries that have such a number."""
    model, sums, counts = build_model(), {}, {}
    for row, length in zip(ids, lengths, strict=True):
        text = row[:length] if side == "right" else row[-length:]
        with torch.no_grad(), watch(model) as seen:
            model(text[None])
        for name in seen.layers:
            m = seen[name]
            found = m.summary(
                entropy=True, distance=True, previous=True, sink=0,
                same_token=text[None], induction=text[None],
            )  # fmt: skip
            for number in NUMBERS:
                value = getattr(found, number)
                value = value.mean if number == "distance" else value
                key = name, number
                sums[key] = sums.get(key, 0) + value.nansum((0, 2))
                counts[key] = counts.get(key, 0) + (~value.isnan()).sum((0, 2))
    return {key: sums[key] / counts[key] for key in sums}


def padded_texts(side="right"):
    """Texts of different lengths in one batch; the padding has the id of a real token."""
    ids = torch.randint(1, 6, (3, max(LENGTHS)), generator=torch.Generator().manual_seed(4))
    real = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    real = real if side == "right" else real.flip(1)
    return ids.masked_fill(~real, 3), real


def assert_like_texts_alone(table, expected):
    for row in table.rows:
        for number in NUMBERS:
            told = float(expected[row.layer, number][row.head])
            assert getattr(row, number) == pytest.approx(told, abs=1e-6), (row.layer, number)


def build(cls, config):
    torch.manual_seed(3)
    model = cls(config).eval().double()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return model


def gpt2_in_double():
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=32, n_embd=24, n_layer=2, n_head=3, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    return build(transformers.GPT2Model, config)


def llama_in_double():
    config = transformers.LlamaConfig(
        hidden_size=24, intermediate_size=20, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=3, vocab_size=50,
    )  # fmt: skip
    return build(transformers.LlamaModel, config)


@pytest.mark.parametrize("told", [False, True], ids=["found", "told"])
def test_padding_is_left_out_of_the_table(told):
    """Queries of padding must not be averaged with the rest."""
    ids, real = padded_texts()
    expected = texts_alone(gpt2_in_double, ids, LENGTHS)
    with torch.no_grad(), watch(model := gpt2_in_double()) as seen:
        model(ids, attention_mask=real.long())
    mask = real.long() if told else None
    assert_like_texts_alone(seen.heads(ids, attention_mask=mask), expected)
    plain = {row.layer: row.entropy for row in seen.heads(attention_mask=mask).rows}
    assert plain["h.0.attn"] == pytest.approx(float(expected["h.0.attn", "entropy"][2]), abs=1e-6)


@pytest.mark.parametrize("told", [False, True], ids=["found", "told"])
def test_padding_on_the_left_is_left_out_of_the_table(told):
    """Llama's positions are relative, so a shift changes nothing; see `Seen.heads` on GPT-2."""
    ids, real = padded_texts("left")
    expected = texts_alone(llama_in_double, ids, LENGTHS, "left")
    with torch.no_grad(), watch(model := llama_in_double()) as seen:
        model(ids, attention_mask=real.long())
    mask = real.long() if told else None
    assert_like_texts_alone(seen.heads(ids, attention_mask=mask), expected)


@pytest.mark.parametrize("value", ["bool", "-inf", "lowest"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("causal", [True, False])
def test_padding_is_found_in_every_kind_of_mask(value, side, causal):
    torch.manual_seed(1)
    q, k = torch.randn(2, 3, 2, 13, 5, dtype=torch.float64)
    ids, real = padded_texts(side)
    visible = real[:, None, None, :].expand(3, 1, 13, 13)
    visible = visible.tril() if causal else visible
    lowest = {"-inf": -math.inf, "lowest": torch.finfo(torch.float64).min}
    mask = visible
    if value != "bool":
        mask = torch.zeros(3, 1, 13, 13).double().masked_fill(~visible, lowest[value])
    seen = Seen()
    if value == "bool":
        seen.add("a", AttentionMap(q, k, Mask.custom(mask)))
    else:
        seen.add("a", AttentionMap(q, k, bias=mask))
    for _ in range(2):  # the second time the map has its log-sum-exp
        table = seen.heads(ids)
        assert table.rows == seen.heads(ids, attention_mask=real).rows
    alone = []
    for row, (one, other) in enumerate(zip(q, k, strict=True)):
        m = AttentionMap(one[None, :, real[row]], other[None, :, real[row]])
        m = AttentionMap(m.queries, m.keys, Mask.causal() if causal else None)
        alone.append(m.entropy()[0])
    expected = torch.cat(alone, 1).mean(1)
    assert [row.entropy for row in table.rows] == pytest.approx(expected.tolist(), abs=1e-6)


def test_attention_masks_that_do_not_fit():
    seen, ids = Seen(), torch.ones(2, 11, dtype=torch.int64)
    seen.add("a", AttentionMap(torch.randn(2, 1, 11, 3), torch.randn(2, 1, 11, 3)))
    with pytest.raises(ShapeError, match=r"attention_mask: expected \(batch=2, tokens=11\), got"):
        seen.heads(ids, attention_mask=torch.ones(1, 11))
    with pytest.raises(ShapeError, match="Pass the mask that the model was given"):
        seen.heads(ids, attention_mask=torch.ones(2, 9))
    with pytest.raises(ValueError, match="attention_mask: no token is real in sequence 1"):
        seen.heads(ids, attention_mask=torch.tensor([[1], [0]]).expand(2, 11))
    seen.add("a", seen["a"])
    with pytest.raises(ValueError, match="attention_mask: a was called 2 times with different"):
        seen.heads(attention_mask=torch.ones(2, 11))
