"""Watching: the maps of any model, proven against what the model itself says of its weights."""

import copy
import csv
import gc
import hashlib
import io
import json
import os
import threading
import weakref
from functools import partial

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from clearhead import AttentionMap, MultiHeadAttention, ladder
from clearhead.masks import Mask
from clearhead.watcher import CannotShow, NothingSeen, Seen, watch
from clearhead.watcher.interception import uncompiled
from tiny_checkpoints import save_words

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2]])
REAL = torch.tensor([[1] * 7 + [0] * 4, [1] * 11])
SIZES = {"vocab_size": 23, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def gpt2(**options):
    return transformers.GPT2Config(
        n_embd=12, n_layer=2, n_head=3, n_positions=64, **SIZES, **options
    )


def llama(**options):
    return transformers.LlamaConfig(
        hidden_size=24,
        intermediate_size=20,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        **SIZES,
        **options,
    )


def small(config, **sizes):
    return config(hidden_size=12, num_hidden_layers=2, num_attention_heads=3, **sizes)


MODELS = {
    "gpt2": (transformers.GPT2LMHeadModel, gpt2, {"input_ids": IDS}, ["attentions"]),
    "llama": (
        transformers.LlamaForCausalLM,
        llama,
        {"input_ids": IDS, "attention_mask": REAL},
        ["attentions"],
    ),
    "bert": (
        transformers.BertModel,
        lambda: small(transformers.BertConfig, intermediate_size=20, vocab_size=23),
        {"input_ids": IDS, "attention_mask": REAL},
        ["attentions"],
    ),
    "t5": (
        transformers.T5Model,
        lambda: transformers.T5Config(
            d_model=12, d_kv=4, d_ff=20, num_layers=2, num_heads=3, vocab_size=23
        ),
        {"input_ids": IDS, "attention_mask": REAL, "decoder_input_ids": IDS[:, :5]},
        ["encoder_attentions", "decoder_attentions", "cross_attentions"],
    ),
}


def build(cls, config, dtype=torch.float32, how="sdpa"):
    """A model with random, distinct weights, large enough for uneven attention."""
    config = copy.deepcopy(config)
    config._attn_implementation = how
    torch.manual_seed(1)
    model = cls(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Whatever a test does: no mode, no stance, no fast path switched off."""
    yield
    assert torch.overrides._get_current_function_mode() is None
    assert torch.backends.mha.get_fastpath_enabled()
    assert (uncompiled._open, uncompiled._stance) == (0, None)
    assert torch._dynamo.eval_frame._stance.stance == "default"


def hooks(model):
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_state_dict_hooks")
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)


# Proof: every weight is what the model itself computes.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", MODELS)
def test_every_weight_is_that_of_eager_attention(name, dtype):
    cls, config, inputs, kinds = MODELS[name]
    eager, fused = (build(cls, config(), dtype, how) for how in ("eager", "sdpa"))
    with torch.no_grad():
        told = eager(**inputs, output_attentions=True)
        plain = fused(**inputs)
        with watch(fused) as seen:
            watched = fused(**inputs)
    assert torch.equal(plain[0], watched[0])
    order = {"encoder_attentions": [], "decoder_attentions": [], "cross_attentions": []}
    if kinds == ["attentions"]:
        order = {"attentions": seen.layers}
    else:
        for layer in seen.layers:
            kind = "encoder" if layer.startswith("encoder.") else "decoder"
            crossing = "EncDecAttention" in layer or "encoder_attn" in layer
            order["cross_attentions" if crossing else f"{kind}_attentions"].append(layer)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    if name == "llama":  # its eager softmax is in float32 whatever the model's dtype is
        tolerance = 1e-6
    for kind in kinds:
        assert len(order[kind]) == len(told[kind]) > 0
        for layer, weights in zip(order[kind], told[kind], strict=True):
            m = seen[layer].dense()
            assert m.dtype == dtype
            assert weights.std() > 0.01, "even weights would prove nothing"
            assert_close(m, weights.to(dtype), rtol=0, atol=tolerance)


@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_generation_with_a_cache(name, filled):
    """Each step sees all keys so far, and together the steps are the map of the whole text."""
    cls, config, _, _ = MODELS[name]
    model = build(cls, config())
    ids = IDS[:, :4]
    real = torch.ones_like(ids)
    if filled:
        real[0, :2] = 0  # on the left, as generation wants it
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    plain = model.generate(ids, attention_mask=real, **options)
    with watch(model) as seen:
        text = model.generate(ids, attention_mask=real, **options)
    assert torch.equal(plain, text)
    layer = seen.layers[1]
    steps = [call for call in seen.calls if call.name == layer]
    assert [call.step for call in steps] == [0, 1, 2, 3, 4]
    sizes = [tuple(call.map.shape[2:]) for call in steps]
    assert sizes == [(4, 4), (1, 5), (1, 6), (1, 7), (1, 8)]
    assert seen[layer, 2] is steps[2].map
    assert seen[layer] is seen[layer, 4] is seen[layer, -1]

    real = torch.cat([real, torch.ones(2, 4, dtype=torch.long)], 1)
    eager = build(cls, config(), how="eager")
    positions = (real.cumsum(1) - 1).clamp_min(0)
    told = eager(
        text[:, :8], attention_mask=real, position_ids=positions, output_attentions=True
    ).attentions[1]
    for call in steps:
        queries, keys = call.map.shape[2:]
        for b in range(2):
            rows = slice(max(keys - queries, 2 if filled and b == 0 else 0), keys)
            mine = call.map[b, :, rows.start - keys + queries :]
            assert_close(mine, told[b, :, rows, :keys], rtol=0, atol=1e-5)
    assert len(seen.heads(text[:, :8]).rows) == sum(m.shape[1] for m in seen.values())


# Calls of scaled_dot_product_attention in all its forms.


class Calls(nn.Module):
    """A model that is one call."""

    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, *inputs):
        return self.call(*inputs)


def see(call, *inputs, **options):
    model = Calls(call)
    with watch(model, **options) as seen:
        model(*inputs)
    return seen["Calls"]


def qkv(*shape, keys=None):
    keys = shape[-2] if keys is None else keys
    rest = (*shape[:-2], keys, shape[-1])
    return torch.randn(shape), torch.randn(rest), torch.randn(rest)


def weights_of(*args, **kwargs):
    """The weights that the fused call itself uses: attention over one-hot values."""
    q, k, *rest = args
    one_hot = torch.eye(k.shape[-2]).expand(*k.shape[:-2], -1, -1)
    return F.scaled_dot_product_attention(q, k, one_hot, *rest, **kwargs)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": torch.arange(35).reshape(5, 7) % 3 > 0},
        {"attn_mask": torch.arange(210).reshape(2, 3, 5, 7) % 4 > 0},
        {"attn_mask": (torch.arange(105).reshape(3, 5, 7) % 4 > 0)},
        {"attn_mask": (torch.arange(14) % 5 > 0).reshape(2, 1, 1, 7).expand(2, 3, 5, 7)},
        {"attn_mask": torch.linspace(-2, 2, 35).reshape(5, 7)},
        {"attn_mask": torch.zeros(5, 7).masked_fill(torch.ones(5, 7).triu(2) > 0, -torch.inf)},
        {
            "attn_mask": torch.zeros(5, 7).masked_fill(
                torch.ones(5, 7).triu(2) > 0, torch.finfo(torch.float32).min
            )
        },
    ],
    ids=lambda options: "-".join(
        f"{k}{tuple(v.shape)}{v.dtype}" if torch.is_tensor(v) else k for k, v in options.items()
    ),
)
def test_every_argument_is_understood(options):
    q, k, v = qkv(2, 3, 5, 11, keys=7)
    m = see(lambda *x: F.scaled_dot_product_attention(*x, **options), q, k, v)
    assert_close(m.dense(), weights_of(q, k, **options), rtol=0, atol=1e-6)


def test_arguments_by_place_and_by_name():
    q, k, v = qkv(2, 3, 5, 11)
    causal = weights_of(q, k, is_causal=True)
    by_place = see(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, None, 0.0, True), q, k, v
    )
    by_name = see(
        lambda q, k, v: F.scaled_dot_product_attention(value=v, query=q, key=k, is_causal=True),
        *(q, k, v),
    )
    assert_close(by_place.dense(), causal, rtol=0, atol=1e-6)
    assert_close(by_name.dense(), causal, rtol=0, atol=1e-6)


def test_fewer_key_heads():
    q, _, _ = qkv(2, 6, 5, 11)
    _, k, v = qkv(2, 2, 5, 11)
    m = see(lambda *x: F.scaled_dot_product_attention(*x, enable_gqa=True), q, k, v)
    assert m.shape == (2, 6, 5, 5)
    assert_close(m.dense(), weights_of(q, k, enable_gqa=True), rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", [(5, 7), (2, 5, 7), (2, 3, 4, 5, 7)], ids=len)
@pytest.mark.parametrize("masked", [False, True])
def test_other_numbers_of_axes(shape, masked):
    q, k, v = qkv(*shape)
    mask = torch.arange(25).reshape(5, 5) % 3 > 0 if masked else None
    if masked and len(shape) == 3:
        mask = torch.arange(50).reshape(2, 5, 5) % 3 > 0
    if masked and len(shape) == 5:
        mask = torch.arange(75).reshape(3, 1, 5, 5) % 4 > 0
    m = see(lambda *x: F.scaled_dot_product_attention(*x, attn_mask=mask), q, k, v)
    batch, heads = {2: (1, 1), 3: (2, 1), 5: (6, 4)}[len(shape)]
    assert m.shape == (batch, heads, 5, 5)
    told = weights_of(q, k, attn_mask=mask).reshape(m.shape)
    assert_close(m.dense(), told, rtol=0, atol=1e-6)


def test_autocast_is_taken_into_account():
    """Autocast rounds queries and keys below the level at which they are seen."""
    q, k, v = qkv(1, 2, 5, 7)
    with torch.autocast("cpu", torch.bfloat16):
        m = see(F.scaled_dot_product_attention, q * 9, k, v)
    rounded = weights_of((q * 9).bfloat16().float(), k.bfloat16().float())
    assert_close(m.dense(), rounded, rtol=0, atol=1e-6)
    assert (m.dense() - weights_of(q * 9, k)).abs().max() > 1e-3


@pytest.mark.parametrize("which", ["q", "k", "mask"])
def test_tensors_that_are_overwritten_afterwards(which):
    """A later write is noticed when the map is read, and prevented by a copy."""

    def call(q, k, mask):
        F.scaled_dot_product_attention(q, k, k, attn_mask=mask)
        return q.zero_() if which == "q" else k.zero_() if which == "k" else mask.fill_(True)

    q, k, _ = qkv(1, 2, 5, 7)
    mask = torch.arange(25).reshape(5, 5) % 3 > 0
    told = weights_of(q, k, attn_mask=mask)
    given = [x.clone() for x in (q, k, mask)]
    with pytest.raises(CannotShow, match=r"overwrote the queries(.|\n)*watch\(model, copy=True\)"):
        see(call, q, k, mask)
    assert_close(see(call, *given, copy=True).dense(), told, rtol=0, atol=1e-6)


@pytest.mark.parametrize("how", ["reference", "copy", "inference"])
def test_one_mask_for_all_layers_is_kept_once(how):
    def call(q, mask):
        for _ in range(4):
            F.scaled_dot_product_attention(q, q, q, attn_mask=mask.expand(2, 2, -1, -1))
        if how != "reference":
            mask[..., 0] = False
        F.scaled_dot_product_attention(q, q, q, attn_mask=mask.expand(2, 2, -1, -1))

    model = Calls(call)
    with torch.inference_mode(how == "inference"), watch(model, copy=how == "copy") as seen:
        model(torch.randn(2, 2, 50, 3), torch.ones(1, 1, 50, 50, dtype=torch.bool).tril())
    queries = 2 * 2 * 50 * 3 * 4
    if how == "reference":
        assert seen.nbytes == queries + 50 * 50
    else:
        assert seen.nbytes == 5 * 2 * queries + 2 * 50 * 50
        assert seen["Calls", 4][0, 0, 9, 0] == 0
    assert seen["Calls", 3][0, 0, 9, 0] > 0


def test_gradients_end_at_a_map_unless_asked():
    q, k, v = (x.requires_grad_() for x in qkv(1, 2, 5, 7))
    assert not see(F.scaled_dot_product_attention, q, k, v).dense().requires_grad
    m = see(F.scaled_dot_product_attention, q, k, v, detach=False)
    found = torch.autograd.grad(m.dense()[..., 1].sum(), (q, k))
    told = torch.autograd.grad(weights_of(q, k)[..., 1].sum(), (q, k))
    assert_close(found, told)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(
    "attention",
    [
        MultiHeadAttention(6, 6, 16, 0.0, 2),
        MultiHeadAttention(6, 6, 16, 0.0, 2, kernel="blocked"),
        nn.MultiheadAttention(6, 2),
    ],
    ids=["sdpa", "blocked", "torch"],
)
def test_a_checkpointed_forward_is_seen_once(attention, reentrant):
    """It is repeated in the backward pass, which is not listened to."""

    def run(x):
        return attention(x, x, x)[0] if type(attention) is nn.MultiheadAttention else attention(x)

    model = Calls(lambda x: checkpoint(run, x, use_reentrant=reentrant))
    model.attention = attention
    with watch(model) as seen:
        model(torch.randn(1, 5, 6, requires_grad=True)).sum().backward()
    assert [(call.name, call.step) for call in seen.calls] == [("attention", 0)]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_are_refused():
    heads = torch.nested.nested_tensor([torch.randn(2, 3, 4), torch.randn(2, 5, 4)])
    with pytest.raises(TypeError, match="nested tensors have no common length"):
        see(F.scaled_dot_product_attention, heads, heads, heads)


# Our own module, PyTorch's modules, compiled models.


@pytest.mark.parametrize("kernel", ["auto", "eager", "sdpa", "blocked"])
@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 2}, {"window": 3}, {"causal": False}])
def test_our_own_module(kernel, options):
    attention = MultiHeadAttention(10, 12, 16, 0.0, 4, kernel=kernel, **options).eval()
    x, mask = torch.randn(2, 7, 10), Mask.padding([5, 7])
    plain, told = attention.with_map(x, mask=mask)
    with watch(attention) as seen:
        watched = attention(x, mask=mask)
    assert torch.equal(attention(x, mask=mask), watched)
    assert_close(watched, plain)
    assert_close(seen["MultiHeadAttention"].dense(), told.dense(), rtol=0, atol=1e-6)
    assert len(seen.calls) == 1


def test_our_module_in_training_with_dropout():
    attention = MultiHeadAttention(10, 12, 16, 0.5, 4)
    x = torch.randn(2, 7, 10)
    torch.manual_seed(5)
    plain = attention(x)
    torch.manual_seed(5)
    with watch(attention) as seen:
        assert torch.equal(plain, attention(x))
    assert_close(seen["MultiHeadAttention"].dense(), attention.with_map(x)[1].dense())


def test_our_cache_is_overwritten_and_the_map_is_not():
    attention = MultiHeadAttention(10, 12, 16, 0.0, 4).eval()
    x, cache = torch.randn(1, 6, 10), attention.new_cache(1)
    with watch(attention) as seen:
        for t in range(6):
            attention(x[:, t : t + 1], cache=cache)
        cache.reset()
        attention(torch.randn(1, 6, 10), cache=cache)
    told = attention.with_map(x)[1].dense()
    for t in range(6):
        row = seen["MultiHeadAttention", t].dense()[:, :, 0]
        assert_close(row, told[:, :, t, : t + 1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("masked", ["", "attn", "attn3", "padding", "both", "causal"])
@pytest.mark.parametrize("batched", [True, False])
def test_multihead_attention_of_torch(need_weights, masked, batched):
    attention = nn.MultiheadAttention(12, 3, batch_first=True).eval()
    x, y = torch.randn(2, 5, 12), torch.randn(2, 5 if masked == "causal" else 7, 12)
    keys = y.shape[1]
    options = {}
    if masked in ("attn", "both"):
        options["attn_mask"] = torch.arange(5 * keys).reshape(5, keys) % 3 == 2
    if masked == "attn3":
        options["attn_mask"] = torch.arange(30 * keys).reshape(6, 5, keys) % 3 == 2
    if masked in ("padding", "both"):
        options["key_padding_mask"] = torch.arange(keys) > torch.tensor([[4], [6]])
    if masked == "causal":
        options["attn_mask"] = torch.ones(5, 5, dtype=torch.bool).triu(1)
        options["is_causal"] = True
    if not batched:
        x, y = x[0], y[0]
        options = {
            k: m[:3] if k == "attn_mask" and m is not True and m.ndim == 3 else m
            for k, m in options.items()
        }
        if "key_padding_mask" in options:
            options["key_padding_mask"] = options["key_padding_mask"][0]
    told_out, told = attention(x, y, y, **options, average_attn_weights=False)
    plain, _ = attention(x, y, y, **options, need_weights=need_weights)
    with watch(attention) as outer, watch(attention) as inner:
        watched, _ = attention(x, y, y, **options, need_weights=need_weights)
    assert_close(watched, plain, rtol=0, atol=1e-6)
    assert_close(watched, told_out, rtol=0, atol=1e-6)
    for seen in (outer, inner):
        assert len(seen.calls) == 1
        m = seen["MultiheadAttention"]
        assert_close(m.dense(), told.reshape(m.shape), rtol=0, atol=1e-6)


@pytest.mark.parametrize("extra", [{"add_bias_kv": True}, {"add_zero_attn": True}])
@pytest.mark.parametrize("need_weights", [True, False])
def test_multihead_attention_with_keys_of_its_own(extra, need_weights):
    attention = nn.MultiheadAttention(12, 3, batch_first=True, **extra).eval()
    x, padding = torch.randn(2, 5, 12), torch.arange(5) > torch.tensor([[2], [4]])
    _, told = attention(x, x, x, key_padding_mask=padding, average_attn_weights=False)
    with watch(attention) as seen:
        attention(x, x, x, key_padding_mask=padding, need_weights=need_weights)
    assert_close(seen["MultiheadAttention"].dense(), told, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_transformer_encoder_of_torch():
    """In eval it takes a native fast path that no Python can look into; watched, it does not."""
    layer = nn.TransformerEncoderLayer(12, 4, 20, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x, padding = torch.randn(2, 7, 12), torch.arange(7) > torch.tensor([[4], [6]])
    with torch.no_grad():
        fast = model(x, src_key_padding_mask=padding)
        with watch(model) as seen:
            watched = model(x, src_key_padding_mask=padding)
        _, told = model.layers[0].self_attn(
            x, x, x, key_padding_mask=padding, average_attn_weights=False
        )
    assert_close(watched[~padding], fast[~padding], rtol=0, atol=1e-6)
    assert seen.layers == ["layers.0.self_attn", "layers.1.self_attn"]
    assert_close(seen["layers.0.self_attn"].dense(), told, rtol=0, atol=1e-6)


@pytest.mark.parametrize("ran_before", [False, True])
@pytest.mark.parametrize("how", ["wrapped", "in place"])
@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.slow)])
@torch.no_grad()
def test_compiled_models(ran_before, how, backend):
    torch.compiler.reset()
    plain = nn.Sequential(
        MultiHeadAttention(6, 6, 16, 0.0, 2), nn.Linear(6, 6), MultiHeadAttention(6, 6, 16, 0.0, 3)
    ).eval()
    model = copy.deepcopy(plain)
    runs = []

    def count(graph, inputs):
        runs.append(graph)
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    if how == "wrapped":
        model = torch.compile(model, backend=count)
    else:
        model.compile(backend=count)
    x = torch.randn(1, 5, 6)
    if ran_before:
        model(x)
    compiled = len(runs)
    with watch(model) as seen:
        watched = model(x)
    assert seen.layers == ["0", "2"]
    assert torch.equal(watched, plain(x))
    assert len(runs) == compiled, "watching compiles nothing"
    with watch(plain) as told:
        plain(x)
    assert torch.equal(seen["2"].dense(), told["2"].dense())
    assert_close(model(x), plain(x))
    assert len(runs) > 0
    if ran_before:
        assert len(runs) == compiled, "the compiled form is still there"


@torch.no_grad()
def test_a_compiled_model_in_a_watch_in_a_watch():
    """When the inner block ends, the outer one still needs the model uncompiled."""
    torch.compiler.reset()
    model = torch.compile(MultiHeadAttention(6, 6, 16, 0.0, 2).eval(), backend="eager")
    x = torch.randn(1, 5, 6)
    with watch(model) as outer:
        with watch(model) as inner:
            model(x)
        model(x)
    assert (len(outer.calls), len(inner.calls)) == (2, 1)


# What it costs the model: nothing that stays.


def test_no_hook_is_put_into_the_model():
    model = build(transformers.GPT2LMHeadModel, gpt2())
    before = hooks(model)
    with watch(model):
        model(IDS)
        assert hooks(model) == before
    assert hooks(model) == before


def test_an_exception_in_the_block_is_what_the_user_sees():
    model = build(transformers.GPT2LMHeadModel, gpt2())
    with pytest.raises(ZeroDivisionError), watch(model):
        _ = 1 / 0

    def fail():
        model(IDS)
        return 1 / 0

    with pytest.raises(ZeroDivisionError), watch(model, layers="no such"):
        fail()


def test_an_exception_in_the_model_leaves_nothing_behind():
    """Also from inside PyTorch's multi-head function, which is run in a special way."""
    attention = nn.MultiheadAttention(12, 3)
    with pytest.raises(AssertionError, match="embedding dimension"), watch(attention):
        F.multi_head_attention_forward(
            *(torch.randn(5, 1, 12),) * 3,
            *(13, 3, attention.in_proj_weight, attention.in_proj_bias, None, None, False, 0.0),
            *(attention.out_proj.weight, attention.out_proj.bias),
        )
    with watch(attention) as seen:
        attention(*(torch.randn(5, 1, 12),) * 3)
    assert len(seen) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_code_is_not_seen():
    class ScriptedAttention(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(x, x, x)

    model = nn.Sequential(torch.jit.script(ScriptedAttention()))
    with pytest.raises(NothingSeen, match="No attention was seen: Sequential"), watch(model):
        model(torch.randn(1, 2, 5, 4))


def test_a_model_that_ran_in_another_thread_only():
    model = build(transformers.GPT2LMHeadModel, gpt2())
    thread = threading.Thread(target=model, args=(IDS,))
    watching = watch(model)
    watching.__enter__()
    thread.start()
    thread.join()
    with pytest.raises(NothingSeen, match="only the one that opened the block is watched"):
        watching.__exit__(None, None, None)


def test_a_watch_is_used_once():
    model = Calls(lambda q: F.scaled_dot_product_attention(q, q, q))
    once = watch(model)
    with once:
        model(torch.randn(1, 1, 2, 3))
    with pytest.raises(RuntimeError, match="A watch is for one block"), once:
        pass


def test_forward_called_directly():
    attention = MultiHeadAttention(6, 6, 16, 0.0, 2)
    with (
        pytest.raises(NothingSeen, match=r"called as model\(x\), not as model\.forward\(x\)"),
        watch(attention),
    ):
        attention.forward(torch.randn(1, 5, 6))


# Choosing layers, memory.


@pytest.mark.parametrize(
    ("layers", "kept"),
    [
        ("transformer.h.1.attn", [1]),
        ("*.[02].attn", [0, 2]),
        (2, [2]),
        ([0, "*.2.attn"], [0, 2]),
        (lambda name: "1" in name, [1]),
    ],
)
def test_choosing_layers(layers, kept):
    config = gpt2()
    config.n_layer = 3
    model = build(transformers.GPT2LMHeadModel, config)
    with watch(model, layers=layers) as seen:
        model(IDS)
        model(IDS)
    assert seen.layers == [f"transformer.h.{i}.attn" for i in kept]
    assert len(seen.calls) == 2 * len(kept)


def test_layers_that_are_not_there():
    model = build(transformers.GPT2LMHeadModel, gpt2())
    with (
        pytest.raises(ValueError, match=r"nothing matched 'h.9.attn', 7") as error,
        watch(model, layers=["transformer.h.0.*", "h.9.attn", 7]),
    ):
        model(IDS)
    assert "0  transformer.h.0.attn" in str(error.value)
    assert "1  transformer.h.1.attn" in str(error.value)


@pytest.mark.parametrize(
    ("layers", "error", "message"),
    [
        (-1, ValueError, "which layer is the last is not known"),
        ([], ValueError, "an empty list selects nothing"),
        ([1.5], TypeError, "expected names, patterns, numbers or functions, got 1.5"),
    ],
)
def test_layers_that_cannot_be(layers, error, message):
    with pytest.raises(error, match=message):
        watch(nn.Linear(2, 2), layers=layers)


def test_memory_is_counted():
    """Queries, keys and values are one tensor of GPT-2, which is held as a whole."""
    model = build(transformers.GPT2LMHeadModel, gpt2())
    with watch(model) as seen:
        model(IDS, use_cache=False)
    assert seen.nbytes == 2 * 3 * IDS.numel() * 12 * 4
    assert repr(seen) == "Seen(GPT2LMHeadModel: 2 layers, 2 calls, 6.2 KiB held)"
    with watch(model, copy=True) as seen:
        model(IDS, use_cache=False)
    assert seen.nbytes == 2 * 2 * IDS.numel() * 12 * 4


def test_memory_that_torch_borrows():
    q = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 1, 3, 2)).astype("float32"))
    told = weights_of(q, q)
    assert_close(see(F.scaled_dot_product_attention, q, q, q).dense(), told)


def test_negated_views():
    z = torch.randn(1, 2, 5, 7, dtype=torch.complex64).conj()
    q, k = z.real, z.imag
    assert k.is_neg()
    assert_close(see(F.scaled_dot_product_attention, q, k, k).dense(), weights_of(q, k))


@pytest.mark.parametrize("how", ["grad", "vmap"])
def test_inside_torch_func(how):
    """The model runs as ever; its tensors cannot be kept, and reading the map says so."""

    def loss(q):
        return F.scaled_dot_product_attention(q, q, q).square().sum()

    def call(q):
        return torch.func.grad(loss)(q) if how == "grad" else torch.func.vmap(loss)(q)

    q = torch.randn(2, 3, 5, 4)
    model = Calls(call)
    expected = model(q)
    with watch(model) as seen:
        assert torch.equal(model(q), expected)
    assert len(seen.calls) == 1
    with pytest.raises(CannotShow, match=r"inside torch\.func"):
        seen["Calls"]


def test_what_was_seen_does_not_hold_the_model():
    model = build(transformers.GPT2LMHeadModel, gpt2())
    with torch.no_grad(), watch(model) as seen:
        model(IDS, use_cache=False)
    assert len(seen) == 2
    held = weakref.ref(model)
    del model
    gc.collect()
    assert held() is None
    assert seen["transformer.h.0.attn"].shape[1] == 3


def test_a_watch_ends_where_it_began():
    model = Calls(lambda q: F.scaled_dot_product_attention(q, q, q))
    watching = watch(model)
    watching.__enter__()
    errors = []

    def end():
        try:
            watching.__exit__(None, None, None)
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    assert "A watch ends in the thread that opened it" in errors[0]
    model(torch.randn(1, 2, 5, 7))
    watching.__exit__(None, None, None)


def test_offloading_copies_to_the_cpu():
    q, k, v = qkv(1, 2, 5, 7)
    m = see(F.scaled_dot_product_attention, q, k, v, offload="cpu")
    assert m.device.type == "cpu"
    assert m.queries.data_ptr() != q.data_ptr()
    with pytest.raises(ValueError, match="offload: expected \"cpu\" or None, got 'disk'"):
        watch(nn.Linear(2, 2), offload="disk")


# Nothing to see.


def test_attention_written_out():
    config = transformers.BloomConfig(hidden_size=12, n_layer=2, n_head=3, vocab_size=23)
    model = build(transformers.BloomModel, config, how="eager")
    with (
        pytest.raises(NothingSeen, match=r"called softmax in h\.0\.self_attention") as error,
        watch(model),
    ):
        model(IDS)
    assert "h.1.self_attention (BloomAttention): " in str(error.value)
    assert "written out by hand" in str(error.value)


def test_the_ladder_is_not_watched():
    module = ladder.MultiHeadAttention(6, 6, 16, 0.0, 2)
    with (
        pytest.raises(RuntimeError, match=r"MultiHeadAttention\.from_ladder") as error,
        watch(module),
    ):
        module(torch.randn(1, 5, 6))
    assert "clearhead.trace(module, x)" in str(error.value)


def test_a_model_that_did_not_run():
    with (
        pytest.raises(NothingSeen, match="Linear did not run inside the block"),
        watch(nn.Linear(2, 2)),
    ):
        pass


def test_another_model_that_ran():
    model = build(transformers.GPT2LMHeadModel, gpt2())
    with (
        pytest.raises(NothingSeen, match="2 attention calls came from outside it"),
        watch(copy.deepcopy(model)),
    ):
        model(IDS)


def test_an_attention_class_that_called_nothing_known():
    class OddAttention(nn.Linear):
        pass

    model = nn.Sequential(OddAttention(2, 2))
    with pytest.raises(NothingSeen, match=r"0 \(OddAttention\): it did not run, or"), watch(model):
        model(torch.randn(1, 2))


def test_something_that_is_no_model():
    class Pipeline:
        model = nn.Linear(2, 2)

    with pytest.raises(TypeError, match=r"got Pipeline(.|\n)*watch\(it.model\)"):
        watch(Pipeline())
    with pytest.raises(TypeError, match=r"expected a torch.nn.Module, got function"):
        watch(lambda x: x)


# Seen as a mapping.


@pytest.fixture(scope="module")
def seen():
    torch.manual_seed(0)
    model = build(transformers.GPT2LMHeadModel, gpt2())
    with torch.no_grad(), watch(model) as seen:
        model(IDS)
    return seen


def test_seen_is_a_mapping(seen):
    assert len(seen) == 2
    assert list(seen) == seen.layers
    assert "transformer.h.0.attn" in seen
    assert ("transformer.h.0.attn", 0) in seen
    assert "h.0.attn" not in seen
    assert ("transformer.h.0.attn", 1) not in seen
    assert [m.shape for m in seen.values()] == [(2, 3, 11, 11)] * 2


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("attn", "'attn' fits 2 attention layers:\n    0  transformer.h.0.attn"),
        ("transformer.h.1.atn", "Did you mean 'transformer.h.1.attn'?"),
        ("zzz", "There are:\n    0  transformer.h.0.attn\n    1  transformer.h.1.attn"),
        (2, "no attention layer is called 2."),
        (1.5, "a layer is named by a string or a number, got 1.5"),
        (("transformer.h.1.attn", 3), "was called 1 time, so 3 is not one of its calls"),
    ],
)
def test_unknown_layers(seen, key, message):
    with pytest.raises(KeyError) as error:
        seen[key]
    assert message in str(error.value)


# The table of heads.


def dense_scores(weights, ids):
    """The same scores from dense weights, in plain loops."""
    heads, tokens = weights.shape[1], weights.shape[2]
    found = []
    for h in range(heads):
        sums = {name: [] for name in ("entropy", "distance", "previous", "sink", "same", "ind")}
        for b in range(weights.shape[0]):
            for i in range(tokens):
                row = weights[b, h, i].double()
                sums["entropy"].append(float(-(row * row.clamp_min(1e-300).log()).sum()))
                sums["distance"].append(sum(float(row[j]) * abs(i - j) for j in range(tokens)))
                sums["sink"].append(float(row[0]))
                if i:
                    sums["previous"].append(float(row[i - 1]))
                copies = [j for j in range(i) if ids[b, j] == ids[b, i]]
                if copies:
                    sums["same"].append(sum(float(row[j]) for j in copies))
                    sums["ind"].append(sum(float(row[j + 1]) for j in copies))
        found.append({name: sum(values) / len(values) for name, values in sums.items()})
    return found


def test_heads_are_measured(seen):
    table = seen.heads(IDS)
    assert len(table.rows) == 6
    for layer in seen.layers:
        told = dense_scores(seen[layer].dense(), IDS)
        for head, expected in enumerate(told):
            row = next(r for r in table.rows if (r.layer, r.head) == (layer, head))
            assert row.entropy == pytest.approx(expected["entropy"], abs=1e-5)
            assert row.distance == pytest.approx(expected["distance"], abs=1e-5)
            assert row.previous == pytest.approx(expected["previous"], abs=1e-5)
            assert row.sink == pytest.approx(expected["sink"], abs=1e-5)
            assert row.same_token == pytest.approx(expected["same"], abs=1e-5)
            assert row.induction == pytest.approx(expected["ind"], abs=1e-5)


def test_the_table_without_ids(seen):
    table = seen.heads()
    assert all(row.same_token is None and row.induction is None for row in table.rows)
    assert "induction" not in str(table).splitlines()[0]
    assert str(table).count("transformer.h.1.attn") == 1
    assert max(map(len, str(table).splitlines()[:9])) < 80
    assert "<pre" in table._repr_html_()
    told = table.to_json()
    assert (told["schema"], told["model"], len(told["heads"])) == (1, "GPT2LMHeadModel", 6)
    json.dumps(told, allow_nan=False)
    rows = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert [row["head"] for row in rows] == ["0", "1", "2", "0", "1", "2"]
    assert rows[0]["induction"] == ""


def heads_of(weights, ids=None):
    """The table of a layer that has (almost exactly) these weights."""
    scores = torch.as_tensor(weights).clamp_min(1e-30).log()[None, None]
    q = torch.zeros(1, 1, scores.shape[-1], 1)
    model = Calls(lambda q: F.scaled_dot_product_attention(q, q, q, attn_mask=scores))
    with watch(model) as seen:
        model(q)
    return seen.heads(ids)


def test_what_a_head_does_in_words():
    eye = torch.eye(8)
    first = torch.zeros(8, 8)
    first[:, 0] = 1
    assert heads_of(eye.roll(-1, 1)).rows[0].looks_at == "previous token 1.00"
    assert heads_of(0.9 * first + 0.1 * eye).rows[0].looks_at == "first token 0.91"
    even = heads_of(torch.full((8, 8), 1 / 8)).rows[0]
    assert even.looks_at == "spreads over about 8 tokens, 3 positions away"
    own = heads_of(eye).rows[0]
    assert own.looks_at == "attends to itself"
    ids = torch.tensor([[1, 2, 3, 4, 1, 2, 3, 4]])
    copying = eye.roll(-4, 1)
    assert heads_of(copying, ids).rows[0].looks_at == "same token 1.00"
    assert heads_of(copying.roll(1, 1), ids).rows[0].looks_at == "after a copy 1.00"


def test_ids_that_do_not_fit(seen):
    with pytest.raises(ValueError, match=r"expected one id per key, \(batch=2, keys=11\)"):
        seen.heads(IDS[:1])
    model = build(transformers.GPT2LMHeadModel, gpt2())
    with watch(model) as twice:
        model(IDS)
        model(IDS)
    with pytest.raises(ValueError, match="called 2 times with different texts"):
        twice.heads(IDS)
    assert twice.heads().rows[0].sink == pytest.approx(seen.heads().rows[0].sink)
    with pytest.raises(ValueError, match="No attention was seen yet"):
        Seen().heads()


def test_a_table_in_another_order(seen):
    table = seen.heads()
    assert [r.sink for r in table.sorted("first").rows] == sorted([r.sink for r in table.rows])[
        ::-1
    ]
    assert table.sorted("sink") == table.sorted("first")
    assert table.sorted("same").rows == table.rows  # nobody has such a number
    with pytest.raises(ValueError, match=r"column: expected one of entropy, away, .*, got 'x'"):
        table.sorted("x")


# Files.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_saved_and_loaded(tmp_path, dtype):
    cls, config, inputs, _ = MODELS["t5"]
    model = build(cls, config(), dtype)
    with torch.no_grad(), watch(model) as seen:
        model(**inputs)
    seen.save(tmp_path / "maps.safetensors", text="the cat")
    assert [file.name for file in tmp_path.iterdir()] == ["maps.safetensors"]
    loaded = Seen.load(tmp_path / "maps.safetensors")
    assert (loaded.model, loaded.layers) == (seen.model, seen.layers)
    for mine, told in zip(loaded.calls, seen.calls, strict=True):
        assert (mine.name, mine.step) == (told.name, told.step)
        assert mine.map.queries.dtype == dtype
        assert torch.equal(mine.map.dense(), told.map.dense())
    with safetensors.safe_open(tmp_path / "maps.safetensors", framework="pt") as file:
        about = json.loads(file.metadata()["clearhead.seen"])
    assert about["schema"] == 1
    assert set(about["versions"]) == {"clearhead", "torch"}
    assert about["text_sha256"] == hashlib.sha256(b"the cat").hexdigest()


def test_chosen_heads_keep_their_numbers_in_tables_and_files(tmp_path):
    seen = Seen("Tiny")
    whole = AttentionMap(torch.randn(1, 4, 7, 3), torch.randn(1, 4, 7, 3), Mask.causal())
    seen.add("h.0", whole.select(heads=[3, 1]))
    assert [row.head for row in seen.heads().rows] == [3, 1]
    seen.save(tmp_path / "a.safetensors")
    assert Seen.load(tmp_path / "a.safetensors")["h.0"].head_numbers == (3, 1)


@pytest.mark.parametrize("umask", [0o022, 0o027])
def test_a_file_has_the_rights_of_any_new_file(seen, tmp_path, umask):
    """safetensors makes files that only their owner may read: colleagues could not."""
    before = os.umask(umask)
    try:
        for name in ("a.safetensors", "a.html", "a.svg"):
            seen.save(tmp_path / name)
            assert (tmp_path / name).stat().st_mode & 0o777 == 0o666 & ~umask, name
    finally:
        os.umask(before)


def test_masks_are_saved_by_name_and_once(tmp_path):
    attention = MultiHeadAttention(6, 6, 64, 0.0, 2, window=5)
    model = nn.Sequential(attention, copy.deepcopy(attention))
    mask = torch.ones(64, 64, dtype=torch.bool)
    shared = Calls(
        lambda q: [F.scaled_dot_product_attention(q, q, q, attn_mask=mask) for _ in "abc"]
    )
    with watch(model) as seen:
        model(torch.randn(1, 9, 6))
    seen.save(tmp_path / "a.safetensors")
    loaded = Seen.load(tmp_path / "a.safetensors")
    assert str(loaded["1"].mask) == str(seen["1"].mask)
    with watch(shared) as seen:
        shared(torch.randn(1, 1, 64, 1))
    seen.save(tmp_path / "b.safetensors")
    assert (tmp_path / "b.safetensors").stat().st_size < 2 * 64 * 64
    assert Seen.load(tmp_path / "b.safetensors").nbytes == 64 * 64 + 64 * 4


def rewrite(path, change):
    """Save the file again with other words about its maps."""
    with safetensors.safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["clearhead.seen"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  # not iterable
    change(about)
    safetensors.torch.save_file(tensors, path, {"clearhead.seen": json.dumps(about)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda about: about.update(schema=3), "written in schema 3; .* reads schemas 1 and 2"),
        (lambda about: about["calls"][0].update(q=99), "makes no sense"),
        (lambda about: about["calls"][0].pop("k"), "makes no sense"),
        (lambda about: about["calls"][0].update(mask="__import__('os')"), "makes no sense"),
        (lambda about: about["calls"][0].update(mask="('band',"), "makes no sense"),
        (lambda about: about["calls"][0].update(mask="('padding',0,'left')"), "makes no sense"),
        (lambda about: about["calls"][0].update(scale="wide"), "makes no sense"),
        (lambda about: about.pop("calls"), "makes no sense"),
    ],
)
def test_changed_files(seen, tmp_path, change, message):
    path = tmp_path / "maps.safetensors"
    seen.save(path)
    rewrite(path, change)
    with pytest.raises(ValueError, match=message):
        Seen.load(path)


def test_files_of_others(seen, tmp_path):
    path = tmp_path / "maps.safetensors"
    seen.save(path)
    whole = path.read_bytes()
    for part in (b"", whole[:7], whole[: len(whole) // 2], b"\xff" * 100):
        path.write_bytes(part)
        with pytest.raises(ValueError, match="not a whole safetensors file"):
            Seen.load(path)
    safetensors.torch.save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match=r"not one that seen.save\(\) wrote"):
        Seen.load(path)
    with pytest.raises(FileNotFoundError, match="no such file"):
        Seen.load(tmp_path / "none.safetensors")
    with pytest.raises(ValueError, match=r"got '.pt'(.|\n)*Try x.safetensors"):
        seen.save(tmp_path / "x.pt")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        seen.save(tmp_path / "none" / "x.safetensors")


# clearhead heads


WORDS = ["the", "cat", "sat", "on", "mat", "and", "dog", "ran", "to", "house"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny GPT-2 with random weights and a tokenizer of ten words."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    build(transformers.GPT2LMHeadModel, gpt2()).save_pretrained(folder)
    save_words(folder, WORDS)
    return folder


@pytest.fixture
def run(command_line, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    return partial(command_line, "heads")


def test_heads_of_a_checkpoint(folder, run, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("the cat sat on the mat and the dog ran to the house", encoding="utf-8")
    status, out, err = run("--model", folder, "--text", file, "--csv", tmp_path / "heads.csv")
    assert (status, err) == (0, f"Wrote {tmp_path / 'heads.csv'}\n")
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["head", "attends", "to"]
    assert [i for i, line in enumerate(lines) if line.startswith("h.")] == [1, 6]
    assert [line.split()[0] for line in lines[8:11]] == ["0", "1", "2"]
    assert max(map(len, lines[:11])) < 80
    rows = list(csv.DictReader((tmp_path / "heads.csv").read_text("utf-8").splitlines()))
    status, out, err = run("--model", folder, "--json", *file.read_text("utf-8").split())
    assert (status, err) == (0, "")
    told = json.loads(out)
    assert (told["schema"], told["folder"], told["tokens"], told["tokens_used"]) == (
        1,
        "tiny",
        13,
        13,
    )
    assert [str(head["entropy"]) for head in told["heads"]] == [row["entropy"] for row in rows]

    model = transformers.GPT2Model.from_pretrained(folder, attn_implementation="eager")
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(file.read_text("utf-8"))
    ids = torch.tensor([tokens["input_ids"]])
    with torch.no_grad():
        weights = model(ids, output_attentions=True).attentions[1]
    expected = dense_scores(weights, ids)[2]
    head = told["heads"][5]
    assert (head["layer"], head["head"]) == ("h.1.attn", 2)
    for mine, other in [("entropy",) * 2, ("sink",) * 2, ("induction", "ind")]:
        assert head[mine] == pytest.approx(expected[other], abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "no/such", "cat"], "no/such: no such file or folder, not in the cache"),
        (["--model", "{tmp}", "cat"], "it has no config.json"),
        (["--model", "{folder}"], "Give one text: as TEXT, or as a file"),
        (["--model", "{folder}", "cat", "--text", "x"], "not both"),
        (["--model", "{folder}", "--text", "no-such-file"], "No such file or directory"),
        (["--model", "{folder}", "--text", "{binary}"], "not text in UTF-8 (byte 3)"),
        (["--model", "{folder}", "--csv", "no/such/x.csv", "cat"], "there is no folder no/such"),
        (["--model", "{folder}", ""], "TEXT is empty"),
        (["--model", "{folder}", "cat", "--layer", "x.*"], "nothing matched 'x.*'"),
        (["--model", "{folder}", "cat", "--sort", "x"], "'x' is not one of 'entropy', 'away'"),
        (["--relations", "--sort", "away"], "--layer and --sort apply to the table of a text"),
    ],
)
def test_errors_of_heads(folder, run, tmp_path, arguments, message):
    binary = tmp_path / "binary"
    binary.write_bytes(b"cat\xff\xfe")
    names = {"folder": folder, "tmp": tmp_path, "binary": binary}
    status, out, err = run(*(argument.format(**names) for argument in arguments))
    assert (status, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def copied(folder, tmp_path, *names):
    for file in folder.iterdir():
        if file.name in names:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_a_folder_without_weights(folder, run, tmp_path):
    copied(folder, tmp_path, "config.json")
    assert "it has no weights (*.safetensors)" in run("--model", tmp_path, "cat")[2]
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert "pickles, which can run any code" in run("--model", tmp_path, "cat")[2]


def test_a_folder_with_broken_weights(folder, run, tmp_path):
    copied(folder, tmp_path, *(file.name for file in folder.iterdir()))
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:2000])
    assert "the model cannot be loaded" in run("--model", tmp_path, "cat")[2]
    tensors = safetensors.torch.load(whole)
    del tensors["transformer.h.0.attn.c_attn.weight"]
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    err = run("--model", tmp_path, "cat")[2]
    assert "1 weights of GPT2Model are not in the files, among them h.0.attn.c_attn.weight" in err


def test_a_folder_without_a_tokenizer(folder, run, tmp_path):
    copied(folder, tmp_path, "config.json", "model.safetensors")
    assert "it has no tokenizer" in run("--model", tmp_path, "cat")[2]


def test_without_transformers(folder, run, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    status, _, err = run("--model", folder, "cat")
    assert status == 2
    assert "pip install transformers" in err
