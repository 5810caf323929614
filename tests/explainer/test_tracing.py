"""trace(): the six steps add up to the module's own forward pass, and can be read."""

import re

import pytest
import torch
from torch import nn

from clearhead import attention, ladder
from clearhead.embedding import Rope
from clearhead.explainer.tracing import trace
from clearhead.ladder import simplified_attention
from clearhead.masks import Mask
from clearhead.validation import ShapeError

# Sizes that cannot be confused: batch 2, tokens 7, d_in 5, heads 3, head_dim 4 (d_out 12).
BATCH, TOKENS, D_IN, HEADS, HEAD_DIM, CONTEXT = 2, 7, 5, 3, 4, 11
D_OUT = HEADS * HEAD_DIM
SIX = ["1", "2", "3", "4a", "4b", "4c", "4d", "5", "6"]


def fast(**options):
    return attention.MultiHeadAttention(D_IN, D_OUT, CONTEXT, 0.1, HEADS, True, **options)


FORMS = {
    "simplified": (lambda: simplified_attention, ["4a", "4c", "4d"]),
    "self": (lambda: ladder.SelfAttention(D_IN, D_OUT, True), ["1", "4a", "4c", "4d"]),
    "causal": (
        lambda: ladder.CausalAttention(D_IN, D_OUT, CONTEXT, 0.1),
        ["1", "4a", "4b", "4c", "4d"],
    ),
    "wrapper": (
        lambda: ladder.MultiHeadAttentionWrapper(D_IN, HEAD_DIM, CONTEXT, 0.1, HEADS),
        ["1", "4a", "4b", "4c", "4d", "5"],
    ),
    "multihead": (lambda: ladder.MultiHeadAttention(D_IN, D_OUT, CONTEXT, 0.1, HEADS), SIX),
    "encoder": (
        lambda: ladder.EncoderAttention(D_OUT, HEADS),
        ["1", "2", "3", "4a", "4c", "4d", "5", "6"],
    ),
    "fast": (fast, SIX),
    "fast, all sees all": (lambda: fast(causal=False), [n for n in SIX if n != "4b"]),
    "fast, window": (lambda: fast(window=3), SIX),
    "fast, two-sided window": (lambda: fast(window=3, causal=False), SIX),
    "fast, one key head": (lambda: fast(num_kv_heads=1), [*SIX[:3], "3c", *SIX[3:]]),
    "fast, everything": (
        lambda: attention.MultiHeadAttention(
            D_IN, 24, CONTEXT, 0.1, 6, num_kv_heads=2, window=4, rope=Rope(), qk_norm=True
        ),
        [*SIX[:3], "3a", "3b", "3c", *SIX[3:]],
    ),
}


def build(name, dtype=torch.float64):
    torch.manual_seed(7)
    module = FORMS[name][0]()
    if isinstance(module, nn.Module):
        module = module.to(dtype)
        for parameter in module.parameters():  # norms and biases too, so that none can hide
            nn.init.normal_(parameter, std=0.5)
    width = D_OUT if name == "encoder" else D_IN
    return module, torch.randn(BATCH, TOKENS, width, dtype=dtype)


def run_code(seen, module, mask=None, context=None):
    """What the lines of all steps give when somebody runs them."""
    names = {"torch": torch, "module": module, "x": seen.x, "mask": mask, "context": context}
    with torch.no_grad():
        for step in seen:
            exec(step.code, names)
    return names


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_gap_is_rounding_only(name, dtype, most):
    module, x = build(name, dtype)
    seen = trace(module, x)
    assert seen.gap < most
    assert [step.number for step in seen] == FORMS[name][1]
    own = module.eval()(x) if isinstance(module, nn.Module) else module(x)
    own = own[0] if isinstance(own, tuple) else own
    torch.testing.assert_close(seen["output"], own, check_dtype=True)


@pytest.mark.parametrize("name", FORMS)
def test_code_gives_the_tensors(name):
    module, x = build(name)
    seen = trace(module, x)
    names = run_code(seen, module)
    assert len(seen.names) > 3
    for step in seen:
        assert set(step.tensors) == set(re.findall(r"^(\w+) = ", step.code, re.M)) - {"hidden"}
        for tensor_name, tensor in step.tensors.items():
            torch.testing.assert_close(names[tensor_name], tensor, rtol=0, atol=0)
            assert tuple(size for _, size in step.dims[tensor_name]) == tensor.shape
            assert not tensor.requires_grad


@pytest.mark.parametrize("name", FORMS)
def test_weights_are_what_they_should_be(name):
    module, x = build(name)
    seen = trace(module, x)
    weights = seen["attn_weights"]
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1], dtype=x.dtype))
    if seen.hidden is None:
        assert (weights > 0).all()
    else:
        assert torch.equal(weights == 0, seen.hidden.expand_as(weights))


def test_gap_shows_a_module_that_does_something_else():
    """The gap must be able to grow: a forward pass that is 1 % off is seen."""

    class Wrong(ladder.SelfAttention):
        def forward(self, x):
            return super().forward(x) * 1.01

    torch.manual_seed(0)
    module = Wrong(5, 4)
    x = torch.randn(7, 5)
    seen = trace(module, x)
    assert seen.gap == pytest.approx((module(x) / 1.01 - module(x)).abs().max().item(), rel=1e-3)


def test_the_rotary_step_explains_itself():
    """Its formula and its note are true of its numbers, and all ways to show it have both."""
    torch.manual_seed(0)
    module = fast(rope=Rope(500.0)).double().eval()
    seen = trace(module, torch.randn(1, 7, D_IN, dtype=torch.float64))
    step = seen.step("3b")
    half = module.head_dim // 2
    i, position = half - 1, 5
    a, b = (seen["keys_heads"][0, 1, position, j] for j in (i, i + half))
    angle = torch.tensor(position * 500.0 ** (-2 * i / module.head_dim), dtype=torch.float64)
    expected = torch.stack([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()])
    torch.testing.assert_close(seen["keys_rotated"][0, 1, position, [i, i + half]], expected)
    assert step.formula == "(a, b) -> (a cos θ - b sin θ, b cos θ + a sin θ)"
    assert f"i and i + {half} of each" in step.note
    assert f"θ = position × 500^(-2i / {module.head_dim})" in step.note
    assert step.to_json()["note"] == step.note
    assert "depend on the distance between two tokens" in " ".join(str(seen).split())


def test_names_that_do_not_exist():
    seen = trace(simplified_attention, torch.eye(2))
    with pytest.raises(KeyError, match=r"'weights'.*x, attn_scores, attn_weights, context_vec"):
        seen["weights"]
    with pytest.raises(KeyError, match=r"has no step '2'; its steps are 4a, 4c, 4d"):
        seen.step("2")


def test_mode_and_gradients_stay_as_they_were():
    module, x = build("multihead")
    module.train()
    module.dropout.eval()
    x.requires_grad_()
    before = [part.training for part in module.modules()]
    seen = trace(module, x)
    assert [part.training for part in module.modules()] == before
    assert True in before
    assert False in before
    assert not seen.x.requires_grad
    assert x.requires_grad


def test_mode_comes_back_after_an_error():
    module, _ = build("multihead")
    module.train()
    with pytest.raises(ShapeError, match="d_in=5"):
        trace(module, torch.randn(2, 7, 6, dtype=torch.float64))
    assert all(part.training for part in module.modules())


def test_masks_of_the_fast_module():
    module, x = build("fast")
    mask = Mask.padding(torch.tensor([7, 4]))
    seen = trace(module, x, mask=mask)
    assert seen.gap < 1e-12
    assert (seen["attn_weights"][1, :, :, 4:] == 0).all()
    assert (seen["attn_weights"][0, :, 6] > 0).all()
    names = run_code(seen, module, mask=mask)
    torch.testing.assert_close(names["output"], seen["output"], rtol=0, atol=0)


def test_queries_that_see_nothing_give_zeros_and_a_note():
    module, x = build("fast")
    mask = Mask.padding(torch.tensor([7, 4]), side="left")
    seen = trace(module, x, mask=mask)
    assert seen.gap < 1e-12
    assert (seen["attn_weights"][1, :, :3] == 0).all()
    assert (seen["context_vec"][1, :3] == 0).all()
    assert "3 of 7 queries may attend to nothing" in str(seen)
    names = run_code(seen, module, mask=mask)
    torch.testing.assert_close(names["output"], seen["output"], rtol=0, atol=0)


def test_masks_of_the_paper_form():
    module, x = build("encoder")
    for mask in (Mask.causal(), torch.ones(TOKENS, TOKENS).tril()):
        seen = trace(module, x, mask=mask)
        assert seen.gap < 1e-12
        assert "4b" in [step.number for step in seen]
        assert (seen["attn_weights"].triu(1) == 0).all()
        names = run_code(seen, module, mask=mask)
        torch.testing.assert_close(names["output"], seen["output"], rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"7 of 7 queries may attend to nothing[\s\S]*gives NaN"):
        trace(module, x, mask=torch.zeros(TOKENS, TOKENS))


@pytest.mark.parametrize("rope", [None, Rope()])
def test_keys_from_elsewhere(rope):
    torch.manual_seed(3)
    module = fast(causal=False, rope=rope).double()
    x, context = torch.randn(2, 7, 5).double(), torch.randn(2, 3, 5).double()
    seen = trace(module, x, context=context, context_tokens=["le", "chat", "noir"])
    assert seen.gap < 1e-12
    assert seen["attn_weights"].shape == (2, 3, 7, 3)
    assert seen.step("4a").after[-1] == ("context_tokens", 3)
    assert "noir" in str(seen)
    names = run_code(seen, module, context=context)
    torch.testing.assert_close(names["output"], seen["output"], rtol=0, atol=0)


def test_what_cannot_be_traced():
    x = torch.randn(2, 7, 5)
    with pytest.raises(TypeError, match=r"module: Linear cannot be traced\.\n  Supported: simpl"):
        trace(nn.Linear(5, 5), x)
    with pytest.raises(ValueError, match=r"mask: SelfAttention .* takes no mask"):
        trace(ladder.SelfAttention(5, 4), x, mask=Mask.causal())
    with pytest.raises(ValueError, match=r"context: SelfAttention .* attends to x only"):
        trace(ladder.SelfAttention(5, 4), x, context=x)
    with pytest.raises(ValueError, match="context_tokens: there is no context"):
        trace(simplified_attention, x, context_tokens=["a"])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_spoil_everything(value):
    x = torch.randn(2, 7, 5)
    x[1, 3, 2] = value
    words = ["the", "cat", "sat", "on", "the", "mat", "."]
    with pytest.raises(ValueError, match=rf"x: {value} at x\[1, 3, 2\], in token 3 \('on'\)\."):
        trace(simplified_attention, x, tokens=words)


def test_labels_must_fit():
    x = torch.randn(7, 5)
    with pytest.raises(ShapeError, match=r"tokens: expected one label per token, 7 of them, got 2"):
        trace(simplified_attention, x, tokens=["the", "cat"])
    with pytest.raises(ShapeError, match=r"expected a list of 7 labels, got one string"):
        trace(simplified_attention, x, tokens="the cat")
