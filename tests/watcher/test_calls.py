"""Calls: which of a layer's calls read one text, and which layers are self-attention."""

import pytest
import torch
import transformers
from torch import nn

from clearhead import AttentionMap, Mask, Seen, watch

NUMBERS = ("entropy", "distance", "previous", "sink", "same_token", "induction")
SIZES = {
    "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 3,
    "num_key_value_heads": 3, "vocab_size": 7, "pad_token_id": 0,
}  # fmt: skip
STATIC = {"cache_implementation": "static", "disable_compile": True}


def build(cls, config):
    torch.manual_seed(3)
    model = cls(config).eval().double()
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    return model


def llama():
    return build(transformers.LlamaForCausalLM, transformers.LlamaConfig(**SIZES))


def mistral(window):
    config = transformers.MistralConfig(**SIZES, sliding_window=window)
    return build(transformers.MistralForCausalLM, config)


def t5():
    config = transformers.T5Config(
        d_model=24, d_kv=8, d_ff=20, num_layers=2, num_heads=3, vocab_size=50,
        decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return build(transformers.T5ForConditionalGeneration, config)


def generated(model, ids, **options):
    with torch.no_grad(), watch(model) as seen:
        out = model.generate(ids, max_new_tokens=8, do_sample=False, eos_token_id=None, **options)
    return seen, out


def numbers(table):
    return {(r.layer, r.head): [getattr(r, n) for n in NUMBERS] for r in table.rows}


def assert_same_tables(a, b):
    a, b = numbers(a), numbers(b)
    assert a.keys() == b.keys()
    for key in a:
        assert a[key] == pytest.approx(b[key], abs=1e-6), key


def some_ids(batch=2, tokens=9):
    return torch.randint(1, 7, (batch, tokens), generator=torch.Generator().manual_seed(5))


# One text in several calls.


@pytest.mark.parametrize("filled", [False, True])
def test_a_static_cache_gives_the_table_of_a_growing_one(filled):
    """Its empty slots were tokens, and ids were refused: "called 8 times with different texts"."""
    model, ids = llama(), some_ids()
    real = torch.ones_like(ids)
    if filled:
        real[0, :3] = 0
    growing, out = generated(model, ids, attention_mask=real)
    static, same = generated(model, ids, attention_mask=real, **STATIC)
    assert torch.equal(out, same)
    assert static[static.layers[0], 1].shape[3] == 16
    assert_same_tables(static.heads(), growing.heads())
    assert_same_tables(static.heads(out), growing.heads(out))
    assert_same_tables(static.heads(out[:, :-1]), growing.heads(out))
    assert_same_tables(static.heads(out, attention_mask=real), growing.heads(out))
    told = static.heads(out.tolist(), attention_mask=real.tolist())
    assert_same_tables(told, growing.heads(out))


@pytest.mark.parametrize("window", [4, 12])
@pytest.mark.parametrize("options", [{}, STATIC], ids=["growing", "static"])
def test_a_window_that_lets_keys_go_gives_the_table_of_one_pass(window, options):
    """Key 0 of such a map is not the first token, and ids were refused."""
    model = mistral(window)
    seen, out = generated(model, some_ids(), **options)
    with torch.no_grad(), watch(model) as once:
        model(out[:, :-1])
    assert seen[seen.layers[0]].shape[3] == window
    assert once[once.layers[0]].shape[3] == 16
    assert_same_tables(seen.heads(), once.heads())
    assert_same_tables(seen.heads(out), once.heads(out[:, :-1]))


@pytest.mark.parametrize("case", ["static", "window", "static window"])
def test_pages_show_one_text(case):
    """Only the last call was shown, or its keys stood in the columns of others."""
    model = llama() if case == "static" else mistral(4)
    seen, out = generated(model, some_ids(), **(STATIC if "static" in case else {}))
    with torch.no_grad(), watch(model) as once:
        model(out[:, :-1])
    tokens = [f"w{i}" for i in range(16)]
    for mine, told in zip(
        seen.page(tokens=tokens, batch=1).layers, once.page(tokens=tokens, batch=1).layers,
        strict=True,
    ):  # fmt: skip
        assert (mine.rows, mine.columns) == (told.rows, told.columns)
        torch.testing.assert_close(torch.tensor(mine.weights), torch.tensor(told.weights))
        assert (mine.hidden == told.hidden).all()
        assert mine.patterns == told.patterns


def test_texts_that_do_not_go_on():
    """Queries that do not follow what was read, or keys that are others, are another text."""
    seen = Seen()
    q, k = torch.randn(1, 1, 12, 4), torch.randn(1, 1, 12, 4)
    seen.add("a", AttentionMap(q, k, Mask.causal()))
    seen.add("a", AttentionMap(q[:, :, :1], torch.randn(1, 1, 4, 4), Mask.causal()))
    with pytest.raises(ValueError, match=r"ids: expected one id per key, \(batch=1, keys=4\)"):
        seen.heads(torch.zeros(1, 15, dtype=torch.int64))
    assert seen.heads(torch.zeros(1, 12, dtype=torch.int64)).rows[0].same_token is not None


# Encoder, decoder, and attention between them.

ENCODER, DECODER, CROSS = (
    "encoder.block.1.layer.0.SelfAttention",
    "decoder.block.1.layer.0.SelfAttention",
    "decoder.block.1.layer.1.EncDecAttention",
)


def read_by_t5(tokens, decoder_tokens, mask=None, layers=None):
    """The encoder reads one token again and again, the decoder each token once."""
    enc, dec = torch.full((1, tokens), 7), torch.arange(20, 20 + decoder_tokens)[None]
    enc = enc if mask is None else dec.flip(1)
    model = t5()
    with torch.no_grad(), watch(model, layers=layers) as seen:
        model(input_ids=enc, decoder_input_ids=dec, attention_mask=mask)
    return seen, enc, dec


def row_of(table, layer):
    return next(row for row in table.rows if row.layer == layer)


@pytest.mark.parametrize("sizes", [(12, 7), (7, 12), (12, 11), (11, 12)])
def test_ids_belong_to_the_layers_that_read_so_many(sizes):
    """The decoder was measured with the encoder's ids: same_token 0.81, and nothing repeats."""
    seen, enc, dec = read_by_t5(*sizes)
    table = seen.heads(enc)
    assert row_of(table, ENCODER).same_token > 0
    assert row_of(table, DECODER).same_token is row_of(table, DECODER).induction is None
    assert row_of(table, DECODER).previous is not None
    table = seen.heads(dec)
    assert row_of(table, DECODER).same_token is None  # every token is new
    assert row_of(table, ENCODER).same_token is None
    dec[0, -1] = dec[0, 0]
    table = seen.heads(dec)
    assert row_of(table, DECODER).same_token > 0
    assert row_of(table, ENCODER).same_token is None


@pytest.mark.parametrize("sizes", [(12, 7), (7, 12), (9, 9)])
def test_cross_attention_has_no_token_before(sizes):
    """Queries and keys are different texts, also where there are as many of both."""
    seen, enc, _ = read_by_t5(*sizes)
    for table in (seen.heads(), seen.heads(enc) if sizes[0] != sizes[1] else seen.heads()):
        row = row_of(table, CROSS)
        assert (row.previous, row.distance, row.same_token, row.induction) == (None,) * 4
        m = seen[CROSS]
        assert row.sink == pytest.approx(float(m.sink()[0, row.head].mean()), abs=1e-6)
        assert row.entropy == pytest.approx(float(m.entropy()[0, row.head].mean()), abs=1e-6)
        assert "away" not in row.looks_at
        assert row_of(table, ENCODER).previous is not None
        assert row_of(table, DECODER).previous is not None


def test_encoder_and_decoder_of_one_length():
    """Nobody can see whose ids they are: refused, and possible with one of the two watched."""
    seen, enc, dec = read_by_t5(9, 9)
    expected = r"%s: as many tokens were read by encoder\.block\.0.*, and by decoder\.block\.0"
    with pytest.raises(ValueError, match=expected % "ids"):
        seen.heads(enc)
    with pytest.raises(ValueError, match=expected % "attention_mask"):
        seen.heads(attention_mask=torch.ones(1, 9))
    seen, enc, _ = read_by_t5(9, 9, layers="encoder.*")
    assert row_of(seen.heads(enc), ENCODER).same_token > 0
    seen, _, dec = read_by_t5(9, 9, layers="decoder.*")
    dec[0, -1] = dec[0, 0]
    table = seen.heads(dec)
    assert row_of(table, DECODER).same_token > 0
    assert row_of(table, CROSS).same_token is None


def test_cross_attention_with_padded_memory():
    """The mask is that of the keys: queries at the same positions are no padding."""
    real = torch.arange(9)[None] < 6
    seen, _, _ = read_by_t5(9, 9, mask=real.long())
    table = seen.heads()
    for layer, queries in ((CROSS, 9), (DECODER, 9), (ENCODER, 6)):
        told = float(seen[layer].entropy()[0, 0, :queries].mean())
        assert row_of(table, layer).entropy == pytest.approx(told, abs=1e-6)


# Padding, where no token attends to itself.
