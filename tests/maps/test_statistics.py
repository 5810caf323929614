"""Value norms, weighted sums, retrieval, saliency, differences: against dense float64 weights."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead import AttentionMap, Mask, ShapeError
from clearhead.kernels import tile_loop
from clearhead.maps import statistics

BATCH, HEADS, QUERIES, KEYS, WIDTH, VALUE_WIDTH = 2, 6, 11, 13, 5, 3
MASKS = {
    "none": lambda: None,
    "window": lambda: Mask.causal() & Mask.window(4),
    "left": lambda: Mask.causal() & Mask.padding([KEYS, 8], "left"),  # rows that attend to nothing
    "custom": lambda: Mask.custom(torch.arange(QUERIES * KEYS).view(QUERIES, KEYS) % 3 > 0),
}


def dense(m: AttentionMap) -> torch.Tensor:
    """All weights in float64, by the definition."""
    group = m.shape[1] // m.keys.shape[1]
    scores = m.queries.double() @ m.keys.double().repeat_interleave(group, 1).mT * m.scale
    if m.cap is not None:
        scores = m.cap * torch.tanh(scores / m.cap)
    if m.bias is not None:
        scores = scores + m.bias.double()
    if m.mask is not None:
        scores = scores.masked_fill(~m.mask.dense(*m.shape[2:]), -math.inf)
    if m.sink_logits is not None:
        scores = torch.cat([scores, m.sink_logits.double()[..., None]], -1)
        return scores.softmax(-1)[..., :-1]
    return scores.softmax(-1).nan_to_num(0.0)


def make(
    name: str = "left",
    dtype: torch.dtype = torch.float64,
    *,
    kv_heads: int = 3,
    with_bias: bool = True,
    cap: float | None = 1.3,
    with_sink: bool = True,
    seed: int = 0,
) -> AttentionMap:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    return AttentionMap(
        random(BATCH, HEADS, QUERIES, WIDTH),
        random(BATCH, kv_heads, KEYS, WIDTH),
        MASKS[name](),
        bias=random(1, HEADS, QUERIES, KEYS) if with_bias else None,
        cap=cap,
        sink=random(HEADS) if with_sink else None,
        values=random(BATCH, kv_heads, KEYS, VALUE_WIDTH),
    )


@st.composite
def maps(draw: Any) -> AttentionMap:
    return make(
        draw(st.sampled_from(sorted(MASKS))),
        draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16])),
        kv_heads=draw(st.sampled_from([1, 3, 6])),
        with_bias=draw(st.booleans()),
        cap=draw(st.sampled_from([None, 1.3])),
        with_sink=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
    )


@pytest.fixture(autouse=True, scope="module")
def small_tiles():
    """Tiles that do not divide the tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tile_loop, "_ROWS", 4)
        patch.setattr(tile_loop, "_COLS", 3)
        patch.setattr(tile_loop, "_CELLS", {"cpu": 50})
        yield


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = 1e-12 if actual.dtype == torch.float64 else 3e-5
    torch.testing.assert_close(actual.double(), expected.double(), atol=tolerance, rtol=tolerance)


def values_per_head(m: AttentionMap) -> torch.Tensor:
    return m.values.double().repeat_interleave(HEADS // m.values.shape[1], 1)


# Sums over queries and keys.


@settings(max_examples=30)
@given(maps(), st.booleans(), st.integers(0, QUERIES))
def test_received_from_weighted_queries(m, per_head, zeros):
    shape = (BATCH, HEADS, QUERIES) if per_head else (BATCH, QUERIES)
    each = torch.rand(shape, dtype=torch.float64)
    each[..., :zeros] = 0  # tiles without a query that counts are not computed
    expected = dense(m) * (each if per_head else each[:, None])[..., None]
    close(m.received(each.to(m.dtype)), expected.sum(2))
    both = m.summary(received=each.to(m.dtype), entropy=True, thumbnail=(2, 3))
    close(both.received, expected.sum(2))
    close(both.entropy, torch.special.entr(dense(m)).sum(-1))


@settings(max_examples=30)
@given(maps(), st.data())
def test_retrieval_is_the_weight_on_the_needle(m, data):
    start = data.draw(st.integers(0, KEYS - 1))
    needle = slice(start, data.draw(st.integers(start + 1, KEYS)))
    expected = dense(m)[..., needle].sum(-1)
    close(m.retrieval(needle), expected)
    close(m.summary(retrieval=needle, received=True).retrieval, expected)
    close(m.retrieval_score(needle), expected.mean(-1))
    close(m.retrieval_score(needle, slice(-3, None)), expected[..., -3:].mean(-1))
    close(m.retrieval_score(needle, [0, 7]), expected[..., [0, 7]].mean(-1))
    per_sequence = torch.rand(BATCH, KEYS) > 0.5
    per_sequence[:, 2] = True
    close(m.retrieval(per_sequence), (dense(m) * per_sequence[:, None, None]).sum(-1))
    close(m.retrieval([1, -2]), dense(m)[..., [1, KEYS - 2]].sum(-1))


def test_retrieval_computes_only_the_tiles_of_the_needle(monkeypatch):
    m = make("none")
    m.normalise()
    read = []

    def add(self, tile, original=statistics.Retrieval.add):
        read.append(tile.cols)
        original(self, tile)

    monkeypatch.setattr(statistics.Retrieval, "add", add)
    m.retrieval(slice(5, 7))
    assert {(cols.start, cols.stop) for cols in read} == {(5, 7)}


@settings(max_examples=30)
@given(maps())
def test_saliency_is_gradient_times_attention(m):
    """The gradient of the weights by autograd, through output = weights @ values."""
    weights = dense(m).requires_grad_()
    factor = torch.randn(BATCH, HEADS, QUERIES, VALUE_WIDTH, dtype=torch.float64)
    loss = ((weights @ values_per_head(m)) * factor.to(m.dtype).double()).sum()
    (gradient,) = torch.autograd.grad(loss, weights)
    expected = (weights * gradient).detach()
    found = m.saliency(factor.to(m.dtype))
    close(found.queries, expected.sum(-1))
    close(found.keys, expected.sum(-2))


# Value norms.


@settings(max_examples=30)
@given(maps(), st.sampled_from([None, 2, 7]))
def test_value_norms(m, d_model):
    output, projected = None, values_per_head(m)
    if d_model is not None:
        output = torch.randn(d_model, HEADS * VALUE_WIDTH, dtype=torch.float64).to(m.dtype)
        parts = output.double().unflatten(1, (HEADS, VALUE_WIDTH))
        projected = torch.einsum("bhkv,dhv->bhkd", projected, parts)
    norms = projected.norm(dim=-1)
    close(m.value_norms(output), norms)
    weighted = dense(m) * norms[:, :, None]
    share = (weighted / weighted.sum(-1, keepdim=True)).nan_to_num(0.0)
    by_norm = m.by_value_norm(output)
    assert by_norm.shape == m.shape
    close(by_norm.dense(), share)
    close(by_norm.received(), share.sum(2))
    close(by_norm.entropy(), torch.special.entr(share).sum(-1))
    close(by_norm.select(batch=1, heads=[4, 2]).dense(), share[1:, [4, 2]])
    assert not by_norm.to_sink.any()
    some = m.select(heads=[5, 0])  # the heads keep their columns of the projection
    close(some.value_norms(output), norms[:, [5, 0]])
    close(some.by_value_norm(output).dense(), share[:, [5, 0]])
    assert m.sink_logits is None or m.to_sink.any()  # the map itself is unchanged


def test_values_of_zero():
    """A key without a value contributes nothing, and a query of such keys has no shares."""
    m = make("window", cap=None, with_sink=False, with_bias=False)
    m.values[:, :, -1] = 0
    m.values[1, :, :5] = 0
    by_norm = m.by_value_norm()
    weighted = dense(m) * values_per_head(m).norm(dim=-1)[:, :, None]
    share = (weighted / weighted.sum(-1, keepdim=True)).nan_to_num(0.0)
    assert not share[1, :, 0].any()
    close(by_norm.dense(), share)
    close(by_norm.received(), share.sum(2))
    assert by_norm.entropy().isfinite().all()
    assert by_norm.blind[1, :, 0].all()


def test_a_bias_per_key_does_not_build_one_per_pair():
    m = make("none", with_bias=True)
    assert m.by_value_norm().nbytes - m.nbytes <= 8 * BATCH * HEADS * KEYS
    close(m.by_value_norm().bias, m.bias + m.value_norms().log()[:, :, None])


# Two maps.


@settings(max_examples=30)
@given(maps(), maps())
def test_difference_of_two_maps(one, other):
    gap = dense(one) - dense(other)
    rest = (1 - dense(one).sum(-1)) * (one.sink_logits is not None)
    rest = rest - (1 - dense(other).sum(-1)) * (other.sink_logits is not None)
    found = one.difference(other)
    precise = {one.dtype, other.dtype} == {torch.float64}
    tolerance = {"atol": 1e-12 if precise else 3e-5, "rtol": 0}

    def near(actual, expected):
        torch.testing.assert_close(actual.double(), expected, **tolerance)

    near(found.total_variation, (gap.abs().sum(-1) + rest.abs()) / 2)
    near(found.largest.abs(), gap.abs().amax(-1))
    known = found.keys >= 0
    near(gap.gather(-1, found.keys.clamp_min(0)[..., None])[..., 0] * known, found.largest.double())
    same = one.difference(one)
    assert not same.total_variation.any()
    assert (same.keys == -1).all()


def test_difference_where_the_masks_reach_apart():
    """Each map is also read where the other hides everything."""
    q = torch.randn(1, 1, 9, 4, dtype=torch.float64)
    one = AttentionMap(q, q, Mask.causal() & Mask.window(1))
    other = AttentionMap(q, q, Mask.custom(torch.ones(9, 9).bool().triu(1)))
    close(one.difference(other).total_variation[..., :-1], torch.ones(1, 1, 8))
    close(other.difference(one).total_variation[..., :-1], torch.ones(1, 1, 8))
    assert one.difference(other).total_variation[0, 0, -1] == 0.5  # the last attends to nothing


@settings(max_examples=30)
@given(maps())
def test_uniform_maps_spread_over_the_visible_keys(m):
    visible = torch.ones(m.shape, dtype=torch.bool)
    if m.mask is not None:
        visible &= m.mask.dense(QUERIES, KEYS)
    expected = visible / visible.sum(-1, keepdim=True).clamp_min(1).double()
    close(m.uniform().dense(), expected)
    close(m.uniform().received(), expected.sum(2))
    assert m.uniform().head_numbers == m.head_numbers
    assert m.uniform().nbytes < m.nbytes or m.bias is not None
    one = m.select(heads=[4]).uniform()
    close(one.entropy(), torch.special.entr(expected[:, 4:5]).sum(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_uniform_maps_hide_what_a_bias_hides(dtype):
    q = torch.randn(1, 2, 4, 8).to(dtype)
    bias = torch.randn(1, 2, 4, 4).to(dtype)
    bias[..., 1] = -math.inf
    bias[..., 2] = torch.finfo(dtype).min
    expected = torch.tensor([0.5, 0.0, 0.0, 0.5]).expand(1, 2, 4, 4)
    close(AttentionMap(q, q, bias=bias).uniform().dense(), expected)


# The largest weights, with tokens.


def test_top_gives_tokens():
    q = torch.eye(4)[None, None] * 5
    words = ["The", " cat", "\n", "sat"]
    m = AttentionMap(q, q, Mask.causal()).select(heads=[0])
    found = m.top(2, tokens=words)
    assert found.tokens[0][0][:2] == [["The"], [" cat", "The"]]
    assert [row[0] for row in found.tokens[0][0]] == words
    assert repr(found) == str(found)
    assert repr(found).splitlines()[:3] == [
        "Top(k=2, batch=1, heads=1, queries=4)",
        "head 0",
        "The     The 1.00",
    ]
    assert "\\n      \\n 1.00" in repr(found)
    with pytest.raises(ValueError, match=r"tokens: not known. Pass them: m.top\(3, tokens="):
        m.top(2).tokens  # noqa: B018
    with pytest.raises(ShapeError, match=r"one sequence, got one of 2.\n.*m.select\(batch=0\)"):
        make().top(2, tokens=words)
    with pytest.raises(ShapeError, match="tokens: expected one label per query"):
        m.top(2, tokens=words[:3])


# Errors.


def test_errors_of_measures_explain():
    m = make()
    bare = AttentionMap(m.queries, m.keys)
    gradient = torch.zeros(BATCH, HEADS, QUERIES, VALUE_WIDTH)
    for call in (bare.value_norms, bare.by_value_norm, lambda: bare.saliency(gradient)):
        with pytest.raises(ValueError, match=r"holds none.*\n.*watch\(model, values=True\)"):
            call()
    with pytest.raises(
        ShapeError, match=r"output: .* value_dim=3 and at least 6 heads, got \(7, 1"
    ):
        m.value_norms(torch.zeros(7, 15))
    with pytest.raises(ShapeError, match=r"\n  A Conv1D, as in GPT-2.*weight.T"):
        m.value_norms(torch.zeros(18, 7))
    with pytest.raises(
        ShapeError, match=r"output_gradient: .* = \(2, 6, 11, 3\), got \(2, 6, 11\)"
    ):
        m.saliency(gradient[..., 0])
    with pytest.raises(ShapeError, match=r"query_weights: expected \(batch=2, queries=11\) or"):
        m.received(torch.zeros(11))
    with pytest.raises(ShapeError, match=r"needle: expected \(batch=2, keys=13\), got \(2, 11\)"):
        m.retrieval(torch.ones(2, 11, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"needle: expected at least one of the 13 keys, got none"):
        m.retrieval(slice(3, 3))
    with pytest.raises(IndexError, match=r"needle: index 13 is out of range for 13"):
        m.retrieval(13)
    with pytest.raises(ShapeError, match=r"same shape \(2, 6, 11, 13\), got \(2, 5, 11, 13\).\n"):
        m.difference(m.select(heads=slice(0, 5)))
    with pytest.raises(ValueError, match=r"this map is on cpu, the other on meta.\n.*to\(m.device"):
        m.difference(m.to("meta"))
