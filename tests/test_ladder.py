"""Every rung against plain Python lists, and the rungs against each other."""

import pytest
import torch

from clearhead.ladder import (
    CausalAttention,
    CausalSelfAttention,
    EncoderAttention,
    MultiHeadAttention,
    MultiHeadAttentionWrapper,
    SelfAttention,
    simplified_attention,
    simplified_attention_loop,
)
from clearhead.validation import ShapeError
from oracles import (
    as_tensor,
    attend,
    causal,
    columns,
    everything,
    linear,
    randomise,
    side_by_side,
)

# No two axes can be confused: all sizes are distinct.
BATCH, TOKENS, D_IN, HEADS, HEAD_DIM, CONTEXT = 2, 7, 5, 3, 11, 13
D_OUT = HEADS * HEAD_DIM


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(
        BATCH, TOKENS, D_IN, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )


JOURNEY = torch.tensor(
    [
        [0.43, 0.15, 0.89],
        [0.55, 0.87, 0.66],
        [0.57, 0.85, 0.64],
        [0.22, 0.58, 0.33],
        [0.77, 0.25, 0.10],
        [0.05, 0.80, 0.55],
    ]
)


def test_simplified_gives_the_published_context_vector():
    context = simplified_attention(JOURNEY)[1]
    torch.testing.assert_close(context, torch.tensor([0.4419, 0.6515, 0.5683]), atol=5e-5, rtol=0)


def test_simplified_equals_lists(x):
    expected = [attend(rows, rows, rows, 1.0, everything)[0] for rows in x.tolist()]
    torch.testing.assert_close(simplified_attention(x), as_tensor(expected))


def test_simplified_loop_equals_matrix_form(x):
    torch.testing.assert_close(simplified_attention_loop(x[0]), simplified_attention(x[0]))


@pytest.mark.parametrize("bias", [False, True])
def test_self_attention_equals_lists(x, bias):
    module = randomise(SelfAttention(D_IN, D_OUT, qkv_bias=bias))
    expected = []
    for rows in x.tolist():
        q, k, v = (linear(rows, layer) for layer in (module.W_query, module.W_key, module.W_value))
        expected.append(attend(q, k, v, D_OUT**-0.5, everything)[0])
    torch.testing.assert_close(module(x), as_tensor(expected))


def test_rungs_1_and_2_take_one_sentence_without_a_batch(x):
    module = randomise(SelfAttention(D_IN, D_OUT))
    torch.testing.assert_close(module(x[0]), module(x)[0])
    torch.testing.assert_close(simplified_attention(x[0]), simplified_attention(x)[0])


@pytest.mark.parametrize("bias", [False, True])
def test_causal_attention_equals_lists(x, bias):
    module = randomise(CausalAttention(D_IN, D_OUT, CONTEXT, 0.0, qkv_bias=bias))
    expected = []
    for rows in x.tolist():
        q, k, v = (linear(rows, layer) for layer in (module.W_query, module.W_key, module.W_value))
        expected.append(attend(q, k, v, D_OUT**-0.5, causal)[0])
    torch.testing.assert_close(module(x), as_tensor(expected))


def test_causal_self_attention_is_the_same_class():
    assert CausalSelfAttention is CausalAttention


def multi_head_by_lists(module, rows, visible, names=("W_query", "W_key", "W_value", "out_proj")):
    q, k, v = (linear(rows, getattr(module, name)) for name in names[:3])
    heads, weights = [], []
    for h in range(HEADS):
        part = (h * HEAD_DIM, (h + 1) * HEAD_DIM)
        context, weight = attend(
            columns(q, *part), columns(k, *part), columns(v, *part), HEAD_DIM**-0.5, visible
        )
        heads.append(context)
        weights.append(weight)
    return linear(side_by_side(heads), getattr(module, names[3])), weights


@pytest.mark.parametrize("bias", [False, True])
def test_multi_head_equals_lists(x, bias):
    module = randomise(MultiHeadAttention(D_IN, D_OUT, CONTEXT, 0.0, HEADS, qkv_bias=bias))
    expected = [multi_head_by_lists(module, rows, causal)[0] for rows in x.tolist()]
    torch.testing.assert_close(module(x), as_tensor(expected))


def test_wrapper_equals_lists(x):
    module = randomise(
        MultiHeadAttentionWrapper(D_IN, HEAD_DIM, CONTEXT, 0.0, HEADS, qkv_bias=True)
    )
    expected = []
    for rows in x.tolist():
        parts = []
        for head in module.heads:
            q, k, v = (linear(rows, layer) for layer in (head.W_query, head.W_key, head.W_value))
            parts.append(attend(q, k, v, HEAD_DIM**-0.5, causal)[0])
        expected.append(side_by_side(parts))
    torch.testing.assert_close(module(x), as_tensor(expected))


@pytest.mark.parametrize("as_bool", [False, True])
def test_encoder_equals_lists_and_returns_its_weights(as_bool):
    module = randomise(EncoderAttention(D_OUT, HEADS))
    x = torch.randn(BATCH, TOKENS, D_OUT, dtype=torch.float64)
    visible = torch.rand(TOKENS, TOKENS, generator=torch.Generator().manual_seed(4)) > 0.4
    visible |= torch.eye(TOKENS, dtype=torch.bool)
    output, attention = module(x, visible if as_bool else visible.int())
    names = ("W_q", "W_k", "W_v", "W_o")
    for b, rows in enumerate(x.tolist()):
        expected, weights = multi_head_by_lists(
            module, rows, lambda i, j: bool(visible[i, j]), names
        )
        torch.testing.assert_close(output[b], as_tensor(expected))
        torch.testing.assert_close(attention[b], as_tensor(weights))


def test_encoder_is_not_causal_by_itself():
    module = randomise(EncoderAttention(D_OUT, HEADS))
    x = torch.randn(1, TOKENS, D_OUT, dtype=torch.float64)
    changed = x.clone()
    changed[:, -1] += 1
    assert (module(x)[0] - module(changed)[0])[:, 0].abs().max() > 1e-3


@pytest.mark.parametrize("bias", [False, True])
def test_from_wrapper_is_the_same_function(x, bias):
    wrapper = randomise(MultiHeadAttentionWrapper(D_IN, HEAD_DIM, CONTEXT, 0.3, HEADS, bias)).eval()
    stacked = MultiHeadAttention.from_wrapper(wrapper)
    assert not stacked.training
    torch.testing.assert_close(stacked(x), wrapper(x))
    assert torch.equal(stacked.out_proj.weight, torch.eye(D_OUT, dtype=torch.float64))
    assert not stacked.out_proj.bias.any()


def test_one_head_is_causal_attention(x):
    single = randomise(CausalAttention(D_IN, D_OUT, CONTEXT, 0.0, qkv_bias=True))
    torch.testing.assert_close(MultiHeadAttention.from_causal(single)(x), single(x))


def test_dropout_acts_in_training_only_and_keeps_the_mean():
    module = randomise(MultiHeadAttention(D_IN, D_OUT, CONTEXT, 0.5, HEADS))
    x = torch.randn(1, TOKENS, D_IN, dtype=torch.float64)
    torch.manual_seed(0)
    draws = torch.stack([module(x) for _ in range(4000)])
    assert draws.std(0).max() > 0.01
    error = (draws.mean(0) - module.eval()(x)).abs()
    assert (error < 5 * draws.std(0) / 4000**0.5).all()
    torch.testing.assert_close(module(x), module(x), atol=0, rtol=0)


@pytest.mark.parametrize(
    "build",
    [
        lambda: CausalAttention(D_IN, D_OUT, CONTEXT, 0.0),
        lambda: MultiHeadAttentionWrapper(D_IN, HEAD_DIM, CONTEXT, 0.0, HEADS),
        lambda: MultiHeadAttention(D_IN, D_OUT, CONTEXT, 0.0, HEADS),
    ],
    ids=["causal", "wrapper", "multihead"],
)
def test_from_rung_3_up_a_batch_is_asked_for_and_length_is_checked(build):
    module = build()
    with pytest.raises(ShapeError, match=r"expected \(batch, tokens, d_in=5\), got \(7, 5\)"):
        module(torch.zeros(7, 5))
    with pytest.raises(ShapeError, match="14 tokens, but context_length is 13"):
        module(torch.zeros(1, 14, 5))


def test_encoder_explains_a_padding_mask():
    module = EncoderAttention(6, 2)
    with pytest.raises(ShapeError, match=r"A padding mask \(batch, tokens\)\? Try mask\[:, None"):
        module(torch.zeros(2, 3, 6), torch.ones(2, 3))
