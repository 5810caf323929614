"""Masks: by name against index arithmetic, combined, drawn, and in other libraries' words."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention.flex_attention import create_mask
from torch.nn.functional import scaled_dot_product_attention

from clearhead import Mask, ShapeError

sizes = st.integers(1, 9)


def by_hand(rule, queries, keys):
    return torch.tensor([[rule(i, j) for j in range(keys)] for i in range(queries)])[None, None]


@given(sizes, sizes)
def test_causal_is_aligned_to_the_end_or_the_start(queries, keys):
    end = by_hand(lambda i, j: j <= i + keys - queries, queries, keys)
    start = by_hand(lambda i, j: j <= i, queries, keys)
    assert torch.equal(Mask.causal().dense(queries, keys), end)
    assert torch.equal(Mask.causal("start").dense(queries, keys), start)


@given(sizes, sizes, st.integers(1, 5), st.integers(0, 4))
def test_window_counts_the_token_itself(queries, keys, back, ahead):
    here = keys - queries
    expected = by_hand(lambda i, j: i + here - back < j <= i + here + ahead, queries, keys)
    assert torch.equal(Mask.window(back, ahead).dense(queries, keys), expected)


def test_padding_by_length_and_by_bool_are_the_same():
    right = torch.tensor([[True, True, False, False], [True, True, True, True]])
    assert torch.equal(Mask.padding([2, 4]).dense(3, 4), Mask.padding(right).dense(3, 4))
    left = right.flip(1)
    assert torch.equal(Mask.padding([2, 4], "left").dense(3, 4), Mask.padding(left).dense(3, 4))
    assert torch.equal(Mask.padding(right).dense(3, 4)[:, 0, 1], right)


def any_mask(queries, keys, seed):
    generator = torch.Generator().manual_seed(seed)
    return st.recursive(
        st.one_of(
            st.sampled_from(["start", "end"]).map(Mask.causal),
            st.tuples(st.integers(1, 4), st.integers(0, 3)).map(lambda w: Mask.window(*w)),
            st.sampled_from(["left", "right"]).map(
                lambda side: Mask.padding(
                    torch.randint(0, keys + 1, (2,), generator=generator), side
                )
            ),
            st.sampled_from([(queries, keys), (2, 1, queries, keys), (1, 3, 1, keys)]).map(
                lambda shape: Mask.custom(torch.rand(shape, generator=generator) > 0.4)
            ),
        ),
        lambda parts: st.tuples(parts, parts, st.booleans()).map(
            lambda three: three[0] & three[1] if three[2] else three[0] | three[1]
        ),
        max_leaves=4,
    )


@given(sizes, sizes, st.data())
def test_tiles_reach_and_text_agree_with_the_whole(queries, keys, data):
    mask = data.draw(any_mask(queries, keys, 0))
    whole = mask.dense(queries, keys)
    first = data.draw(st.integers(0, queries - 1))
    rows = slice(first, data.draw(st.integers(first + 1, queries)))
    left = data.draw(st.integers(0, keys - 1))
    cols = slice(left, data.draw(st.integers(left + 1, keys)))
    tile = mask.tile(rows, cols, queries, keys)
    part = whole[:, :, rows.start : rows.stop, cols.start : cols.stop]
    if tile is None:
        assert part.all()
    else:
        assert torch.equal(tile.expand_as(part), part)
    reach = mask.reach(rows, queries, keys)
    outside = whole[:, :, rows.start : rows.stop].clone()
    outside[..., reach.start : reach.stop] = False
    assert not outside.any()
    tensors: list[torch.Tensor] = []
    again = Mask.decode(mask.encode(tensors), tensors)
    assert torch.equal(again.dense(queries, keys), whole)
    if mask.is_start_causal(queries, keys):
        assert torch.equal(whole[0, 0], torch.ones(queries, keys, dtype=torch.bool).tril())
    if mask.is_same_for_all_queries(queries, keys):
        assert torch.equal(whole, whole[:, :, :1].expand_as(whole))
    if mask.is_never_empty(queries, keys):
        assert whole.any(-1).all()


@given(sizes, st.integers(0, 3), st.integers(0, 3), st.data())
def test_a_cache_wider_than_what_it_holds(queries, before, empty, data):
    seen, capacity = before + queries, before + queries + empty
    mask = data.draw(any_mask(queries, capacity, 3))
    wide = mask.over(queries, torch.tensor(seen), capacity).expand(2, 3, queries, capacity)
    if "custom" not in mask.encode([]):  # a matrix is as wide as the capacity
        expected = mask.dense(queries, seen).expand(2, 3, -1, -1)
        assert torch.equal(wide[..., :seen], expected)
    elif not empty:
        assert torch.equal(wide, mask.dense(queries, capacity).expand(2, 3, -1, -1))


@given(sizes, sizes, st.data())
def test_and_or_are_and_or(queries, keys, data):
    a = data.draw(any_mask(queries, keys, 1))
    b = data.draw(any_mask(queries, keys, 2))
    dense_a, dense_b = a.dense(queries, keys), b.dense(queries, keys)
    assert torch.equal(
        (a & b).dense(queries, keys).expand(2, 3, -1, -1), (dense_a & dense_b).expand(2, 3, -1, -1)
    )
    assert torch.equal(
        (a | b).dense(queries, keys).expand(2, 3, -1, -1), (dense_a | dense_b).expand(2, 3, -1, -1)
    )


MASKS = [
    Mask.causal(),
    Mask.causal() & Mask.window(2),
    Mask.causal() & Mask.padding([5, 3]),
    Mask.padding([5, 3]) | Mask.window(1),
    Mask.causal() & Mask.custom(torch.ones(2, 3, 5, 5, dtype=torch.bool).tril(2)),
]


@pytest.mark.parametrize("mask", MASKS)
def test_conversions_mean_the_same_to_the_libraries_themselves(mask):
    """A row sees exactly the keys whose values reach its output, whoever computes it."""
    x = torch.randn(2, 5, 6)
    nn_mha = nn.MultiheadAttention(6, 3, batch_first=True)
    _, weights = nn_mha(x, x, x, average_attn_weights=False, **mask.to_nn_multihead(3, 5))
    expected = mask.dense(5).expand(2, 3, -1, -1)
    assert torch.equal(weights > 0, expected)

    q = torch.randn(2, 3, 5, 4)
    one_hot = torch.eye(5).expand(2, 3, 5, 5)
    sdpa = scaled_dot_product_attention(q, q, one_hot, attn_mask=mask.to_sdpa(5))
    assert torch.equal(sdpa > 0, expected)
    added = torch.softmax(torch.randn(2, 3, 5, 5) + mask.to_additive(torch.float32, 5), -1)
    assert torch.equal(added > 0, expected)
    assert torch.equal(create_mask(mask.to_flex(5), 2, 3, 5, 5, device="cpu"), expected)


def test_drawing():
    assert Mask.causal().draw(2, 3) == "     k0 k1 k2\nq0   ■  ■  ·\nq1   ■  ■  ■"
    assert "sequence 1" in str(Mask.padding([1, 3]))
    assert "head 2" in str(MASKS[4])


def test_problem_names_rows_that_see_nothing():
    assert Mask.causal().problem(4, 4) is None
    inverted = Mask.causal() & Mask.custom(~torch.ones(4, 4, dtype=torch.bool).tril())
    assert inverted.problem(4, 4) == (
        "4 of 4 queries may attend to nothing.\n  True means may attend; in many libraries it "
        "means the opposite. Inverted? Try Mask.custom(~may_attend)."
    )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Mask.custom(torch.zeros(3, 3)), "0 and -inf"),
        (
            lambda: Mask.custom(torch.ones(3, 3, dtype=torch.int64)),
            r"1 = hidden\? Try may_attend == 0",
        ),
        (
            lambda: Mask.custom(torch.ones(3, dtype=torch.bool)),
            r"expected \(queries, keys\).*got \(3\)",
        ),
        (lambda: Mask.padding(torch.ones(2, 5)), r"1 = real token\? Try real.bool\(\)"),
        (lambda: Mask.padding(torch.tensor(3)), r"expected lengths \(batch,\)"),
        (
            lambda: Mask.padding(torch.ones(2, 5) > 0).dense(5, 6),
            r"expected \(batch, keys=6\), got \(2, 5\)",
        ),
        (
            lambda: Mask.custom(torch.ones(3, 3) > 0).dense(4, 4),
            r"queries=4, keys=4\), got \(1, 1, 3, 3\)",
        ),
    ],
)
def test_shape_errors_explain(build, message):
    with pytest.raises(ShapeError, match=message):
        build()


def test_value_errors_explain():
    with pytest.raises(ValueError, match='align must be "start" or "end", got \'middle\''):
        Mask.causal("middle")
    with pytest.raises(ValueError, match="the token itself counts"):
        Mask.window(0)
    for back, ahead in ((2.5, 0), (True, 0), (2, 1.0)):
        with pytest.raises(ValueError, match=rf"integers.*got back={back}, ahead={ahead}"):
            Mask.window(back, ahead)
    with pytest.raises(ValueError, match='align must be "start" or "end", got \'x\''):
        Mask.window(3, align="x")
    with pytest.raises(ValueError, match="padding: expected lengths of 0 or more, got -1"):
        Mask.padding([-1, 3])
    with pytest.raises(ValueError, match='side must be "left" or "right"'):
        Mask.padding([1], "up")
    with pytest.raises(ValueError, match="not an encoded mask"):
        Mask.decode("('lambda',)", [])


def test_only_masks_can_be_combined():
    may = torch.ones(3, 3, dtype=torch.bool)
    for join in (
        lambda: Mask.causal() & may,
        lambda: Mask.causal() | may,
        lambda: may & Mask.causal(),
        lambda: may | Mask.causal(),
        lambda: Mask.causal() & None,
    ):
        with pytest.raises(TypeError, match=r"expected a clearhead.Mask, got .*\n.*Mask.custom"):
            join()


def test_lengths_may_exceed_the_number_of_keys():
    assert torch.equal(Mask.padding([5, 2]).dense(3), Mask.padding([3, 2]).dense(3))
    assert torch.equal(Mask.padding([5, 2], "left").dense(3), Mask.padding([3, 2], "left").dense(3))


@pytest.mark.parametrize("mask", [Mask.causal(), Mask.causal() | Mask.padding([2])], ids=repr)
def test_inversion_is_explained(mask):
    with pytest.raises(TypeError, match=r"(?s)cannot be inverted.*Mask.custom\(~mask.dense"):
        _ = ~mask
    assert not (Mask.custom(~mask.dense(3)) & mask).dense(3).any()


def test_the_order_of_arguments_of_an_additive_mask():
    with pytest.raises(TypeError, match=r"(?s)dtype first, got 3.*to_additive\(torch.float32, q"):
        Mask.causal().to_additive(3, 3, torch.float32)  # type: ignore[arg-type]
