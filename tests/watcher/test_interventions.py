"""ablate and knockout, against models in which the same is written out by hand."""

import copy

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from torch.testing import assert_close

from clearhead import GPT2, MultiHeadAttention, ablate, knockout, watch

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2]])
REAL = torch.tensor([[0] * 4 + [1] * 7, [1] * 11])
FLEX_WARNS = pytest.mark.filterwarnings("ignore::UserWarning")  # slow without the compiler


def build(name, how="sdpa"):
    torch.manual_seed(1)
    if name == "gpt2":
        config = transformers.GPT2Config(
            n_embd=12, n_layer=2, n_head=3, n_positions=64, vocab_size=23
        )
        cls = transformers.GPT2LMHeadModel
    else:
        config = transformers.LlamaConfig(
            hidden_size=32, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=23,
        )  # fmt: skip
        cls = transformers.LlamaForCausalLM
    config._attn_implementation = how
    model = cls(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def edited_eager(name, edit_weights=None, edit_context=None):
    """The eager model, with its attention written out and changed by hand in one layer."""
    model = build(name, "eager")

    def attention(module, query, key, value, attention_mask, scaling=None, **options):
        group = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(group, 1) for x in (key, value))
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        if attention_mask is not None:
            scores = scores + attention_mask
        if edit_weights is not None and module.layer_idx == 1:
            scores = edit_weights(scores)
        context = (scores.softmax(-1).nan_to_num(0.0) @ value).transpose(1, 2)
        if edit_context is not None and module.layer_idx == 1:
            context = edit_context(context)
        return context, None

    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    transformers.AttentionInterface.register("by-hand", attention)
    AttentionMaskInterface.register("by-hand", eager_mask)
    try:
        model.config._attn_implementation = "by-hand"
        with torch.no_grad():
            return model(IDS, attention_mask=REAL).logits
    finally:
        transformers.AttentionInterface._global_mapping.pop("by-hand")
        AttentionMaskInterface._global_mapping.pop("by-hand")


CASES = [("gpt2", "eager"), ("gpt2", "sdpa")]
CASES += [("llama", how) for how in ("eager", "sdpa", "flex_attention")]
LAYER = {"gpt2": "h.1", "llama": "layers.1"}


def agree(found, told):
    """At real tokens: what a model computes at padding differs between its implementations."""
    real = REAL.bool()
    assert_close(found[real], told[real], rtol=0, atol=2e-5)


@FLEX_WARNS
@pytest.mark.parametrize("to", ["zero", "mean", "tensor"])
@pytest.mark.parametrize(("name", "how"), CASES)
@torch.no_grad()
def test_ablate(uncompiled_flex, name, how, to):
    model = build(name, how)
    plain = model(IDS, attention_mask=REAL).logits
    width = {"gpt2": 4, "llama": 8}[name]
    given = torch.randn(2, width) if to == "tensor" else to

    def edit(context):
        heads = [0, 2]
        mean = context[REAL.bool()][:, heads].mean(0)  # padding left out
        value = {"zero": 0.0, "mean": mean, "tensor": given}[to]
        context = context.clone()
        context[:, :, heads] = value
        return context

    with ablate(model, {LAYER[name]: [0, 2]}, to=given), watch(model) as seen:
        found = model(IDS, attention_mask=REAL).logits
    agree(found, edited_eager(name, edit_context=edit))
    assert (found - plain).abs().max() > 1e-3
    assert torch.equal(model(IDS, attention_mask=REAL).logits, plain)
    assert len(seen) == 2


@FLEX_WARNS
@pytest.mark.parametrize("heads", [None, [1]])
@pytest.mark.parametrize(("name", "how"), CASES)
@torch.no_grad()
def test_knockout(uncompiled_flex, name, how, heads):
    model = build(name, how)
    plain = model(IDS, attention_mask=REAL).logits
    edges = torch.zeros(1, model.config.num_attention_heads, 11, 11, dtype=torch.bool)
    edges[:, slice(None) if heads is None else heads, 8:, 5:7] = True
    told = edited_eager(name, edit_weights=lambda scores: scores.masked_fill(edges, -torch.inf))
    out = knockout(model, LAYER[name], slice(8, None), [5, 6], heads=heads)
    with watch(model) as outer, out, watch(model) as inner:
        found = model(IDS, attention_mask=REAL).logits
    agree(found, told)
    assert (found - plain).abs().max() > 1e-3
    assert torch.equal(model(IDS, attention_mask=REAL).logits, plain)
    for seen in (outer, inner):
        weights = seen[1].dense()
        assert not weights[edges.expand_as(weights)].any()
        assert (weights[~edges.expand_as(weights)] > 0).any()
        assert_close(weights[1].sum(-1), torch.ones_like(weights[1, :, :, 0]))


@FLEX_WARNS
@pytest.mark.parametrize(("name", "how"), CASES)
@torch.no_grad()
def test_a_query_that_may_attend_to_nothing(uncompiled_flex, name, how):
    """It gets zeros, as everywhere in Clearhead, and its map says so."""
    model = build(name, how)
    edges = torch.zeros(1, 1, 11, 11, dtype=torch.bool)
    edges[..., 4, :5] = True

    def edit(context):
        context = context.clone()
        context[:, 4] = 0.0
        return context

    with knockout(model, LAYER[name], 4, slice(0, 5)), watch(model) as seen:
        found = model(IDS, attention_mask=REAL).logits
    agree(found, edited_eager(name, edit_context=edit))
    assert not seen[1].dense()[:, :, 4].any()


@torch.no_grad()
def test_both_together_and_in_any_order():
    model = build("llama")
    results = []
    for order in (0, 1):
        blocks = [lambda: ablate(model, {0: [1]}), lambda: knockout(model, 1, 10, 0)]
        one, other = blocks if order else reversed(blocks)
        with one(), other(), watch(model) as seen:
            results.append(model(IDS).logits)
        assert not seen[1].dense()[:, :, 10, 0].any()
    assert torch.equal(*results)


@pytest.mark.parametrize("kernel", ["eager", "sdpa", "blocked"])
@torch.no_grad()
def test_our_own_gpt2(kernel):
    torch.manual_seed(2)
    config = {
        "vocab_size": 23, "context_length": 16, "d_model": 12, "num_heads": 3, "num_layers": 2,
        "dropout": 0.0, "qkv_bias": True,
    }  # fmt: skip
    model = GPT2(config).eval()
    for parameter in model.parameters():
        parameter.normal_(std=0.3)
    for block in model.blocks:
        block.attention.kernel = kernel
    attention = model.blocks[1].attention
    plain = model(IDS)
    width = 4
    weight = attention.out_proj.weight.clone()
    attention.out_proj.weight[:, width : 2 * width] = 0  # head 1 by hand
    told = model(IDS)
    attention.out_proj.weight.copy_(weight)
    with ablate(model, {"blocks.1": 1}):
        assert_close(model(IDS), told, rtol=0, atol=1e-6)
    with knockout(model, 1, 7, [2, 3], heads=[0]), watch(model) as seen:
        found = model(IDS)
    assert not seen[1].dense()[:, 0, 7, 2:4].any()
    assert (seen[1].dense()[:, 1, 7, 2:4] > 0).all()
    assert_close(found[:, :7], plain[:, :7])
    assert (found[:, 7] - plain[:, 7]).abs().max() > 1e-4


@pytest.mark.parametrize("need_weights", [True, False])
@torch.no_grad()
def test_nn_multihead_attention(need_weights):
    attention = nn.MultiheadAttention(12, 3, batch_first=True).eval()
    x, padding = torch.randn(2, 5, 12), torch.arange(5) > torch.tensor([[2], [4]])
    options = {"key_padding_mask": padding, "average_attn_weights": False}
    _, weights = attention(x, x, x, **options)
    v = F.linear(x, attention.in_proj_weight[24:], attention.in_proj_bias[24:])
    v = v.unflatten(-1, (3, 4)).transpose(1, 2)

    def output(weights, heads=(0, 1, 2)):
        context = torch.zeros(2, 5, 3, 4)
        context[:, :, heads] = (weights @ v).transpose(1, 2)[:, :, heads]
        return attention.out_proj(context.flatten(2))

    assert_close(output(weights), attention(x, x, x, **options)[0])
    with ablate(attention, {0: [1]}):
        found, _ = attention(x, x, x, **options, need_weights=need_weights)
    assert_close(found, output(weights, (0, 2)))
    cut = weights.clone()
    cut[:, :, 2:4, 0] = 0
    cut = cut / cut.sum(-1, keepdim=True)
    with knockout(attention, 0, [2, 3], 0), watch(attention) as seen:
        found, shown = attention(x, x, x, **options, need_weights=need_weights)
    assert_close(found, output(cut))
    assert_close(seen[0].dense(), cut)
    if need_weights:
        assert_close(shown, cut)


def test_fused_calls_of_other_models():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.Identity()

        def forward(self, q, k, v, mask=None):
            return F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)

    torch.manual_seed(0)
    model, (q, k, v) = Model(), torch.randn(3, 2, 3, 5, 4, dtype=torch.float64)
    visible = torch.ones(5, 5, dtype=torch.bool).tril()
    keep = visible.clone()
    keep[3, 1] = False
    expected = ((q @ k.mT / 2).masked_fill(~keep, -torch.inf).softmax(-1)) @ v
    additive = torch.zeros(5, 5, dtype=torch.float64).masked_fill(~visible, -torch.inf)
    for mask in (None, visible, additive):
        with knockout(model, 0, 3, 1):
            assert_close(model(q, k, v, mask), expected)
        with ablate(model, {0: 2}):
            found = model(q, k, v, mask)
        assert not found[:, 2].any()
        assert found[:, :2].all()


@torch.no_grad()
def test_generation_with_a_cache():
    """Positions are those of the text: the knocked-out key stays out at every later step."""
    model = build("llama")
    options = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with knockout(model, "*", slice(3, None), 1), watch(model) as seen:
        text = model.generate(IDS[:1, :5], **options)
    with knockout(model, "*", slice(3, None), 1), watch(model) as once:
        model(text[:, :-1])
    steps = [call.map for call in seen.calls if call.name == seen.layers[1]]
    whole = once[1].dense()
    for m in steps:
        queries, keys = m.shape[2:]
        assert_close(m.dense(), whole[:, :, keys - queries : keys, :keys], rtol=0, atol=1e-5)
    assert not whole[:, :, 3:, 1].any()


@torch.no_grad()
def test_the_mean_of_one_token():
    model = build("llama")
    with pytest.raises(ValueError, match="over one token"), ablate(model, {1: 0}, to="mean"):
        model(IDS[:1, :1])


@pytest.mark.parametrize(
    ("queries", "keys"), [(slice(6, 9), slice(2, 5)), (slice(11, 14), [1, 12]), (-1, -2)]
)
@torch.no_grad()
def test_knockout_in_a_cache_of_fixed_size(queries, keys):
    """Empty slots after the last token do not count as positions."""
    model = build("llama", "sdpa")
    found = []
    for cache in ("static", "dynamic"):
        with knockout(model, "*", queries, keys):
            result = model.generate(
                IDS, attention_mask=REAL, max_new_tokens=5, do_sample=False, eos_token_id=None,
                pad_token_id=0, cache_implementation=cache, output_logits=True,
                return_dict_in_generate=True,
            )  # fmt: skip
        found.append(torch.stack(result.logits))
    assert_close(found[0], found[1], rtol=0, atol=1e-4)


@torch.no_grad()
def test_knockout_in_cross_attention():
    """Queries count from the first query, although there are more keys."""
    torch.manual_seed(2)
    config = transformers.BartConfig(
        d_model=12, encoder_layers=1, decoder_layers=1, encoder_attention_heads=3,
        decoder_attention_heads=3, encoder_ffn_dim=7, decoder_ffn_dim=7, vocab_size=23,
        max_position_embeddings=32,
    )  # fmt: skip
    model = transformers.BartModel(config).eval()
    mask = torch.tensor([[1] * 11, [1] * 9 + [0] * 2])  # of the keys
    for tokens in (1, 5):
        with watch(model) as plain:
            model(IDS, attention_mask=mask, decoder_input_ids=IDS[:, :tokens])
        cut = {"queries": slice(0, 1), "keys": [2, 3, 5]}
        with knockout(model, "encoder_attn", **cut), watch(model) as seen:
            model(IDS, attention_mask=mask, decoder_input_ids=IDS[:, :tokens])
        expected = plain["encoder_attn"].dense()
        expected[:, :, 0, [2, 3, 5]] = 0
        expected /= expected.sum(-1, keepdim=True)
        assert_close(seen["encoder_attn"].dense(), expected)


@pytest.mark.parametrize(
    ("block", "error", "message"),
    [
        (lambda m: ablate(m, {"layers.0": [4]}), ValueError, r"layers\.0.* has the heads 0 to 3"),
        (lambda m: ablate(m, {0: 0}, to="nothing"), ValueError, "to: expected"),
        (lambda m: ablate(m, {}), TypeError, "heads: expected the numbers of the heads for each"),
        (lambda m: ablate(m, ["layers.0"]), TypeError, r"heads: .* got \['layers.0'\]"),
        (lambda m: ablate(m, {0: []}), TypeError, r"heads: expected a number .* got \[\]"),
        (lambda m: ablate(m, {0: None}), TypeError, "heads: expected a number .* got None"),
        (
            lambda m: ablate(m, {0: [0, 1]}, to=torch.rand(5)),
            ValueError,
            r"value_dim\) = \(2, 11, 2, 8\), got \(5,\)",
        ),
        (lambda m: ablate(m, {"layers.9": 0}), ValueError, "heads: nothing matched 'layers"),
        (lambda m: knockout(m, "self_attn", 0, 0), ValueError, "layer: 'self_attn' fits more"),
        (lambda m: knockout(m, 0, -12, 0), ValueError, "queries: .* has 11 queries, got -12"),
        (lambda m: knockout(m, 0, 11, 0), ValueError, r"no edge was removed(.|\n)*had 11 queries"),
        (lambda m: knockout(m, 0, 3, slice(20, 30)), ValueError, "a key of keys=slice.20, 30"),
        (lambda m: ablate("gpt2", {0: 0}), TypeError, r"expected a torch\.nn\.Module, got str"),
        (lambda m: knockout(nn.Linear(2, 2), 0, 0, 0), RuntimeError, "made no attention call"),
    ],
)
def test_wrong_arguments(block, error, message):
    model = build("llama")
    with pytest.raises(error, match=message), block(model):
        model(IDS)


@pytest.mark.parametrize(
    "block", [lambda m: ablate(m, {0: 0}), lambda m: knockout(m, 0, 4, [1, 2])]
)
def test_gradient_checkpointing_is_refused(block):
    model = build("llama").train()
    model.activation_checkpointing_enable()
    with (
        pytest.raises(ValueError, match="cannot be combined with gradient checkpoint"),
        block(model),
    ):
        model(IDS).logits.sum().backward()
    with torch.no_grad(), block(model.eval()):
        model(IDS)


def test_nothing_is_left_behind():
    attention = MultiHeadAttention(6, 6, 16, 0.0, 2).eval()
    x = torch.randn(1, 5, 6)
    plain, before = attention(x), copy.deepcopy(attention)

    def fail():
        attention(x)
        return 1 / 0

    with pytest.raises(ZeroDivisionError), ablate(attention, {0: 0}):
        fail()
    assert torch.equal(attention(x), plain)
    assert vars(attention).keys() == vars(before).keys()
