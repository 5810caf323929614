"""Costs: published totals, Hugging Face's own models and torch's own counter as witnesses."""

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

import gpt2_others
from clearhead.configs import GPT2_CONFIGS, GPT3_CONFIG, find_config
from clearhead.costs import flops, memory, parameters
from gpt2_others import hugging_face_config

# No two sizes are equal, so that none can be confused with another: heads 3, head_dim 4.
TINY = {**gpt2_others.TINY, "vocab_size": 101, "context_length": 13, "d_model": 12}


def hugging_face_model(config):
    sizes = hugging_face_config(config, attn_implementation="eager")
    return transformers.GPT2LMHeadModel(sizes).eval()


def test_gpt3_has_175_billion_parameters():
    assert round(parameters(GPT3_CONFIG)["total"] / 1e9) == 175


@pytest.mark.parametrize("name", GPT2_CONFIGS)
def test_parts_equal_hugging_face(name):
    counted = parameters(GPT2_CONFIGS[name])
    with torch.device("meta"):
        model = hugging_face_model(GPT2_CONFIGS[name])

    def count(part):
        return sum(weight.numel() for weight in part.parameters())

    body = model.transformer
    witness = {
        "token_embedding": count(body.wte),
        "position_embedding": count(body.wpe),
        "attention": sum(count(block.attn) for block in body.h),
        "feed_forward": sum(count(block.mlp) for block in body.h),
        "layer_norms": sum(count(block.ln_1) + count(block.ln_2) for block in body.h),
        "final_norm": count(body.ln_f),
        "total": count(model),
        "attention_per_layer": count(body.h[0].attn),
    }
    assert counted == witness


@pytest.mark.parametrize(("qkv_bias", "count"), [(False, 2_360_064), (True, 2_362_368)])
def test_attention_768_wide(qkv_bias, count):
    """Notes say 2,359,296, which forgets the bias of the output projection."""
    config = {**find_config("gpt2-small"), "qkv_bias": qkv_bias}
    assert parameters(config)["attention_per_layer"] == count


@pytest.mark.parametrize("qkv_bias", [False, True])
def test_fewer_kv_heads_count_as_real_layers_do(qkv_bias):
    width, kv_width = 12, 4
    layers = [
        torch.nn.Linear(width, width, bias=qkv_bias),
        torch.nn.Linear(width, kv_width, bias=qkv_bias),
        torch.nn.Linear(width, kv_width, bias=qkv_bias),
        torch.nn.Linear(width, width),
    ]
    count = sum(weight.numel() for layer in layers for weight in layer.parameters())
    config = {**TINY, "qkv_bias": qkv_bias}
    assert parameters(config, num_kv_heads=1)["attention_per_layer"] == count


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kv_heads", [1, 3])
def test_memory_equals_that_of_real_tensors(dtype, kv_heads):
    batch, tokens, layers, heads, head_dim = 5, 7, 2, 3, 4

    def mib(*shape, dtype=dtype):
        return torch.empty(shape, dtype=getattr(torch, dtype)).nbytes / 2**20

    cost = memory(TINY, batch=batch, tokens=tokens, dtype=dtype, num_kv_heads=kv_heads)
    total = parameters(TINY, num_kv_heads=kv_heads)["total"]
    row = "float64" if dtype == "float64" else "float32"
    assert cost.parameters == mib(total)
    assert cost.kv_cache == mib(layers, 2, batch, kv_heads, tokens, head_dim)
    assert cost.map_one_layer == mib(batch, heads, tokens, tokens)
    assert cost.map_all_layers == mib(layers, batch, heads, tokens, tokens)
    assert cost.lse_one_layer == mib(batch, heads, tokens, dtype=row)
    assert cost.lse_all_layers == mib(layers, batch, heads, tokens, dtype=row)


def test_flops_equal_what_torch_counts_in_hugging_face():
    batch, tokens = 5, 7
    model = hugging_face_model(TINY)
    ids = torch.randint(TINY["vocab_size"], (batch, tokens))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(ids, use_cache=False)
    seen = {
        part: sum(operations.values()) for part, operations in counter.get_flop_counts().items()
    }
    layers = range(TINY["num_layers"])
    root = "GPT2LMHeadModel"
    attention = sum(seen[f"{root}.transformer.h.{i}.attn"] for i in layers)
    work = flops(TINY, batch=batch, tokens=tokens)
    assert work.projections + work.scores + work.weighted_sum == attention
    assert work.feed_forward == sum(seen[f"{root}.transformer.h.{i}.mlp"] for i in layers)
    assert work.head == seen[f"{root}.lm_head"]
    assert work.total == counter.get_total_flops()


def test_causal_counts_the_pairs_below_the_diagonal():
    batch, tokens = 5, 7
    work = flops(TINY, batch=batch, tokens=tokens)
    pairs = sum(1 for query in range(tokens) for key in range(tokens) if key <= query)
    assert work.scores_causal * tokens**2 == work.scores * pairs
    assert work.weighted_sum_causal == work.scores_causal
    saved = work.scores + work.weighted_sum - work.scores_causal - work.weighted_sum_causal
    assert work.total - work.total_causal == saved > 0


@pytest.mark.parametrize("cost", [memory, flops])
def test_numbers_that_are_not_positive(cost):
    with pytest.raises(ValueError, match=r"tokens: expected 1 or more, got 0.\n.*length \(13\)"):
        cost(TINY, tokens=0)
    with pytest.raises(ValueError, match="batch: expected 1 or more, got -2"):
        cost(TINY, batch=-2)


def test_unknown_dtype_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"'fp8'.\n.*float64, float32, bfloat16, float16"):
        memory(TINY, dtype="fp8")


@pytest.mark.parametrize("cost", [parameters, memory, flops])
def test_heads_that_do_not_fit(cost):
    config = {**find_config("gpt2-medium"), "num_heads": 24}
    with pytest.raises(ValueError, match=r"\(1024\).*\(24\).\n  24 is GPT-2 medium's number of l"):
        cost(config)
    with pytest.raises(ValueError, match=r"d_model \(12\) must be divisible by num_heads \(0\)"):
        cost({**TINY, "num_heads": 0})
    with pytest.raises(ValueError, match=r"num_heads \(3\).*num_kv_heads \(2\).\n.*one of 1, 3"):
        cost(TINY, num_kv_heads=2)
