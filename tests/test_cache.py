"""The cache: static as dynamic, whatever the mask; its gradients, its dtypes, its limits."""

import copy

import pytest
import torch
import torch._dynamo.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from clearhead import KVCache, Mask, MultiHeadAttention, Rope, ShapeError
from clearhead.kernels import attend
from oracles import randomise

BATCH, TOKENS, D_IN, HEADS, HEAD_DIM, CONTEXT = 2, 7, 5, 3, 4, 13


def build(**options) -> MultiHeadAttention:
    module = MultiHeadAttention(D_IN, HEADS * HEAD_DIM, CONTEXT, 0.0, HEADS, **options)
    return randomise(module).eval()


def random_x(tokens=TOKENS, batch=BATCH):
    return torch.randn(batch, tokens, D_IN, dtype=torch.float64)


def in_parts(module, x, cache, chunks, mask=None):
    parts, start = [], 0
    for size in chunks:
        parts.append(module(x[:, start : start + size], cache=cache, mask=mask))
        start += size
    return torch.cat(parts, 1)


# A static cache is wider than what it holds; a mask that knows places must not notice.


masks = st.recursive(
    st.one_of(
        st.sampled_from(["start", "end"]).map(Mask.causal),
        st.builds(
            Mask.window, st.integers(1, 4), st.integers(0, 2), st.sampled_from(["start", "end"])
        ),
        st.builds(
            Mask.padding,
            st.lists(st.integers(1, CONTEXT), min_size=BATCH, max_size=BATCH),
            st.sampled_from(["left", "right"]),
        ),
    ),
    lambda parts: st.tuples(parts, parts, st.booleans()).map(
        lambda three: three[0] & three[1] if three[2] else three[0] | three[1]
    ),
    max_leaves=4,
)


@settings(max_examples=80)
@given(
    chunks=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    mask=masks,
    window=st.none() | st.integers(1, 4),
)
def test_static_equals_dynamic_with_masks_that_know_places(chunks, mask, window):
    """`Mask.window` was aligned to the end of the capacity, where no token was."""
    module = build(window=window)
    x = random_x(sum(chunks))
    dynamic = in_parts(module, x, module.new_cache(BATCH), chunks, mask)
    static = in_parts(module, x, module.new_cache(BATCH, static=True), chunks, mask)
    assert_close(static, dynamic)


def test_new_tokens_may_end_in_padding():
    module, x = build(), random_x()
    cache = module.new_cache(BATCH)
    module(x[:, :4], cache=cache)
    new = module(x[:, 4:], cache=cache, mask=Mask.padding([5, 7]))
    assert_close(new[0, :1], module(x[:1, :5])[0, 4:])


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("options", [{}, {"rope": Rope(), "num_kv_heads": 1}], ids=str)
def test_a_batch_padded_on_the_left_is_decoded_as_its_sequences_alone(static, options):
    module, x, lengths = build(**options), random_x(), torch.tensor([3, 5])
    cache = module.new_cache(BATCH, static=static)
    parts = [module(x[:, :5], cache=cache, mask=Mask.padding(lengths, side="left"))]
    for i in range(5, TOKENS):
        lengths = lengths + 1
        mask = Mask.padding(lengths, side="left")
        parts.append(module(x[:, i : i + 1], cache=cache, mask=mask))
    output = torch.cat(parts, 1)
    assert_close(output[0, 2:], module(x[:1, 2:])[0])
    assert_close(output[1], module(x[1:])[0])


def test_a_static_cache_takes_matrices_as_wide_as_its_capacity():
    module, x = build(), random_x()
    real = torch.ones(BATCH, CONTEXT, dtype=torch.bool)
    real[0, :2] = False
    whole = module(x, mask=Mask.padding(real[:, :TOKENS]))
    cache = module.new_cache(BATCH, static=True)
    assert_close(module(x, cache=cache, mask=Mask.padding(real)), whole)
    cache.reset()
    with pytest.raises(ShapeError, match=r"(?s)keys=13\), got \(2, 7\).*its whole capacity"):
        module(x, cache=cache, mask=Mask.padding(real[:, :TOKENS]))


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize(
    "mask",
    [
        Mask.padding([1, 2, 3]),
        Mask.padding(torch.ones(BATCH, 3, dtype=torch.bool)),
        Mask.custom(torch.ones(2, 5, dtype=torch.bool)),
        Mask.custom(torch.ones(1, 2, 1, 1, dtype=torch.bool)) & Mask.causal(),
    ],
    ids=["batch", "keys", "queries", "heads"],
)
def test_a_call_that_fails_leaves_the_cache_as_it_was(static, mask):
    """A retry after the error was silently wrong: the tokens were there twice."""
    module, x = build(), random_x()
    cache = module.new_cache(BATCH, static=static)
    first = module(x[:, :4], cache=cache)
    with pytest.raises(ShapeError):
        module(x[:, 4:], cache=cache, mask=mask)
    assert len(cache) == 4
    assert_close(torch.cat([first, module(x[:, 4:], cache=cache)], 1), module(x))


# Maps keep their own keys.


# Gradients.


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("options", [{}, {"rope": Rope(), "num_kv_heads": 1}], ids=str)
def test_gradients_reach_the_tokens_of_the_call_and_end_at_those_before(static, options):
    module, x = build(**options), random_x()
    with torch.no_grad():
        cache = module.new_cache(BATCH, static=static)
        module(x[:, :4], cache=cache)
    new = x[:, 4:].clone().requires_grad_()
    module(new, cache=cache).square().sum().backward()
    # The same with the tokens before as constants.
    expected = x[:, 4:].clone().requires_grad_()
    queries, keys, values, _ = module.project(torch.cat([x[:, :4], expected], 1))
    keys = torch.cat([keys[:, :, :4].detach(), keys[:, :, 4:]], 2)
    values = torch.cat([values[:, :, :4].detach(), values[:, :, 4:]], 2)
    context = attend(queries[:, :, 4:], keys, values, Mask.causal(), kernel="eager")
    module.out_proj(context.transpose(1, 2).flatten(2)).square().sum().backward()
    assert_close(new.grad, expected.grad)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_token_by_token_with_gradients_on(static, frozen):
    """It ended in "modified by an inplace operation", and the graph grew with every token."""
    module, x = build(), random_x()
    module.W_key.requires_grad_(not frozen)
    module.W_value.requires_grad_(not frozen)
    cache = module.new_cache(BATCH, static=static)
    output = in_parts(module, x, cache, [1] * TOKENS)
    assert_close(output, module(x))
    output.sum().backward()
    assert module.W_query.weight.grad.isfinite().all()
    assert not cache.keys.requires_grad
    assert torch.equal(copy.deepcopy(cache).keys, cache.keys)
    cache.reset()
    module(x, cache=cache).sum().backward()


# Dtypes and limits.


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("options", [{}, {"window": 3}, {"rope": Rope(), "qk_norm": True}], ids=str)
@pytest.mark.parametrize("grad", [False, True])
def test_cached_under_autocast(static, options, grad):
    """A static cache crashed, and qk_norm warned that its dtypes differ."""
    module = build(**options).float()
    x = random_x().float()
    with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(grad):
        cache = module.new_cache(BATCH, static=static)
        actual = in_parts(module, x, cache, [4, 1, 2])
        assert actual.dtype == torch.bfloat16
        assert_close(actual, module(x), rtol=0.02, atol=0.02)


def test_a_cache_of_another_batch_or_module_names_both_sizes():
    module = build()
    with pytest.raises(ShapeError, match=r"cache: expected batch=3, got batch=2\.\n  A cache"):
        module(random_x(), cache=module.new_cache(3))
    other = build(num_kv_heads=1).new_cache(3)
    with pytest.raises(ShapeError, match=r"expected batch=3, kv_heads=1, got batch=2, kv_heads=3"):
        module(random_x(), cache=other)


def test_what_is_no_cache_is_explained():
    module = build()
    with pytest.raises(TypeError, match=r"(?s)expected a KVCache.*new_cache\(batch=2\)"):
        module(random_x(), cache=(1, 2))
    with pytest.raises(TypeError, match=r"(?s)got False.*cache=None"):
        module(random_x(), cache=False)
    with pytest.raises(ValueError, match="only causal self-attention can be cached"):
        build(causal=False)(random_x(), cache=module.new_cache(BATCH))
    with pytest.raises(ValueError, match="capacity must be a whole number of at least 1, got 0"):
        KVCache(1, 1, 0, 4)


def test_a_cache_of_another_dtype_is_refused():
    module = build()
    cache = module.new_cache(BATCH)
    module.float()
    with pytest.raises(ShapeError, match="expected float64 on cpu, got float32 on cpu"):
        module(random_x().float(), cache=cache)
    assert len(cache) == 0


@pytest.mark.parametrize("static", [False, True])
def test_overflow_blames_what_is_too_small(static):
    module = build()
    small = module.new_cache(BATCH, 4, static=static)
    module(random_x(3), cache=small)
    message = r"cache: 3 cached \+ 5 new tokens, but its capacity is 4.*capacity=8"
    with pytest.raises(ShapeError, match=f"(?s){message}"):
        module(random_x(5), cache=small)
    assert len(small) == 3
    large = module.new_cache(BATCH, 100, static=static)
    module(random_x(10), cache=large)
    message = r"x: 10 cached \+ 7 new tokens, but context_length is 13.*x\[:, :3\].*=17"
    with pytest.raises(ShapeError, match=f"(?s){message}"):
        module(random_x(7), cache=large)
    module(random_x(3), cache=large)
    with pytest.raises(ShapeError, match=r"Start again \(cache.reset\(\)\)"):
        module(random_x(1), cache=large)


def test_what_is_captured_is_not_counted(monkeypatch):
    """While a CUDA graph is captured nothing is stored: the host must not count it."""
    cache = KVCache(1, 1, 4, 2, static=True)
    new = torch.ones(1, 1, 3, 2)
    monkeypatch.setattr("clearhead.cache._is_recorded", lambda x: True)
    monkeypatch.setattr("clearhead.cache.is_readable", lambda x: False)
    cache.append(new, new)
    assert cache._known() == 0
    monkeypatch.setattr("clearhead.cache._is_recorded", lambda x: False)
    cache.reset()
    cache.append(new, new)
    with pytest.raises(ShapeError, match="3 cached"):
        cache.append(new, new)


def test_a_compiled_static_cache_runs_one_graph():
    torch._dynamo.reset()
    module = build(rope=Rope())
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(module, fullgraph=True, backend=counter)
    x = random_x(12)
    with torch.no_grad():
        for prompt in (3, 5):
            cache = module.new_cache(BATCH, static=True)
            parts = [module(x[:, :prompt], cache=cache)]
            for i in range(prompt, 12):
                parts.append(compiled(x[:, i : i + 1], cache=cache, mask=Mask.window(4)))
            whole = module(x, mask=Mask.window(4))[:, prompt + 4 :]
            assert_close(torch.cat(parts, 1)[:, prompt + 4 :], whole)
    assert counter.frame_count == 1
