"""All kernels are one function: forward, gradients, masked rows, low precision, dropout, memory."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from clearhead import Mask, ShapeError
from clearhead.kernels import KERNELS, attend, blocked, choose, sdpa

FAST = [name for name in KERNELS if name != "eager"]


def random_qkv(batch=2, heads=6, kv_heads=3, queries=7, keys=7, head_dim=11, dtype=torch.float64):
    return (
        torch.randn(batch, heads, queries, head_dim, dtype=dtype),
        torch.randn(batch, kv_heads, keys, head_dim, dtype=dtype),
        torch.randn(batch, kv_heads, keys, head_dim, dtype=dtype),
    )


def run(kernel, q, k, v, mask, **options):
    """The context and the three gradients of a random function of it."""
    q, k, v = (t.detach().clone().requires_grad_() for t in (q, k, v))
    context = attend(q, k, v, mask, kernel=kernel, growing=True, **options)
    direction = torch.randn(context.shape, generator=torch.Generator().manual_seed(5))
    (context * direction.to(context.dtype)).sum().backward()
    return context.detach(), q.grad, k.grad, v.grad


MASKS = {
    "none": lambda q, k: None,
    "causal": lambda q, k: Mask.causal(),
    "causal from the start": lambda q, k: Mask.causal("start"),
    "window": lambda q, k: Mask.causal() & Mask.window(3),
    "both ways": lambda q, k: Mask.window(3, 2),
    "right padding": lambda q, k: Mask.causal() & Mask.padding([1, k]),
    "left padding": lambda q, k: Mask.causal() & Mask.padding([1, k - 1], "left"),
    "padding alone": lambda q, k: Mask.padding([1, k - 1]),
    "custom": lambda q, k: Mask.custom(torch.rand(2, 6, q, k) > 0.6),
    "prefix": lambda q, k: Mask.causal() | Mask.padding([2, 3]),
    "nothing at all": lambda q, k: Mask.custom(torch.zeros(q, k, dtype=torch.bool)),
}


def test_eager_equals_pytorch():
    """The kernel the others are compared with, against an outside witness."""
    q, k, v = random_qkv(kv_heads=6, keys=9)
    visible = torch.rand(2, 6, 7, 9) > 0.3
    visible[..., 0] = True
    torch.testing.assert_close(
        attend(q, k, v, Mask.custom(visible), kernel="eager"),
        scaled_dot_product_attention(q, k, v, attn_mask=visible),
    )


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (5, 13), (1, 9), (9, 4), (1, 1)])
@pytest.mark.parametrize("kernel", FAST)
def test_kernels_agree_in_float64(kernel, queries, keys, name):
    q, k, v = random_qkv(queries=queries, keys=keys)
    mask = MASKS[name](queries, keys)
    expected = run("eager", q, k, v, mask)
    actual = run(kernel, q, k, v, mask)
    torch.testing.assert_close(actual, expected)


@given(
    queries=st.integers(1, 40),
    more_keys=st.integers(0, 9),
    kv_heads=st.sampled_from([1, 2, 3, 6]),
    rows=st.integers(1, 17),
    back=st.integers(1, 12),
    data=st.data(),
)
def test_blocks_of_any_height_agree(queries, more_keys, kv_heads, rows, back, data):
    """Blocks that do not divide the tokens, with every kind of mask."""
    keys = queries + more_keys
    q, k, v = random_qkv(kv_heads=kv_heads, queries=queries, keys=keys, head_dim=4)
    mask = MASKS[data.draw(st.sampled_from(sorted(MASKS)))](queries, keys)
    if data.draw(st.booleans()):
        mask = Mask.window(back) if mask is None else mask & Mask.window(back)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocked, "_ROWS", rows)
        actual = run("blocked", q, k, v, mask)
    torch.testing.assert_close(actual, run("eager", q, k, v, mask))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_row_with_nothing_to_attend_to_is_zero_with_finite_gradients(kernel):
    q, k, v = random_qkv()
    visible = torch.ones(7, 7, dtype=torch.bool)
    visible[3] = False
    context, *grads = run(kernel, q, k, v, Mask.custom(visible))
    assert not context[:, :, 3].any()
    assert context[:, :, 4].any()
    assert all(grad.isfinite().all() for grad in grads)
    assert not grads[0][:, :, 3].any()


@pytest.mark.parametrize("name", MASKS)
def test_rows_that_see_nothing_where_the_kernel_does_not_zero_them(name, monkeypatch):
    """On CUDA, cuDNN gave such rows values of 0.4 and more: there we zero them ourselves."""
    monkeypatch.setattr(sdpa, "_zeroes_empty_rows", lambda q: False)
    q, k, v = random_qkv(queries=5, keys=13)
    mask = MASKS[name](5, 13)
    torch.testing.assert_close(run("sdpa", q, k, v, mask), run("eager", q, k, v, mask))


@pytest.mark.parametrize("queries", [5, 13])
@pytest.mark.parametrize("name", MASKS)
def test_masks_that_are_kept(name, queries, monkeypatch):
    """What is done on CUDA: a mask without tensors is built once, also for later training."""
    monkeypatch.setattr(sdpa, "_may_keep", lambda q: True)
    monkeypatch.setattr(sdpa, "_zeroes_empty_rows", lambda q: False)
    q, k, v = random_qkv(queries=queries, keys=13)
    mask = MASKS[name](queries, 13)
    expected = run("eager", q, k, v, mask)
    with torch.inference_mode():
        torch.testing.assert_close(attend(q, k, v, mask, kernel="sdpa"), expected[0])
    for _ in "ab":
        torch.testing.assert_close(run("sdpa", q, k, v, mask), expected)


def test_a_mask_is_built_once(monkeypatch):
    monkeypatch.setattr(sdpa, "_may_keep", lambda q: True)
    monkeypatch.setattr(sdpa, "_kept", {})
    built = []
    original = sdpa._build_anew
    monkeypatch.setattr(sdpa, "_build_anew", lambda *a: built.append(1) or original(*a))
    q, k, v = random_qkv()
    real = torch.tensor([5, 7])
    padding = Mask.padding(real)
    for mask, times in [(Mask.window(3), 1), (Mask.window(2), 2), (padding, 3)]:
        for _ in range(3):
            joined = Mask.causal() & mask
            actual = attend(q, k, v, joined, kernel="sdpa")
            torch.testing.assert_close(actual, attend(q, k, v, joined, kernel="eager"))
        assert len(built) == times
    assert len(sdpa._kept) == 2


def test_a_mask_that_was_changed_is_built_again(monkeypatch):
    monkeypatch.setattr(sdpa, "_may_keep", lambda q: True)
    monkeypatch.setattr(sdpa, "_zeroes_empty_rows", lambda q: False)  # else it is not copied
    monkeypatch.setattr(sdpa, "_kept", {})
    q, k, v = random_qkv()
    visible = torch.rand(7, 7) > 0.3
    mask = Mask.custom(visible)
    for _ in range(3):
        expected = attend(q, k, v, Mask.custom(visible.clone()), kernel="eager")
        torch.testing.assert_close(attend(q, k, v, mask, kernel="sdpa"), expected)
        visible.logical_not_()
    with torch.inference_mode():
        visible = torch.rand(7, 7) > 0.3
        mask = Mask.custom(visible)
        for _ in range(3):
            expected = attend(q, k, v, Mask.custom(visible.clone()), kernel="eager")
            torch.testing.assert_close(attend(q, k, v, mask, kernel="sdpa"), expected)
            visible.logical_not_()


@pytest.mark.parametrize("name", ["causal", "window", "left padding"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kernel", FAST)
def test_low_precision_errs_at_most_twice_as_much_as_plain_code(kernel, dtype, name):
    """Forward and gradients; in float32 the forward only.

    The fused backward takes dP - rowsum(dO∘O), which for a row with one visible key is a rounding
    error where plain code has an exact 0: seen as 1.2e-6 against 4.5e-7, PyTorch's own kernel too.
    """
    q, k, v = random_qkv(heads=6, queries=111, keys=111, head_dim=16)
    low = [t.to(dtype) for t in (q, k, v)]
    mask = MASKS[name](111, 111)
    truth = run("eager", *(t.double() for t in low), mask)
    plain = run("eager", *low, mask)
    fast = run(kernel, *low, mask)
    compared = 1 if dtype == torch.float32 else 4
    for exact, ours, theirs in list(zip(truth, fast, plain, strict=True))[:compared]:
        error = (ours.double() - exact).abs().max()
        allowed = 2 * (theirs.double() - exact).abs().max()
        assert error <= allowed + torch.finfo(dtype).eps


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_blocked_gradients_are_those_of_finite_differences(dropout):
    """With dropout the same seed drops the same weights, in the backward pass too."""
    q, k, v = (t.requires_grad_() for t in random_qkv(batch=1, heads=2, kv_heads=1, head_dim=3))

    def function(q, k, v):
        torch.manual_seed(3)
        return attend(q, k, v, Mask.causal(), dropout=dropout, kernel="blocked")

    assert torch.autograd.gradcheck(function, (q, k, v))


@pytest.mark.parametrize("kernel", KERNELS)
def test_dropout_keeps_its_share_of_what_the_mask_shows(kernel):
    q, k = (torch.randn(1, 2, 90, 11, dtype=torch.float64) for _ in range(2))
    values = torch.eye(90, dtype=torch.float64).expand(1, 2, 90, 90)  # context = weights
    mask = Mask.causal() & Mask.window(60)
    weights = attend(q, k, values, mask, kernel="eager")
    dropped = attend(q, k, values, mask, dropout=0.3, kernel=kernel)
    kept = dropped != 0
    # Blocked has 16 random bits a weight: its 1 / 0.7 is right to 5 digits.
    torch.testing.assert_close(dropped[kept], weights[kept] / 0.7, rtol=1e-4, atol=0)
    visible = mask.dense(90).expand_as(kept)
    share = kept[visible].double().mean()
    assert abs(share - 0.7) < 5 * (0.21 / int(visible.sum())) ** 0.5


def test_blocked_dropout_of_everything_gives_zeros():
    context, *grads = run("blocked", *random_qkv(), Mask.causal(), dropout=1.0)
    assert not context.any()
    assert not any(grad.any() for grad in grads)


def test_torch_manual_seed_decides_what_blocked_drops():
    q, k, v = random_qkv()

    def draw(seed):
        torch.manual_seed(seed)
        return attend(q, k, v, None, dropout=0.5, kernel="blocked")

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


@pytest.mark.parametrize("kernel", FAST)
def test_vectors_need_not_lie_side_by_side_in_memory(kernel):
    """PyTorch's fused CPU kernel, called directly, took the wrong numbers for such tensors."""
    spread = [t.transpose(1, 3).contiguous().transpose(1, 3) for t in random_qkv()]
    assert spread[0].stride(-1) != 1
    packed = [t.contiguous() for t in spread]
    torch.testing.assert_close(run(kernel, *spread, None), run("eager", *packed, None))
    q = spread[0].detach().requires_grad_()
    attend(q, *spread[1:], None, kernel=kernel).sum().backward()  # this gradient has strides of 0
    expected = torch.func.grad(lambda q: attend(q, *packed[1:], kernel="eager").sum())(packed[0])
    torch.testing.assert_close(q.grad, expected)


def test_blocked_reports_the_log_sum_exp():
    q, k, v = random_qkv(kv_heads=6, keys=9)
    mask = Mask.padding([0, 5])
    _, lse = blocked.attend_with_lse(q, k, v, mask, 0.5)
    scores = q @ k.transpose(-2, -1) * 0.5
    expected = scores.masked_fill(~mask.dense(7, 9), -torch.inf).logsumexp(-1)
    torch.testing.assert_close(lse, expected)


def test_choice_depends_on_what_pytorch_would_build():
    q, k, _ = random_qkv(queries=600, keys=600)
    assert choose(q, k, Mask.causal()).kernel == "sdpa"
    assert choose(q, k, Mask.padding([5, 600])).kernel == "sdpa"
    assert choose(q, k, Mask.causal() & Mask.window(5)).kernel == "blocked"
    assert choose(q, k, Mask.causal() & Mask.padding([5, 600])).kernel == "blocked"
    assert choose(q, k, Mask.causal(), dropout=0.1).kernel == "blocked"
    assert choose(q[:, :, :1], k, Mask.causal()).kernel == "sdpa"
    meta = torch.empty(2, 6, 600, 8, device="meta")
    assert choose(meta, meta, Mask.causal(), dropout=0.1).kernel == "sdpa"
    assert "queries × keys" in choose(q, k, None, dropout=0.1).reason
    assert choose(q[:, :, :300], k[:, :, :300], Mask.causal(), dropout=0.1).kernel == "sdpa"
    half = q[:, :, :300].bfloat16()
    assert choose(half, half, Mask.causal()).kernel == "sdpa"
    half.requires_grad_()
    assert choose(half, half, Mask.causal()).kernel == "eager"
    assert choose(half, half, Mask.causal(), dropout=0.1).kernel == "eager"
    long = half.detach().repeat(1, 1, 10, 1).requires_grad_()
    assert choose(long, long, Mask.causal()).kernel == "sdpa"


def test_training_in_half_precision_runs_the_chosen_kernel():
    q, k, v = (x.bfloat16().requires_grad_() for x in random_qkv())
    got = attend(q, k, v, Mask.causal())
    torch.testing.assert_close(got, attend(q, k, v, Mask.causal(), kernel="eager"), rtol=0, atol=0)
    assert not torch.equal(got, attend(q, k, v, Mask.causal(), kernel="sdpa"))


MEMORY = """
import resource, torch
from clearhead import Mask
from clearhead.kernels import attend
q, k, v = (torch.randn(1, 4, 4096, 16, requires_grad=True) for _ in range(3))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
attend(q, k, v, Mask.causal() & Mask.window(64)).sum().backward()
attend(q, k, v, Mask.causal(), dropout=0.1).sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_auto_never_builds_queries_by_keys():
    """4,096 tokens and 4 heads: the matrix would take 256 MiB; eager builds several."""
    out = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert int(out.stdout) / 1024 < 128


# The shape of a mask is checked once, before any kernel runs.


@pytest.mark.parametrize("kernel", ["auto", *KERNELS])
@pytest.mark.parametrize("batch", [1, 2, 4])
def test_a_mask_for_another_batch_is_refused_by_every_kernel(kernel, batch):
    """Eager gave a batch of three back for one sequence, others an error of torch's own."""
    q, k, v = random_qkv(batch=batch)
    message = rf"padding mask: expected lengths \(batch={batch},\), got \(3\).*or one for all"
    with pytest.raises(ShapeError, match=f"(?s){message}"):
        attend(q, k, v, Mask.causal() & Mask.padding([7, 3, 2]), kernel=kernel)
    real = torch.ones(3, 7, dtype=torch.bool)
    with pytest.raises(ShapeError, match=rf"\(batch={batch}, keys=7\), got \(3, 7\)"):
        attend(q, k, v, Mask.padding(real), kernel=kernel)
    message = (
        rf"custom mask: expected \(batch={batch}, heads=6, queries=7, keys=7\), got \(1, 4, 7, 7\)"
    )
    with pytest.raises(ShapeError, match=message):
        attend(q, k, v, Mask.custom(torch.ones(1, 4, 7, 7, dtype=torch.bool)), kernel=kernel)
    with pytest.raises(TypeError, match=r"expected a clearhead.Mask, got a tensor"):
        attend(q, k, v, real[0], kernel=kernel)


@pytest.mark.parametrize("kernel", ["auto", *KERNELS])
def test_one_length_serves_the_whole_batch(kernel):
    q, k, v = random_qkv()
    expected = attend(q, k, v, Mask.padding([5, 5]), kernel="eager")
    torch.testing.assert_close(attend(q, k, v, Mask.padding([5]), kernel=kernel), expected)


@pytest.mark.parametrize("kernel", ["auto", *KERNELS])
@pytest.mark.parametrize(
    "empty", [{"batch": 0}, {"queries": 0}, {"queries": 0, "keys": 0}], ids=str
)
@pytest.mark.parametrize("name", ["none", "causal", "window"])
def test_nothing_gives_nothing(kernel, empty, name):
    q, k, v = random_qkv(**empty)
    context, *grads = run(kernel, q, k, v, MASKS[name](q.shape[2], k.shape[2]))
    assert context.shape == q.shape
    assert [grad.shape for grad in grads] == [q.shape, k.shape, v.shape]
    assert not any(grad.any() for grad in grads)


# torch.func.


@pytest.mark.filterwarnings(
    "ignore:There is a performance drop"
)  # about one of torch's own kernels
@pytest.mark.parametrize("options", [{}, {"dropout": 0.3}, {"mask": Mask.window(3)}], ids=str)
def test_auto_can_be_transformed_by_torch_func(options):
    """Per-sample gradients: "auto" took our own operator, which torch.func cannot look into."""
    q, k, v = random_qkv(queries=300, keys=300)

    def loss(q, k, v):
        return attend(q[None], k[None], v[None], **options).square().sum()

    transformed = torch.func.vmap(torch.func.grad(loss), randomness="different")(q, k, v)
    assert transformed.isfinite().all()
    if "dropout" not in options:
        alone = [torch.func.grad(loss)(q[i], k[i], v[i]) for i in range(2)]
        torch.testing.assert_close(transformed, torch.stack(alone))
    with pytest.raises(RuntimeError, match=r'kernel="blocked" cannot be transformed by torch.func'):
        torch.func.grad(lambda q: attend(q, k, v, kernel="blocked").sum())(q)


@pytest.mark.parametrize("changed", ["q", "k", "v"])
def test_auto_can_be_differentiated_by_each_input_alone(changed):
    tensors = dict(zip("qkv", random_qkv(queries=300, keys=300), strict=True))
    mask = Mask.causal() & Mask.window(3)

    def loss(x, kernel):
        return attend(**{**tensors, changed: x}, mask=mask, kernel=kernel).square().sum()

    assert choose(tensors["q"], tensors["k"], mask).kernel == "blocked"
    found, expected = (
        torch.func.grad(loss)(tensors[changed], kernel) for kernel in ("auto", "eager")
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_over_the_mask_alone():
    q, k, v = random_qkv(queries=300, keys=300)
    lengths = torch.tensor([[5, 7], [300, 2]])
    found = torch.func.vmap(lambda n: attend(q, k, v, Mask.causal() & Mask.padding(n)))(lengths)
    alone = [attend(q, k, v, Mask.causal() & Mask.padding(n), kernel="eager") for n in lengths]
    torch.testing.assert_close(found, torch.stack(alone))
