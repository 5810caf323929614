"""AttentionMap: every weight and every statistic against the dense weights that it never builds."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from clearhead import AttentionMap, Mask, MultiHeadAttention, Rope, ShapeError
from clearhead.kernels import KERNELS, tile_loop
from clearhead.maps import free_memory, statistics

BATCH, HEADS = 2, 6


def dense(q, k, mask, scale, bias=None, cap=None, sink=None):
    """The weights by the definition, in the plainest way."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = q.double() @ k.double().transpose(-2, -1) * scale
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    if bias is not None:
        scores = scores + bias.double()
    if mask is not None:
        scores = scores.masked_fill(~mask.dense(q.shape[2], k.shape[2]), -math.inf)
    if sink is not None:  # one more column, dropped after softmax
        sink = sink[:, None] if sink.ndim == 1 else sink
        column = sink.double().expand(scores.shape[:3])[..., None]
        return torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1]
    return torch.softmax(scores, -1).nan_to_num(0.0)


MASKS = {
    "none": lambda q, k: None,
    "causal": lambda q, k: Mask.causal(),
    "start": lambda q, k: Mask.causal("start"),
    "window": lambda q, k: Mask.causal() & Mask.window(3),
    "left": lambda q, k: Mask.causal() & Mask.padding([max(1, k - 2), k], "left"),
    "padding": lambda q, k: Mask.padding([max(1, k - 2), k]),
    "custom": lambda q, k: Mask.custom(torch.rand(BATCH, HEADS, q, k) > 0.3),
    "nothing": lambda q, k: Mask.custom(torch.arange(q)[:, None].expand(q, k) % 2 == 0),
}


@st.composite
def maps(draw, dtypes=(torch.float64, torch.float32, torch.bfloat16), self_attention=False):
    """A map and its dense weights."""
    queries = draw(st.integers(1, 40))
    keys = queries + draw(st.integers(0, 9)) if self_attention else draw(st.integers(1, 40))
    kv_heads = draw(st.sampled_from([1, 2, 3, 6]))
    dtype = draw(st.sampled_from(dtypes))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    q = torch.randn(BATCH, HEADS, queries, 5, generator=generator).to(dtype)
    k = torch.randn(BATCH, kv_heads, keys, 5, generator=generator).to(dtype)
    mask = MASKS[draw(st.sampled_from(sorted(MASKS)))](queries, keys)
    scale = draw(st.sampled_from([0.3, 1.0, 5.0]))
    bias = None
    if draw(st.booleans()):
        bias = torch.randn(1, HEADS, queries, keys, generator=generator, dtype=torch.float64)
        bias = bias.to(torch.float64 if dtype == torch.float64 else torch.float32)
        bias[..., -1] = -math.inf if keys > 1 and draw(st.booleans()) else bias[..., -1]
    cap = draw(st.sampled_from([None, None, 0.7, 5.0]))
    sink = draw(st.sampled_from([None, None, (HEADS,), (BATCH, HEADS, queries)]))
    if sink is not None:
        sink = (2 * torch.randn(sink, generator=generator)).to(dtype)
    m = AttentionMap(q, k, mask, scale=scale, bias=bias, cap=cap, sink=sink)
    return m, dense(q, k, mask, scale, bias, cap, sink)


def places(m):
    """Where the queries stand: by the name of the mask, or as the map itself read it there."""
    queries, keys = m.shape[2:]
    name = "" if m.mask is None else m.mask.encode([])
    if "custom" not in name and ("band" in name or m.bias is None):
        start = 0 if "start" in name else keys - queries
        expected = (start + torch.arange(queries)).expand(BATCH, -1)
        assert torch.equal(m.query_positions, expected)
    return m.query_positions


def small_tiles(draw):
    """Tiles that do not divide the tokens. A draw may end the test: nothing is patched before."""
    rows, columns = draw(st.integers(1, 17)), draw(st.integers(1, 17))
    cells = draw(st.sampled_from([1, 50, 10**4]))
    patch = pytest.MonkeyPatch()
    patch.setattr(tile_loop, "_ROWS", rows)
    patch.setattr(tile_loop, "_COLS", columns)
    patch.setattr(tile_loop, "_CELLS", {"cpu": cells})
    return patch


def close(actual, expected):
    tolerance = 1e-12 if actual.dtype == torch.float64 else 2e-5
    torch.testing.assert_close(
        actual.double(), expected.double(), atol=tolerance, rtol=tolerance, equal_nan=True
    )


# Weights.


@given(maps())
def test_dense_equals_the_definition(case):
    m, weights = case
    assert m.shape == weights.shape
    close(m.dense(), weights)
    rest = torch.zeros_like(weights[..., 0]) if m.sink_logits is None else 1 - weights.sum(-1)
    close(m.to_sink, rest)
    assert torch.equal(m.blind & (m.to_sink == 0), m.lse.isneginf())
    assert not m.dense()[m.blind].any() or m.sink_logits is not None


part = st.one_of(
    st.integers(-3, 3),
    st.slices(9),
    st.just(slice(None)),
    st.lists(st.integers(-2, 2), min_size=1, max_size=3),
)


@settings(max_examples=100)
@given(maps(), st.lists(part, min_size=1, max_size=4), st.booleans(), st.data())
def test_indexing_is_that_of_a_tensor(case, index, ellipsis, data):
    m, weights = case
    index = list(index)
    if sum(isinstance(i, list) for i in index) > 1:  # a tensor would pair two lists
        index = [i if not isinstance(i, list) else slice(None) for i in index]
    if any(isinstance(i, list) for i in index):  # numpy moves axes when a list meets an integer
        index = [i if not isinstance(i, int) else slice(None) for i in index]
    if ellipsis and len(index) < 4:
        index.insert(data.draw(st.integers(0, len(index))), Ellipsis)
    try:
        expected = torch.tensor(weights.numpy()[tuple(index)].copy())
    except IndexError:
        with pytest.raises(IndexError):
            m[tuple(index)]
        return
    close(m[tuple(index)], expected.reshape(expected.shape))


@given(maps(), st.data())
def test_selecting_heads_and_sequences_gives_maps(case, data):
    m, weights = case
    heads = data.draw(st.lists(st.integers(0, HEADS - 1), min_size=1, max_size=3))
    close(m.select(heads=heads).dense(), weights[:, heads])
    close(m.select(batch=1, heads=2).dense(), weights[1:, 2:3])
    if data.draw(st.booleans()):
        m.lse  # noqa: B018  # now it is known; selecting keeps it
    close(m.select(batch=[1, 0]).entropy(), entropy(weights[[1, 0]]))


def test_chosen_heads_keep_their_numbers():
    """They were counted anew: of select(heads=[3]) everything said that it was head 0."""
    m = AttentionMap(torch.randn(2, 6, 5, 4), torch.randn(2, 3, 5, 4), Mask.causal())
    assert m.head_numbers == (0, 1, 2, 3, 4, 5)
    some = m.select(heads=[5, 3, 1])
    assert some.head_numbers == (5, 3, 1)
    assert some.select(heads=1).head_numbers == (3,)
    assert some.select(batch=1).head_numbers == (5, 3, 1)
    assert some.to(torch.float64).head_numbers == some.detach().head_numbers == (5, 3, 1)
    assert torch.equal(some[0, 1], m[0, 3])  # an index, as on a tensor
    assert "heads=[5, 3, 1]," in repr(some)
    assert "head 3" in str(some.select(heads=1))
    assert m.select(heads=slice(0, 6)).head_numbers == m.head_numbers
    assert "heads=6," in repr(m.select(heads=slice(0, 6)))
    with pytest.raises(ShapeError, match=r"head_numbers: expected one for each of the 6 heads"):
        AttentionMap(torch.randn(1, 6, 5, 4), torch.randn(1, 6, 5, 4), head_numbers=(1, 2))


def test_conversion_is_only_through_dense():
    m = AttentionMap(torch.randn(1, 1, 3, 2), torch.randn(1, 1, 3, 2))
    for convert in (np.asarray, torch.asarray, torch.tensor, list):
        with pytest.raises((TypeError, RuntimeError)):
            convert(m)


def test_dense_refuses_with_the_numbers_and_alternatives():
    q = torch.randn(1, 12, 1, 8).expand(1, 12, 10**6, 8)
    m = AttentionMap(q, q, Mask.causal())
    with pytest.raises(MemoryError, match=r"1 × 12 × 1000000 × 1000000 weights take 43.7 TiB"):
        m.dense()
    with pytest.raises(MemoryError, match=r"m.thumbnail\(256, 256\)"):
        m.dense()
    small = AttentionMap(q[:, :, :4], q[:, :, :4])
    with pytest.raises(MemoryError, match=r"more than the 10 bytes allowed \(budget=\)"):
        small.dense(budget=10)


def test_dense_works_where_the_free_memory_is_unknown(monkeypatch):
    assert free_memory(torch.device("cpu")) > 0
    monkeypatch.delattr(os, "sysconf")  # as on Windows
    assert free_memory(torch.device("cpu")) is None
    q = torch.randn(1, 1, 1, 8).expand(1, 1, 20_000, 8)
    small = AttentionMap(q[:, :, :4], q[:, :, :4])
    torch.testing.assert_close(small.dense(), torch.full((1, 1, 4, 4), 0.25))
    with pytest.raises(MemoryError, match=r"more than the 1.0 GiB allowed \(free memory unknown\)"):
        AttentionMap(q, q).dense()


def test_index_errors_name_the_axis():
    m = AttentionMap(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4))
    with pytest.raises(IndexError, match="queries: index 3 is out of range for 3"):
        m[0, 0, 3]
    with pytest.raises(IndexError, match="4 axes"):
        m[0, 0, 0, 0, 0]
    with pytest.raises(IndexError, match="heads: expected an integer, a slice or a list"):
        m[0, None]


# Statistics.


def entropy(weights):
    return torch.special.entr(weights).sum(-1)


@given(maps(), st.data())
def test_statistics_equal_those_of_the_dense_weights(case, data):
    m, weights = case
    queries, keys = m.shape[2:]
    rows = data.draw(st.integers(1, queries))
    cols = data.draw(st.integers(1, keys))
    k = data.draw(st.integers(1, keys))
    pairs = torch.stack([torch.randint(queries, (7,)), torch.randint(keys, (7,))], 1)
    patch = small_tiles(data.draw)
    try:
        found = m.summary(
            entropy=True,
            received=True,
            thumbnail=(rows, cols),
            top=k,
            distance=(0.1, 0.5, 0.99),
            sink=torch.tensor([0, keys - 1]),
            previous=True,
            relation=pairs,
        )
    finally:
        patch.undo()
    close(found.entropy, entropy(weights))
    close(found.received, weights.sum(2))

    thumbnail = torch.zeros(BATCH, HEADS, rows, cols, dtype=torch.float64)
    for i in range(queries):
        for j in range(keys):
            thumbnail[:, :, i * rows // queries, j * cols // keys] += weights[:, :, i, j]
    close(found.thumbnail, thumbnail)

    best, _ = weights.topk(k)
    close(found.top.weights, best)
    known = found.top.keys >= 0
    chosen = weights.gather(3, found.top.keys.clamp_min(0)) * known
    close(chosen.to(m.dtype), best)  # which of two nearly equal weights is larger may differ

    position = places(m)  # (batch, queries)
    distance = (position[..., None] - torch.arange(keys)).abs()
    total = weights.sum(-1)
    mean = (weights * distance[:, None]).sum(-1) / total
    # Where the sink takes nearly everything, the weights have few correct digits left.
    close(found.distance.mean * total.to(m.dtype), mean.nan_to_num(0.0) * total)
    for b in range(BATCH):
        for h in range(HEADS):
            by_distance = torch.zeros(int(distance.max()) + 1, dtype=torch.float64)
            by_distance.index_add_(0, distance[b].flatten(), weights[b, h].flatten())
            share = by_distance.cumsum(0)
            for level, found_at in zip(
                (0.1, 0.5, 0.99), found.distance.quantiles[b, h], strict=True
            ):
                at = int(found_at)
                slack = 1e-4 * share[-1] + 1e-9
                assert share[at] >= level * share[-1] - slack
                assert at == 0 or share[at - 1] <= level * share[-1] + slack

    close(found.sink, torch.stack([weights[0, :, :, 0], weights[1, :, :, keys - 1]]))
    expected = torch.full((BATCH, HEADS, queries), math.nan, dtype=torch.float64)
    for b in range(BATCH):
        for i, here in enumerate(position[b].tolist()):
            if 1 <= here <= keys:
                expected[b, :, i] = weights[b, :, i, here - 1]
    close(found.previous, expected)
    close(found.relation, weights[:, :, pairs[:, 0], pairs[:, 1]])
    other = pairs[torch.randperm(7)]
    both = m.relation(torch.stack([pairs, other]))
    close(both[0], weights[0][:, pairs[:, 0], pairs[:, 1]])
    close(both[1], weights[1][:, other[:, 0], other[:, 1]])


@given(maps(self_attention=True), st.integers(1, 6), st.data())
def test_copies_and_induction_equal_loops(case, words, data):
    m, weights = case
    queries, keys = m.shape[2:]
    ids = torch.randint(words, (BATCH, keys), generator=torch.Generator().manual_seed(words))
    same = torch.full((BATCH, HEADS, queries), math.nan, dtype=torch.float64)
    after = same.clone()
    for b in range(BATCH):
        for i, here in enumerate(places(m)[b].tolist()):
            copies = [j for j in range(here) if ids[b, j] == ids[b, here]]
            if copies:
                same[b, :, i] = weights[b, :, i, copies].sum(-1)
                after[b, :, i] = weights[b, :, i, [j + 1 for j in copies]].sum(-1)
    patch = small_tiles(data.draw)
    try:
        found = m.summary(same_token=ids, induction=ids)
    finally:
        patch.undo()
    close(found.same_token, same)
    close(found.induction, after)


def test_methods_give_what_summary_gives():
    q, k = torch.randn(1, 2, 7, 4), torch.randn(1, 2, 7, 4)
    m, ids = AttentionMap(q, k, Mask.causal()), torch.tensor([[1, 2, 1, 1, 2, 3, 1]])
    pairs = torch.tensor([[3, 1]])
    s = m.summary(
        entropy=True, received=True, top=2, thumbnail=(3, 2), distance=True, sink=0,
        previous=True, same_token=ids, induction=ids, relation=pairs,
    )  # fmt: skip
    for single, together in [
        (m.entropy(), s.entropy),
        (m.received(), s.received),
        (m.top(2).keys, s.top.keys),
        (m.thumbnail(3, 2), s.thumbnail),
        (m.distance().quantiles, s.distance.quantiles),
        (m.sink(), s.sink),
        (m.previous(), s.previous),
        (m.same_token(ids), s.same_token),
        (m.induction(ids), s.induction),
        (m.relation(pairs), s.relation),
    ]:
        torch.testing.assert_close(single, together, equal_nan=True)
    assert repr(m.summary(entropy=True)) == "Summary(entropy)"


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is off on CUDA")
@pytest.mark.parametrize("name", ["none", "causal", "start", "window", "left", "padding"])
def test_triton_gives_the_same_statistics(name, monkeypatch):
    """What CUDA uses, in Triton's interpreter; other masks and sizes stay with plain torch."""
    q, k = torch.randn(BATCH, 2, 70, 16), torch.randn(BATCH, 1, 75, 16)
    mask = MASKS[name](70, 75)
    asked = {"entropy": True, "received": True, "thumbnail": (7, 5), "top": 2}
    expected = AttentionMap(q, k, mask).summary(**asked)
    with monkeypatch.context() as patch:
        patch.setattr(tile_loop, "_has_triton", lambda device: True)
        m = AttentionMap(q, k, mask)
        assert tile_loop.triton_arguments(m.lazy_scores) is not None
        found = m.summary(**asked)
        close(m.lse, AttentionMap(q, k, mask).lse)
    close(found.entropy, expected.entropy)
    close(found.received, expected.received)
    close(found.thumbnail, expected.thumbnail)
    close(found.top.weights, expected.top.weights)


def test_what_triton_cannot_do_is_left_to_torch(monkeypatch):
    monkeypatch.setattr(tile_loop, "_has_triton", lambda device: True)
    q = torch.randn(1, 2, 9, 16)
    for m in (
        AttentionMap(q, q, Mask.window(2, 1)),
        AttentionMap(q, q, Mask.causal() | Mask.window(2)),
        AttentionMap(q, q, bias=torch.zeros(1, 1, 9, 9)),
        AttentionMap(q[..., :5], q[..., :5]),
        AttentionMap(q.double(), q.double()),
    ):
        assert tile_loop.triton_arguments(m.lazy_scores) is None
        assert m.entropy().isfinite().all()


@given(maps(dtypes=(torch.float64,), self_attention=True))
def test_statistics_of_dense_weights_are_those_of_the_map(case):
    """Pages compute them from weights that exist already."""
    m, weights = case
    keys = m.shape[3]
    ids = torch.randint(4, (BATCH, keys), generator=torch.Generator().manual_seed(keys))
    for b in range(BATCH):
        asked = {"entropy": True, "received": True, "distance": True, "sink": 0, "previous": True}
        asked |= {"same_token": ids[b : b + 1], "induction": ids[b : b + 1]}
        start = m.first_positions[b]
        actual = statistics.summarise_dense(weights[b], start, asked)
        one = m.select(batch=b)
        one.normalise()
        expected = statistics.summarise(one.lazy_scores, [start], asked)
        for name in asked:
            a, e = getattr(actual, name), getattr(expected, name)
            close(*(a, e) if name != "distance" else (a.mean, e.mean))


# Numerics at the extremes.


@pytest.mark.parametrize("size", [1.0, 1e2, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_logits(size, dtype):
    """Scores of ±size: at most twice the error of plain float32 code on the same numbers."""
    q = (torch.randn(1, 2, 50, 8) * size**0.5).to(dtype)
    k = (torch.randn(1, 2, 50, 8) * size**0.5).to(dtype)
    mask = Mask.causal()
    m = AttentionMap(q, k, mask)
    truth = dense(q, k, mask, 8**-0.5)
    scores = q.float() @ k.float().transpose(-2, -1) * 8**-0.5
    plain = torch.softmax(scores.masked_fill(~mask.dense(50), -math.inf), -1)
    allowed = 2 * (plain.double() - truth).abs().max() + 1e-6
    assert (m.dense().double() - truth).abs().max() <= allowed
    assert (m.entropy() - entropy(truth)).abs().max() <= 60 * allowed
    assert m.entropy().isfinite().all()


def test_one_token_one_key_and_rows_that_see_nothing():
    one = AttentionMap(torch.randn(1, 1, 1, 4), torch.randn(1, 1, 1, 4))
    assert one[0, 0, 0, 0] == 1
    assert one.entropy().item() == pytest.approx(0, abs=1e-6)
    nothing = AttentionMap(
        torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4), Mask.custom(torch.zeros(3, 3).bool())
    )
    s = nothing.summary(entropy=True, received=True, top=2, thumbnail=(1, 1), distance=True, sink=0)
    assert not any(t.any() for t in (s.entropy, s.received, s.thumbnail, s.top.weights, s.sink))
    assert (s.top.keys == -1).all()
    assert not nothing.dense().any()
    assert (nothing.lse == -math.inf).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bias_that_swallows_the_scores_gives_equal_weights(dtype):
    """A row hidden by the most negative number came out as weights of 1 each, or of 0."""
    q, k = torch.randn(2, 3, 4, 8).to(dtype), torch.randn(2, 3, 5, 8).to(dtype)
    bias = torch.zeros(2, 1, 4, 5, dtype=dtype)
    bias[0, :, :, 3:] = torch.finfo(dtype).min
    bias[1, :, 2] = torch.finfo(dtype).min
    identity = torch.eye(5, dtype=dtype).expand(2, 3, 5, 5)
    expected = scaled_dot_product_attention(q, k, identity, attn_mask=bias)
    m = AttentionMap(q, k, bias=bias)
    tolerance = {"atol": 1e-6 if dtype == torch.float32 else 4e-3, "rtol": 0}
    torch.testing.assert_close(m[1, :, 2], torch.full((3, 5), 0.2))
    torch.testing.assert_close(m.dense().to(dtype), expected, **tolerance)
    torch.testing.assert_close(m.entropy(), entropy(m.dense()), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(m.received(), m.dense().sum(2), atol=1e-5, rtol=1e-5)


def test_tiles_at_262144_tokens_normalise_only_the_rows_asked():
    n = 262_144
    q, k = torch.randn(1, 2, n, 16), torch.randn(1, 1, n, 16)
    m = AttentionMap(q, k, Mask.causal())
    tile = m[0, 1, 200_000:200_004, 199_990:200_010]
    for i in range(4):
        scores = (k[0, 0, : 200_001 + i].double() @ q[0, 1, 200_000 + i].double()) * 0.25
        weights = torch.zeros(20, dtype=torch.float64)
        weights[: 11 + i] = torch.softmax(scores, 0)[199_990:]
        torch.testing.assert_close(tile[i].double(), weights, rtol=1e-4, atol=1e-12)
    assert m.lazy_scores.lse is None  # a whole pass was not needed
    stepped = m[0, 0, ::100_000, ::50_000]
    assert stepped.shape == (3, 6)
    assert stepped[0, 1] == 0


# From the module.


@pytest.mark.parametrize("kernel", ["auto", *KERNELS])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_kv_heads": 1, "window": 3}, {"causal": False, "rope": Rope(), "qk_norm": True}],
    ids=str,
)
def test_with_map_gives_the_output_and_the_weights_that_made_it(options, kernel):
    module = MultiHeadAttention(5, 12, 16, 0.0, 2, kernel=kernel, **options).double().eval()
    x = torch.randn(2, 9, 5, dtype=torch.float64)
    mask = Mask.padding([9, 7])
    output, m = module.with_map(x, mask=mask)
    torch.testing.assert_close(output, module(x, mask=mask))
    values = module.W_value(x).view(2, 9, -1, 6).transpose(1, 2)
    values = values.repeat_interleave(2 // values.shape[1], 1)
    by_hand = module.out_proj((m.dense() @ values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(by_hand, output)
    assert not m.dense().requires_grad
    assert output.requires_grad


def test_errors_teach():
    q = torch.randn(2, 4, 5, 3)
    with pytest.raises(ShapeError, match=r"heads a multiple of kv_heads"):
        AttentionMap(q, q[:, :3])
    with pytest.raises(ShapeError, match=r"expected \(batch, heads, tokens, head_dim\)"):
        AttentionMap(q[0], q[0])
    with pytest.raises(ShapeError, match=r"lse: expected \(batch, heads, queries\) = \(2, 4, 5\)"):
        AttentionMap(q, q, lse=torch.zeros(2, 4))
    m = AttentionMap(q, q)
    with pytest.raises(ValueError, match=r"top: expected 1 to 5 \(the keys\), got 6"):
        m.top(6)
    with pytest.raises(ValueError, match="thumbnail: expected at most 5 rows and 5 columns"):
        m.thumbnail(6, 2)
    with pytest.raises(ShapeError, match=r"one id per key, \(batch=2, keys=5\), got \(2, 4\)"):
        m.same_token(torch.zeros(2, 4, dtype=torch.int64))
    with pytest.raises(ShapeError, match=r"pairs: expected \(pairs, 2\)"):
        m.relation(torch.zeros(3))
    with pytest.raises(TypeError, match=r"expected names of entropy, .*, got 'no_such_statistic'"):
        m.summary(no_such_statistic=True)


# Where queries stand.


def causal_rows(queries, keys, start):
    """Row i may see the keys up to start + i."""
    return torch.arange(keys) <= start + torch.arange(queries)[:, None]


def test_empty_slots_of_a_static_cache_are_no_tokens():
    """previous() was 0 and distance() too far: the last slot was taken for the query's position."""
    torch.manual_seed(2)
    attention = MultiHeadAttention(8, 8, 16, 0.0, num_heads=2).double().eval()
    x, ids = torch.randn(2, 7, 8).double(), torch.randint(3, (2, 7))
    static, growing = attention.new_cache(2, static=True), attention.new_cache(2)
    for part in (slice(0, 4), slice(4, 5), slice(5, 7)):
        a = attention.with_map(x[:, part], cache=static)[1]
        b = attention.with_map(x[:, part], cache=growing)[1]
        assert (a.shape[3], b.shape[3]) == (16, part.stop)
        assert a.query_positions.tolist() == [list(range(part.start, part.stop))] * 2
        close(a.previous(), b.previous())
        close(a.distance().mean, b.distance().mean)
        close(a.distance().quantiles, b.distance().quantiles)
        known = ids[:, : part.stop]
        close(a.same_token(known), b.same_token(known))
        close(a.induction(known), b.induction(known))
        padded = torch.nn.functional.pad(known, (0, 16 - part.stop), value=1)  # an id a slot
        close(a.same_token(padded), b.same_token(known))
        close(a.sink(), b.sink())


@pytest.mark.parametrize("kind", ["bool", "-inf", "lowest"])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize(("queries", "start"), [(1, 0), (1, 6), (1, 10), (2, 5), (5, 0), (5, 4)])
def test_positions_are_read_from_a_causal_mask(kind, window, queries, start):
    visible = causal_rows(queries, 11, start)
    if window is not None:
        visible &= ~causal_rows(queries, 11, start - window)
    q, k = torch.randn(2, 1, queries, 4), torch.randn(2, 1, 11, 4)
    if kind == "bool":
        m = AttentionMap(q, k, Mask.custom(visible))
    else:
        lowest = -math.inf if kind == "-inf" else torch.finfo(torch.float32).min
        m = AttentionMap(q, k, bias=torch.zeros(queries, 11).masked_fill(~visible, lowest))
    assert m.query_positions.tolist() == [list(range(start, start + queries))] * 2
    assert m.select(batch=0).query_positions.tolist() == [list(range(start, start + queries))]


def test_positions_of_each_sequence_with_padding():
    """Ragged positions, padding on the left and on the right, and rows that attend to nothing."""
    visible = torch.stack([causal_rows(4, 12, 5), causal_rows(4, 12, 3)])[:, None]
    q, k = torch.randn(2, 1, 4, 4).double(), torch.randn(2, 1, 12, 4).double()
    m = AttentionMap(q, k, Mask.custom(visible))
    assert m.query_positions.tolist() == [[5, 6, 7, 8], [3, 4, 5, 6]]
    weights = m.dense()
    close(m.previous()[0, 0], torch.stack([weights[0, 0, i, i + 4] for i in range(4)]))
    close(m.previous()[1, 0], torch.stack([weights[1, 0, i, i + 2] for i in range(4)]))
    visible = causal_rows(4, 12, 5).repeat(2, 1, 1, 1)
    visible[0, :, :, 7:] = False  # padded on the right: its last queries are padding
    visible[1, :, :, :6] = False  # filled on the left: its first query sees nothing
    m = AttentionMap(q, k, Mask.custom(visible))
    assert m.query_positions[:, 0].tolist() == [5, 5]
    visible[0, :, :, 5:] = False  # nothing new in sequence 0: as the other one
    assert AttentionMap(q, k, Mask.custom(visible)).query_positions[:, 0].tolist() == [5, 5]


def test_positions_without_causality_are_the_last_keys():
    q, k = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 11, 4)
    memory = torch.arange(11) < torch.tensor([4, 6])[:, None, None, None]  # padded, for everybody
    for mask in (None, Mask.padding([4, 6]), Mask.custom(memory.expand(-1, -1, 4, -1))):
        assert AttentionMap(q, k, mask).query_positions.tolist() == [[7, 8, 9, 10]] * 2
    assert AttentionMap(q, k, Mask.causal("start")).query_positions.tolist() == [[0, 1, 2, 3]] * 2


def test_lists_do_as_well_as_tensors():
    m = AttentionMap(torch.randn(1, 2, 4, 3), torch.randn(1, 2, 4, 3), Mask.causal())
    ids = torch.tensor([[5, 6, 5, 5]])
    close(m.same_token(ids.tolist()), m.same_token(ids))
    close(m.induction(ids.tolist()), m.induction(ids))
    close(m.relation([(1, 0), (3, 2)]), m.relation(torch.tensor([(1, 0), (3, 2)])))
    with pytest.raises(ShapeError, match="ids: expected integers, as a tensor or as lists"):
        m.same_token([[5, 6], [5]])
    with pytest.raises(
        ShapeError, match=r"pairs: expected \(pairs, 2\) or \(batch=1, pairs, 2\), got \(2\)"
    ):
        m.relation([1, 0])


def test_two_lists_are_refused():
    """They gave a block where a tensor gives pairs."""
    m = AttentionMap(torch.randn(1, 2, 4, 3), torch.randn(1, 2, 4, 3))
    with pytest.raises(IndexError, match=r"at most one list.*\n.*takes pairs.*m\.relation"):
        m[0, 0, [0, 1], [2, 3]]
    with pytest.raises(IndexError, match="queries: expected a list of integers, got one with 2"):
        m[0, 0, torch.zeros(2, 2, dtype=torch.int64)]
    close(m[0, 0, [0, 1]][:, [2, 3]], m.dense()[0, 0, :2, 2:])


MEMORY = """
import resource, torch
from clearhead import AttentionMap, Mask
q, k = torch.randn(1, 4, 16384, 16), torch.randn(1, 4, 16384, 16)
m = AttentionMap(q, k, Mask.causal() & Mask.window(1024))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
m.summary(entropy=True, received=True, thumbnail=(64, 64), top=3, distance=True, previous=True)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_peak_memory_at_16384_tokens():
    """4 heads: dense float32 would take 4.3 GB. The window only saves time, not memory."""
    out = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert int(out.stdout) / 1024 < 500


def test_a_mask_for_another_batch_is_refused():
    """It gave numbers: those of the first sequences of the mask."""
    for batch in (1, 2):
        q = torch.randn(batch, 4, 5, 16)
        with pytest.raises(ShapeError, match=rf"expected lengths \(batch={batch},\), got \(3\)"):
            AttentionMap(q, q, Mask.padding([1, 2, 3]))
    with pytest.raises(TypeError, match=r"expected a clearhead.Mask, got a tensor"):
        AttentionMap(q, q, torch.ones(5, 5, dtype=torch.bool))


@pytest.mark.parametrize("tokens", [6, 300])
def test_only_weights_have_gradients(tokens):
    """Statistics failed inside torch, and of long maps `sink` had a gradient that was wrong."""
    q = torch.randn(1, 2, tokens, 8, dtype=torch.float64, requires_grad=True)
    weights = AttentionMap(q, q, Mask.causal(), detach=False)
    for statistic in (weights.entropy, weights.received, weights.sink, weights.previous):
        with pytest.raises(RuntimeError, match=r"no gradient.*\n.*map.dense\(\).*map.detach\(\)"):
            statistic()
    with torch.no_grad():
        numbers = weights.entropy()  # from here on the normalisers are known
    assert torch.equal(weights.detach().entropy(), numbers)
    dense = weights.dense()
    assert dense.requires_grad
    (actual,) = torch.autograd.grad(dense[..., -1, 2].sum(), q)
    scores = q @ q.transpose(-2, -1) / 8**0.5
    hidden = ~torch.ones(tokens, tokens, dtype=torch.bool).tril()
    plain = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    (expected,) = torch.autograd.grad(plain[..., -1, 2].sum(), q)
    torch.testing.assert_close(actual, expected)


# Soft caps, sinks and values.


def attached(dtype=torch.float64):
    """The parts of a map in which three queries of the second sequence attend to nothing."""
    torch.manual_seed(3)
    q, k = torch.randn(2, 6, 11, 5, dtype=dtype), torch.randn(2, 3, 13, 5, dtype=dtype)
    bias, sink = torch.randn(1, 6, 11, 13, dtype=dtype), torch.randn(6, dtype=dtype)
    mask = Mask.causal() & Mask.padding([13, 8], "left")
    return [t.requires_grad_() for t in (q, k, bias, sink)], mask


@pytest.mark.parametrize("with_sink", [False, True])
def test_gradients_through_cap_and_sink(with_sink):
    leaves, mask = attached()
    q, k, bias, sink = leaves
    leaves = leaves if with_sink else leaves[:3]
    sink = sink if with_sink else None
    m = AttentionMap(q, k, mask, bias=bias, cap=1.3, sink=sink, detach=False)
    expected = dense(q, k, mask, 5**-0.5, bias, 1.3, sink)
    factor = torch.randn(expected.shape, dtype=torch.float64)
    torch.testing.assert_close(m.dense(), expected)
    ours = torch.autograd.grad((m.dense() * factor).sum(), leaves)
    if not with_sink:  # softmax over a row of -inf has no gradient; ours is 0
        assert not any(t.isnan().any() for t in ours)
        hidden = ~mask.dense(11, 13) & mask.dense(11, 13).any(-1, keepdim=True)
        scores = 1.3 * torch.tanh(q @ k.repeat_interleave(2, 1).mT * 5**-0.5 / 1.3) + bias
        visible = mask.dense(11, 13).any(-1, keepdim=True)
        plain = scores.masked_fill(hidden, -math.inf).softmax(-1) * visible
        torch.testing.assert_close(m.dense(), plain)
        expected = plain
    theirs = torch.autograd.grad((expected * factor).sum(), leaves)
    torch.testing.assert_close(ours, theirs)
    with pytest.raises(RuntimeError, match="no gradient"):
        m.to_sink  # noqa: B018


def test_queries_without_a_key_give_everything_to_the_sink():
    (q, k, bias, sink), mask = attached()
    m = AttentionMap(q, k, mask, bias=bias, cap=2.0, sink=sink)
    assert m.blind.sum() == 6 * 3
    assert torch.equal(m.blind[1, :, :3], torch.ones(6, 3).bool())
    assert torch.equal(m.to_sink[m.blind], torch.ones(18, dtype=torch.float64))
    assert not m.dense()[m.blind].any()
    torch.testing.assert_close(m.lse[1, :, 0], sink.detach())
    found = m.summary(entropy=True, received=True, top=2, distance=True, previous=True)
    assert not found.entropy[m.blind].any()
    assert not found.distance.mean[m.blind].any()
    assert (found.top.keys[m.blind] == -1).all()
    assert found.received.isfinite().all()
    without = AttentionMap(q, k, mask)
    assert torch.equal(without.blind, without.lse.isneginf())
    assert not without.to_sink.any()
    lowest = torch.zeros(2, 1, 11, 13, dtype=torch.float64)
    lowest[1, :, :3] = torch.finfo(torch.float32).min  # a whole row, as eager models hide padding
    saturated = AttentionMap(q, k, bias=lowest, sink=sink)
    assert not saturated.dense()[1, :, :3].any()
    assert (saturated.to_sink[1, :, :3] == 1).all()
    torch.testing.assert_close(saturated.dense(), dense(q, k, None, 5**-0.5, lowest, None, sink))


def test_cap_sink_and_values_go_wherever_the_map_goes():
    (q, k, bias, sink), mask = attached()
    values = torch.randn(2, 3, 13, 7, dtype=torch.float64, requires_grad=True)
    m = AttentionMap(q, k, mask, bias=bias, cap=1.7, sink=sink, values=values)
    weights = dense(q, k, mask, 5**-0.5, bias, 1.7, sink).detach()
    assert not m.values.requires_grad
    assert m.cap == 1.7
    assert m.sink_logits.shape == (2, 6, 11)
    assert repr(m).startswith("AttentionMap(batch=2, heads=6, queries=11, keys=13, cap=1.7, with a")
    held = 8 * (2 * 6 * 11 * 5 + 2 * 3 * 13 * 5 + 6 * 11 * 13 + 6 + 2 * 3 * 13 * 7)
    masked = []
    mask.encode(masked)
    assert m.nbytes == held + sum(t.nbytes for t in masked)
    for known in (False, True):
        if known:
            m.normalise()
        some = m.select(batch=1, heads=[4, 1])
        close(some.dense(), weights[1:, [4, 1]])
        close(some.to_sink, 1 - weights[1:, [4, 1]].sum(-1))
        assert torch.equal(some.values, values[1:, [2, 0]])
        assert (some.cap, some.head_numbers) == (1.7, (4, 1))
        low = m.to(torch.float32)
        close(low.dense(), weights)
        close(low.received(), weights.sum(2))
        assert low.values.dtype == low.sink_logits.dtype == torch.float32
        assert low.to("meta").values.device.type == "meta"
        close(m.detach().dense(), weights)
    loose = AttentionMap(q, k, cap=1.7, sink=sink, values=values, detach=False)
    assert loose.values.requires_grad
    assert not loose.detach().values.requires_grad
    assert not loose.detach().dense().requires_grad
    with torch.no_grad():
        close(m.cells((11, 13), batch=1, heads=2)[0].nan_to_num(0.0), weights[1, 2])
        assert m.page(batch=1).layers[0].weights.shape == (6, 11, 13)
        close(torch.tensor(m.page(batch=1).layers[0].weights).double(), weights[1])


def test_a_long_capped_map_with_a_sink():
    """Longer than a tile, where the normalisers come from PyTorch's fused kernel without a cap."""
    q, k = torch.randn(1, 2, 300, 8, dtype=torch.float64), torch.randn(1, 1, 300, 8).double()
    mask, sink = Mask.causal() & Mask.window(200), torch.tensor([1.0, 4.0]).double()
    for cap in (None, 1.5):
        m = AttentionMap(q, k, mask, cap=cap, sink=sink)
        weights = dense(q, k, mask, 8**-0.5, None, cap, sink)
        close(m.entropy(), entropy(weights))
        close(m.to_sink, 1 - weights.sum(-1))
        close(m.previous()[..., 1:], weights.diagonal(-1, 2, 3))
        close(m[0, 1, 250:260], weights[0, 1, 250:260])


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is off on CUDA")
@pytest.mark.parametrize("name", ["window", "left"])
def test_triton_supports_cap_and_sink(name, monkeypatch):
    q, k = torch.randn(BATCH, 2, 70, 16), torch.randn(BATCH, 1, 75, 16)
    mask, sink = MASKS[name](70, 75), torch.randn(2)
    monkeypatch.setattr(tile_loop, "_has_triton", lambda device: True)
    m = AttentionMap(q, k, mask, cap=1.2, sink=sink)
    assert tile_loop.triton_arguments(m.lazy_scores)["cap"] == 1.2
    weights = dense(q, k, mask, 16**-0.5, None, 1.2, sink)
    found = m.summary(entropy=True, received=True, thumbnail=(1, 1))
    close(m.to_sink, 1 - weights.sum(-1))
    close(found.entropy, entropy(weights))
    close(found.received, weights.sum(2))
    close(found.thumbnail[..., 0, 0] / 70, weights.sum((2, 3)) / 70)


def test_errors_about_cap_sink_and_values():
    q = torch.randn(2, 4, 5, 3)
    with pytest.raises(ValueError, match=r"cap: expected a positive number, got 0.\n.*cap=None"):
        AttentionMap(q, q, cap=0)
    with pytest.raises(
        ShapeError,
        match=r"sink: expected \(heads,\) = \(4\) or \(batch, heads, queries\) = \(2, 4, 5\), got",
    ):
        AttentionMap(q, q, sink=torch.zeros(5))
    with pytest.raises(
        ShapeError, match=r"values: expected \(batch, kv_heads, keys, value_dim\) as k \(2, 4, 5"
    ):
        AttentionMap(q, q, values=torch.zeros(2, 4, 6, 3))
