"""The fast module against the ladder, plain lists and outside witnesses; cache, files, errors."""

import io

import pytest
import torch
import torch._dynamo.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import clearhead
from clearhead import Mask, MultiHeadAttention, Rope, ShapeError, ladder
from clearhead.kernels import KERNELS
from oracles import as_tensor, gradients, multi_head, randomise

BATCH, TOKENS, D_IN, HEADS, HEAD_DIM, CONTEXT = 2, 7, 5, 3, 10, 13
D_OUT = HEADS * HEAD_DIM


def build(seed=0, dropout=0.0, **options) -> MultiHeadAttention:
    module = MultiHeadAttention(D_IN, D_OUT, CONTEXT, dropout, HEADS, **options)
    return randomise(module, seed).eval()


def random_x(tokens=TOKENS, width=D_IN, batch=BATCH):
    return torch.randn(batch, tokens, width, dtype=torch.float64)


# The same function as the readable form.


@pytest.mark.parametrize("kernel", ["auto", *KERNELS])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "size", [(2, 7, 5, 3, 11), (1, 1, 3, 1, 2), (3, 13, 8, 4, 2), (1, 63, 6, 2, 3)], ids=str
)
def test_equals_the_ladder_forward_and_gradients(kernel, bias, size):
    batch, tokens, d_in, heads, head_dim = size
    plain = ladder.MultiHeadAttention(d_in, heads * head_dim, 63, 0.0, heads, qkv_bias=bias)
    randomise(plain)
    fast = MultiHeadAttention.from_ladder(plain, kernel=kernel)
    x = random_x(tokens, d_in, batch)
    torch.testing.assert_close(fast(x), plain(x))
    torch.testing.assert_close(gradients(fast, fast, x), gradients(plain, plain, x))


def test_to_ladder_and_back():
    fast = build(qkv_bias=True)
    plain = fast.to_ladder()
    x = random_x()
    torch.testing.assert_close(plain(x), fast(x))
    torch.testing.assert_close(MultiHeadAttention.from_ladder(plain)(x), fast(x))


@settings(max_examples=120)
@given(
    tokens=st.integers(1, 9),
    groups=st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 2), (3, 1)]),
    head_dim=st.sampled_from([2, 4, 6]),
    bias=st.booleans(),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 5),
    rope=st.sampled_from([None, Rope(), Rope(base=50.0)]),
    qk_norm=st.booleans(),
    cross=st.none() | st.integers(1, 9),
    padding=st.none() | st.sampled_from(["left", "right"]),
    kernel=st.sampled_from(sorted(KERNELS)),
)
def test_every_option_and_combination_equals_lists(
    tokens, groups, head_dim, bias, causal, window, rope, qk_norm, cross, padding, kernel
):
    heads, kv_heads = groups
    module = MultiHeadAttention(
        5,
        heads * head_dim,
        9,
        0.0,
        heads,
        bias,
        num_kv_heads=kv_heads,
        causal=causal,
        window=window,
        rope=rope,
        qk_norm=qk_norm,
        kernel=kernel,
    )
    randomise(module)
    x = random_x(tokens)
    context = random_x(cross) if cross is not None and not causal else None
    keys = tokens if context is None else context.shape[1]
    lengths = [max(1, keys - 2), keys]
    mask = None if padding is None else Mask.padding(lengths, padding)

    def visible(length):
        def rule(i, j):
            here = i + keys - tokens
            seen = not causal or j <= here
            if window is not None:
                seen = seen and (here - j < window) and (causal or j - here < window)
            if padding is not None:
                seen = seen and (j < length if padding == "right" else j >= keys - length)
            return seen

        return rule

    expected = [
        multi_head(
            module,
            x[b].tolist(),
            visible(lengths[b]),
            None if context is None else context[b].tolist(),
        )
        for b in range(BATCH)
    ]
    torch.testing.assert_close(module(x, context, mask=mask), as_tensor(expected))


@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "eager"])
@pytest.mark.parametrize(
    "options",
    [
        {"num_kv_heads": 1},
        {"window": 3},
        {"causal": False, "window": 2},
        {"rope": Rope(), "qk_norm": True},
        {"num_kv_heads": 1, "window": 4, "rope": Rope(), "qk_norm": True, "qkv_bias": True},
    ],
    ids=str,
)
def test_gradients_with_options_equal_the_eager_kernel(options, kernel):
    options = {"num_heads": 4, **options}
    module = MultiHeadAttention(5, 24, 13, 0.0, **options)
    randomise(module)
    x, mask = random_x(), Mask.padding([5, 7], "left")
    module.kernel = "eager"
    expected = gradients(lambda x: module(x, mask=mask), module, x)
    module.kernel = kernel
    actual = gradients(lambda x: module(x, mask=mask), module, x)
    torch.testing.assert_close(actual, expected)


# The projections are modules and are called as such.


@pytest.mark.parametrize("without", [{0}, {1}, {2}, {0, 1}], ids=str)
def test_only_some_projections_have_a_bias(without):
    """Whisper's keys have none."""
    module = build(qkv_bias=True)
    linears = [module.W_query, module.W_key, module.W_value]
    for index in without:
        nn.init.zeros_(linears[index].bias)
    x = random_x()
    expected = module(x)
    for index in without:
        linears[index].bias = None
    torch.testing.assert_close(module(x), expected)


def test_hooks_of_projections_are_called():
    module, called = build(), []
    linears = [module.W_query, module.W_key, module.W_value]
    for linear in linears:
        linear.register_forward_hook(lambda m, *_: called.append(("forward", m)))
        linear.register_full_backward_hook(lambda m, *_: called.append(("backward", m)))
    module(random_x().requires_grad_()).sum().backward()
    assert {(when, m) for when in ("forward", "backward") for m in linears} == set(called)


# Properties.


@given(
    at=st.integers(0, 8),
    window=st.none() | st.integers(1, 4),
    kernel=st.sampled_from(sorted(KERNELS)),
)
def test_changing_a_token_leaves_earlier_outputs_untouched(at, window, kernel):
    module = build(window=window, kernel=kernel)
    x = random_x(9)
    changed = x.clone()
    changed[:, at] += 1
    difference = (module(changed) - module(x)).abs().amax((0, 2))
    assert not difference[:at].any()
    assert difference[at] > 1e-6
    if window is not None:
        assert not difference[at + window :].any()


def test_dropout_acts_in_training_only():
    module = build(dropout=0.5).train()
    x = random_x()
    assert not torch.equal(module(x), module(x))
    module.eval()
    assert torch.equal(module(x), module(x))


# Outside witnesses.


@pytest.mark.parametrize("causal", [False, True])
def test_equals_nn_multihead_attention(causal):
    theirs = randomise(nn.MultiheadAttention(D_OUT, HEADS, batch_first=True))
    ours = MultiHeadAttention(D_OUT, D_OUT, CONTEXT, 0.0, HEADS, qkv_bias=True, causal=causal)
    ours = ours.double()
    with torch.no_grad():
        for layer, weight, bias in zip(
            (ours.W_query, ours.W_key, ours.W_value),
            theirs.in_proj_weight.chunk(3),
            theirs.in_proj_bias.chunk(3),
            strict=True,
        ):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
        ours.out_proj.load_state_dict(theirs.out_proj.state_dict())
    x, lengths = random_x(width=D_OUT), [4, 7]
    mask = Mask.padding(lengths)
    combined = mask & Mask.causal() if causal else mask
    expected, _ = theirs(x, x, x, **combined.to_nn_multihead(HEADS, TOKENS))
    torch.testing.assert_close(ours(x, mask=mask), expected)


# The cache.


@settings(max_examples=80)
@given(
    chunks=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    window=st.none() | st.integers(1, 6),
    kv_heads=st.sampled_from([1, 3]),
    rope=st.sampled_from([None, Rope()]),
    static=st.booleans(),
    padded=st.booleans(),
)
def test_cached_equals_uncached(chunks, window, kv_heads, rope, static, padded):
    total = sum(chunks)
    module = MultiHeadAttention(5, 12, 32, 0.0, 3, num_kv_heads=kv_heads, window=window, rope=rope)
    randomise(module).eval()
    x = random_x(total)
    capacity = total + 3
    real = torch.ones(BATCH, capacity, dtype=torch.bool)
    real[0, : total // 2] = False
    cache = module.new_cache(BATCH, capacity, static=static)
    outputs, start = [], 0
    for size in chunks:
        seen = capacity if static else start + size
        mask = Mask.padding(real[:, :seen]) if padded else None
        outputs.append(module(x[:, start : start + size], mask=mask, cache=cache))
        start += size
    whole = module(x, mask=Mask.padding(real[:, :total]) if padded else None)
    torch.testing.assert_close(torch.cat(outputs, 1), whole)
    assert len(cache) == total


# Checkpoints.


def test_book_checkpoints_load_strictly_with_their_mask():
    plain = randomise(ladder.MultiHeadAttention(D_IN, D_OUT, CONTEXT, 0.1, HEADS, qkv_bias=True))
    file = io.BytesIO()
    torch.save(plain.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    assert "mask" in saved
    ours = MultiHeadAttention(D_IN, D_OUT, CONTEXT, 0.1, HEADS, qkv_bias=True).double()
    ours.load_state_dict(saved, strict=True)
    assert "mask" in saved  # the caller's dictionary is not changed
    x = random_x()
    torch.testing.assert_close(ours.eval()(x), plain.eval()(x))


def test_checkpoints_of_a_model_around_it_load_too():
    book = nn.Sequential(ladder.MultiHeadAttention(5, 6, 4, 0.0, 2))
    ours = nn.Sequential(MultiHeadAttention(5, 6, 4, 0.0, 2))
    ours.load_state_dict(book.state_dict(), strict=True)
    x = torch.rand(1, 4, 5)
    torch.testing.assert_close(ours(x), book(x))


def test_the_books_class_loads_ours_strictly():
    ours = build()
    plain = ladder.MultiHeadAttention(D_IN, D_OUT, CONTEXT, 0.0, HEADS).double()
    plain.load_state_dict(ours.book_state_dict(), strict=True)
    x = random_x()
    torch.testing.assert_close(plain(x), ours(x))


def test_state_dict_speaks_the_books_names_and_stores_no_mask():
    assert set(build(qkv_bias=True, qk_norm=True).state_dict()) == {
        *(f"W_{name}.{kind}" for name in ("query", "key", "value") for kind in ("weight", "bias")),
        "out_proj.weight",
        "out_proj.bias",
        "q_norm.weight",
        "k_norm.weight",
    }
    assert torch.equal(build().mask, torch.ones(13, 13, dtype=torch.float64).triu(1))
    assert not build(causal=False).mask.any()


@pytest.mark.parametrize(
    ("options", "extra"),
    [
        ({"num_kv_heads": 1}, "num_kv_heads=1"),
        ({"window": 4}, "window=4"),
        ({"causal": False}, "causal=False"),
        ({"qk_norm": True}, "qk_norm=True"),
    ],
)
def test_what_the_ladder_has_no_rung_for_raises(options, extra):
    with pytest.raises(ValueError, match=f"The ladder does not support {extra}"):
        build(**options).to_ladder()
    with pytest.raises(ValueError, match=f"The book's class does not support {extra}"):
        build(**options).book_state_dict()


def test_wrong_checkpoints_are_refused():
    ours = build()
    with pytest.raises(RuntimeError, match="Missing key"):
        ours.load_state_dict({"mask": ours.mask})


# A good citizen of PyTorch.


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_half_precision_trains(dtype, dropout):
    module = MultiHeadAttention(8, 8, 16, dropout, 2, rope=Rope(), qk_norm=True).to(dtype)
    output = module(torch.randn(2, 16, 8).to(dtype))
    output.sum().backward()
    assert output.dtype == dtype
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())


def test_autocast_is_allowed():
    module = MultiHeadAttention(8, 8, 16, 0.0, 2)
    with torch.autocast("cpu", torch.bfloat16):
        assert module(torch.randn(1, 4, 8)).dtype == torch.bfloat16


def test_meta_device_and_materialising():
    with torch.device("meta"):
        module = MultiHeadAttention(8, 8, 16, 0.1, 2, rope=Rope())
        assert module(torch.empty(2, 4, 8)).shape == (2, 4, 8)
    real = module.to_empty(device="cpu")
    real.load_state_dict(MultiHeadAttention(8, 8, 16, 0.1, 2).state_dict())
    assert real.eval()(torch.randn(2, 4, 8)).isfinite().all()


def test_context_length_costs_no_memory():
    module = MultiHeadAttention(4, 4, 10**9, 0.0, 2)
    assert not list(module.buffers())
    assert module(torch.zeros(1, 3, 4)).shape == (1, 3, 4)


@pytest.mark.parametrize(
    ("options", "training"),
    [
        ({}, False),
        ({"kernel": "blocked", "num_kv_heads": 1}, True),
        pytest.param({"dropout": 0.2}, True, marks=pytest.mark.slow),
        pytest.param({"window": 3, "rope": Rope(), "qk_norm": True}, True, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_compiles_as_one_graph_for_every_length(options, training):
    """Every length runs the same graph, and gives what the module gives."""
    torch._dynamo.reset()
    module = build(**options).train(training)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=True)
    counter = torch._dynamo.testing.CompileCounter()
    counted = torch.compile(module, fullgraph=True, backend=counter, dynamic=True)
    for tokens in (6, 9, 13):
        x = random_x(tokens)
        torch.manual_seed(1)
        expected = gradients(module, module, x)
        torch.manual_seed(1)
        torch.testing.assert_close(gradients(compiled, module, x), expected)
        counted(x)
    assert counter.frame_count == 1


# What others do with modules.


class Adapter(nn.Module):
    """As low-rank adapters are: no `weight`, the layer inside."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.down = nn.Linear(inner.in_features, 2, bias=False)
        self.up = nn.Linear(2, inner.out_features, bias=False)

    def forward(self, x):
        return self.inner(x) + self.up(self.down(x))


def test_projections_may_be_wrapped():
    module = build()
    for name in ("W_query", "W_key", "W_value"):
        setattr(module, name, Adapter(getattr(module, name)))
    module.double()
    x = random_x()
    merged = build()
    for name in ("W_query", "W_key", "W_value"):
        wrapped = getattr(module, name)
        weight = wrapped.inner.weight + wrapped.up.weight @ wrapped.down.weight
        getattr(merged, name).weight = nn.Parameter(weight)
    merged.out_proj.load_state_dict(module.out_proj.state_dict())
    torch.testing.assert_close(module(x), merged(x))
    torch.testing.assert_close(module(x, cache=module.new_cache(BATCH)), merged(x))
    with pytest.raises(ShapeError, match="x is float32, but the module's weights are float64"):
        module(x.float())


@pytest.mark.parametrize("kernel", ["auto", *KERNELS])
@pytest.mark.parametrize("options", [{}, {"window": 3, "rope": Rope(), "qk_norm": True}], ids=str)
def test_no_sequences_and_no_tokens(kernel, options):
    module = build(kernel=kernel, num_kv_heads=1, **options)
    for x in (random_x(batch=0), random_x(tokens=0), random_x(0, batch=0)):
        assert module(x).shape == (*x.shape[:2], D_OUT)
        output, weights = module.with_map(x)
        assert output.shape == (*x.shape[:2], D_OUT)
        assert weights.dense().shape == (x.shape[0], HEADS, x.shape[1], x.shape[1])


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("options", [{}, {"window": 3, "num_kv_heads": 1, "rope": Rope()}], ids=str)
def test_can_be_traced_by_torch_jit(options):
    module = build(**options)
    traced = torch.jit.trace(module, random_x())
    x = random_x(tokens=9, batch=3)
    torch.testing.assert_close(traced(x), module(x))


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("options", [{}, {"window": 3, "num_kv_heads": 1}], ids=str)
def test_with_map_compiles(options, detach):
    torch._dynamo.reset()
    module = build(**options)
    x = random_x()
    expected, weights = module.with_map(x)
    output, found = torch.compile(module.with_map, backend="aot_eager")(x, detach=detach)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(found.dense(), weights.dense())
    (output.sum() + (0 if detach else found.dense()[..., 0].sum())).backward()
    assert module.W_key.weight.grad.any()


def test_kernel_choice_is_explained():
    module = build(dropout=0.1)
    x = random_x()
    assert module.explain_kernel(x) == (
        "sdpa: PyTorch's fused kernel applies this mask without building it"
    )
    assert module.train().explain_kernel(x) == (
        "sdpa: with dropout PyTorch's CPU kernel builds queries × keys; so few are fastest that way"
    )
    long = clearhead.MultiHeadAttention(8, 8, 4096, 0.1, num_heads=2)
    assert long.explain_kernel(torch.zeros(1, 2048, 8)) == (
        "blocked: with dropout PyTorch's CPU kernel builds queries × keys; blocked does not"
    )
    assert build(kernel="eager").explain_kernel(x) == 'eager: requested with kernel="eager"'


def test_lengths_beyond_the_input_are_refused():
    module, x = build(), random_x(tokens=8, batch=2)
    mask = Mask.padding([80, 5])
    message = r"lengths of at most 8, the number of keys, got 80.\n  .*lengths.clamp\(max=8\)"
    for wrong in (mask, mask & Mask.window(3), Mask.window(3) | mask):
        with pytest.raises(ShapeError, match=message):
            module(x, mask=wrong)
    # With a cache, more tokens may follow.
    cached = module(x, mask=mask, cache=module.new_cache(batch=2))
    torch.testing.assert_close(cached, module(x, mask=Mask.padding([8, 5])))


@pytest.mark.parametrize("size", ["small", "medium", "large", "xl"])
def test_gpt2_factories(size):
    with torch.device("meta"):
        module = getattr(clearhead, f"create_gpt2_{size}_attention")()
    config = clearhead.GPT2_CONFIGS[f"gpt2-{size}"]
    assert (module.d_in, module.d_out) == (config["d_model"], config["d_model"])
    assert module.num_heads == config["num_heads"]
    assert module.head_dim == 64
    assert module.dropout.p == 0.1
    assert module.W_query.bias is not None


def test_parameter_counts_of_the_notes_corrected():
    count = sum(p.numel() for p in MultiHeadAttention(768, 768, 1024, 0.1, 12).parameters())
    assert count == 2_360_064  # not 2,359,296: out_proj has a bias
    small = clearhead.create_gpt2_small_attention()
    assert sum(p.numel() for p in small.parameters()) == 2_362_368


# Errors that teach.


def raises(error, message, function):
    with pytest.raises(error) as caught:
        function()
    assert str(caught.value) == message


@pytest.mark.parametrize("cls", [MultiHeadAttention, ladder.MultiHeadAttention])
def test_constructor_errors_word_for_word(cls):
    raises(
        ValueError,
        "d_out (1024) must be divisible by num_heads (24).\n"
        "  24 is GPT-2 medium's number of layers; it has 16 heads.",
        lambda: cls(1024, 1024, 1024, 0.1, 24),
    )
    raises(
        ValueError,
        "num_heads must be a whole number of at least 1, got 0.",
        lambda: cls(8, 8, 4, 0.1, 0),
    )
    raises(
        ValueError,
        "dropout is the probability of dropping a weight: expected 0 to 1, got 10.\n"
        "  A percentage? 10 % is 0.1.",
        lambda: cls(8, 8, 4, 10, 2),
    )
    raises(
        ValueError,
        "d_in must be a whole number of at least 1, got 0.",
        lambda: cls(0, 8, 4, 0.1, 2),
    )


@pytest.mark.parametrize("cls", [MultiHeadAttention, ladder.MultiHeadAttention])
def test_input_errors_word_for_word(cls):
    module = cls(24, 24, 6, 0.0, 2)
    raises(
        ShapeError,
        "x: expected (batch, tokens, d_in=24), got (2, 6, 25).\n"
        "  The last axis is 25, but this module was built with d_in=24.",
        lambda: module(torch.zeros(2, 6, 25)),
    )
    raises(
        ShapeError,
        "x: expected (batch, tokens, d_in=24), got (2, 24, 6).\n"
        "  Axes swapped? Try x.transpose(-2, -1).",
        lambda: module(torch.zeros(2, 24, 6)),
    )
    raises(
        ShapeError,
        "x: expected (batch, tokens, d_in=24), got (6, 24).\n"
        "  One sentence without a batch axis? Try x.unsqueeze(0).",
        lambda: module(torch.zeros(6, 24)),
    )
    raises(
        ShapeError,
        "x: expected (batch, tokens, d_in=24), got (2, 2, 6, 12).\n"
        "  Already split into heads? Pass the vectors before the split; this module does it.",
        lambda: module(torch.zeros(2, 2, 6, 12)),
    )
    raises(
        ShapeError,
        "x: expected vectors (batch, tokens, d_in=24), got int64 of shape (2, 6).\n"
        "  Token ids? Embed them first: Embedding(vocab_size, d_model, context_length)(ids).",
        lambda: module(torch.zeros(2, 6, dtype=torch.int64)),
    )
    raises(
        ShapeError,
        "x: 9 tokens, but context_length is 6.\n"
        "  Truncate the input (x[:, :6]), or build the module with context_length=9.",
        lambda: module(torch.zeros(2, 9, 24)),
    )
    raises(
        ShapeError,
        "x is float64, but the module's weights are float32.\n"
        "  Convert one of them: x.to(torch.float32) or module.to(torch.float64).",
        lambda: module(torch.zeros(2, 6, 24, dtype=torch.float64)),
    )
    raises(
        ShapeError,
        "x is on meta, but the module's weights are on cpu.\n"
        '  Move one of them: x.to("cpu") or module.to("meta").',
        lambda: module(torch.zeros(2, 6, 24, device="meta")),
    )


@pytest.mark.parametrize("cls", [MultiHeadAttention, ladder.MultiHeadAttention])
def test_values_of_another_kind_are_refused(cls):
    for heads in (4.0, True, "4"):
        with pytest.raises(ValueError, match=f"num_heads must be a whole number.*got {heads!r}"):
            cls(8, 8, 4, 0.1, heads)
    for dropout in ("0.1", True, None):
        with pytest.raises(ValueError, match=f"dropout is the .*expected 0 to 1, got {dropout!r}"):
            cls(8, 8, 4, dropout, 2)


@pytest.mark.parametrize("rope", [True, 10000.0, Rope], ids=str)
def test_rope_is_a_rope(rope):
    with pytest.raises(
        TypeError, match=r"rope: expected a clearhead.Rope or None, got .*\n.*Rope\(\)"
    ):
        MultiHeadAttention(8, 8, 4, 0.0, 2, rope=rope)


def test_option_errors_word_for_word():
    raises(
        ValueError,
        "num_heads (6) must be divisible by num_kv_heads (4).\n"
        "  Each key head serves the same number of query heads.",
        lambda: MultiHeadAttention(12, 12, 4, 0.0, 6, num_kv_heads=4),
    )
    raises(
        ValueError,
        "rope rotates pairs of numbers: head_dim must be even, got 3 (d_out 6 / num_heads 2).",
        lambda: MultiHeadAttention(6, 6, 4, 0.0, 2, rope=Rope()),
    )
    raises(
        ValueError,
        'kernel must be one of "auto", "eager", "sdpa", "blocked", got \'flash\'.',
        lambda: MultiHeadAttention(6, 6, 4, 0.0, 2, kernel="flash"),
    )
    raises(
        ValueError,
        "window must be a whole number of at least 1, got 0.",
        lambda: MultiHeadAttention(6, 6, 4, 0.0, 2, window=0),
    )
    x = torch.zeros(2, 3, 6)
    raises(
        ValueError,
        "context: a causal module cannot attend to another sequence, whose positions are "
        "unrelated to those of x.\n  Build it with causal=False.",
        lambda: MultiHeadAttention(6, 6, 4, 0.0, 2)(x, x),
    )
    raises(
        ShapeError,
        "context: expected the batch of x (2), got 1.",
        lambda: MultiHeadAttention(6, 6, 4, 0.0, 2, causal=False)(x, x[:1]),
    )
    raises(
        TypeError,
        "mask: expected a clearhead.Mask, got a tensor: float32 (2, 3).\n"
        "  Wrap a tensor: Mask.padding(real) for (batch, tokens), Mask.custom(may_attend) for "
        "(queries, keys); True means may attend.\n"
        "  Added to the scores (0 and -inf)? Mask.custom(mask == 0).",
        lambda: MultiHeadAttention(6, 6, 4, 0.0, 2)(x, mask=torch.ones(2, 3)),
    )
