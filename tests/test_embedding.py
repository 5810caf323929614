"""Embeddings: look-ups, positions with a cache, rotary against complex numbers and Llama."""

import cmath
import math

import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from clearhead.embedding import Embedding, Rope
from clearhead.validation import ShapeError

BATCH, HEADS, TOKENS, HEAD_DIM = 2, 3, 7, 10


@pytest.fixture
def embedding():
    torch.manual_seed(0)
    return Embedding(vocab_size=11, d_model=5, context_length=7)


@pytest.fixture
def vectors():
    generator = torch.Generator().manual_seed(1)
    shape = (BATCH, HEADS, TOKENS, HEAD_DIM)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def test_each_vector_is_token_plus_position(embedding):
    ids = torch.tensor([[3, 1, 10], [0, 3, 3]])
    out = embedding(ids)
    assert out.shape == (2, 3, 5)
    for row in range(2):
        for position in range(3):
            expected = (
                embedding.token.weight[ids[row, position]] + embedding.position.weight[position]
            )
            torch.testing.assert_close(out[row, position], expected)
    assert set(embedding.state_dict()) == {"token.weight", "position.weight"}


@pytest.mark.parametrize("start", [4, torch.tensor(4), torch.tensor([4, 4])])
def test_start_continues_where_the_cache_ends(embedding, start):
    ids = torch.tensor([[3, 1, 10, 2, 5, 6, 0], [0, 3, 3, 9, 8, 7, 1]])
    torch.testing.assert_close(embedding(ids[:, 4:], start=start), embedding(ids)[:, 4:])


def test_padding_has_position_0_and_does_not_count(embedding):
    """A start of -2 for a sentence: two tokens of padding on its left."""
    ids = torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6], [5, 3, 5, 8]])
    out = embedding(ids, start=torch.tensor([0, -2, 1]))
    torch.testing.assert_close(out[:1], embedding(ids[:1]))
    torch.testing.assert_close(out[1:2, 2:], embedding(ids[1:2, 2:]))
    first = embedding.position.weight[0]
    torch.testing.assert_close(out[1, :2], embedding.token.weight[ids[1, :2]] + first)
    torch.testing.assert_close(out[2:], embedding(ids[2:], start=1))


def test_without_positions(embedding):
    """For a rotary model: no table, no limit of length."""
    plain = Embedding(vocab_size=11, d_model=5, context_length=None)
    assert set(plain.state_dict()) == {"token.weight"}
    ids = torch.randint(11, (2, 13))
    assert torch.equal(plain(ids), plain.token.weight[ids])
    assert torch.equal(plain(ids, start=torch.tensor([100, -3])), plain(ids))
    with pytest.raises(ValueError, match="vocab_size - 1 = 10, got 11"):
        plain(torch.tensor([[11]]))


@pytest.mark.parametrize(
    ("ids", "start", "error", "message"),
    [
        (torch.rand(2, 3), 0, ShapeError, r"got torch.float32.\n  Are these already .*ids.long"),
        (torch.ones(2, 3, dtype=torch.bool), 0, ShapeError, r"got torch.bool.\n  Try ids.long"),
        (torch.tensor([1, 2]), 0, ShapeError, r"got \(2,\).\n  One sentence.*ids.unsqueeze\(0\)"),
        (torch.zeros(1, 1, 1).long(), 0, ShapeError, r"expected \(batch, tokens\), got \(1, 1, 1"),
        (torch.zeros(1, 8).long(), 0, ValueError, r"context_length \(7\) tokens, got 8.\n.*-7:\]"),
        (torch.zeros(1, 3).long(), 5, ValueError, r"\(5 \+ 3\) is more than context_length \(7\)"),
        (torch.zeros(1, 3).long(), torch.tensor(5), ValueError, r"\(5 \+ 3\) is more than"),
        (torch.zeros(1, 3).long(), -1, ValueError, "start: expected 0 or more, got -1"),
        (torch.zeros(1, 3).long(), torch.tensor(-1), ValueError, "expected 0 or more, got -1"),
        (torch.zeros(2, 3).long(), torch.tensor([-4, 5]), ValueError, r"\(5 \+ 3\) is more than"),
        (torch.zeros(2, 3).long(), torch.zeros(3).long(), ShapeError, r"\(batch=2,\), got \(3,\)"),
        (torch.tensor([[1, 11]]), 0, ValueError, r"vocab_size - 1 = 10, got 11.\n.*tokenizer"),
        (torch.tensor([[1, -1]]), 0, ValueError, r"vocab_size - 1 = 10, got -1"),
    ],
)
def test_wrong_ids_explain_themselves(embedding, ids, start, error, message):
    with pytest.raises(error, match=message):
        embedding(ids, start=start)


@pytest.mark.parametrize("name", ["vocab_size", "d_model", "context_length"])
def test_sizes_must_be_positive(name):
    sizes = {"vocab_size": 2, "d_model": 3, "context_length": 5, name: 0}
    with pytest.raises(ValueError, match=f"{name}: expected 1 or more, got 0"):
        Embedding(**sizes)


@pytest.mark.parametrize("start", [2, torch.tensor(2), torch.tensor([2, -3])])
def test_embedding_compiles_to_one_graph(embedding, start):
    ids = torch.tensor([[3, 1, 10], [0, 3, 3]])
    compiled = torch.compile(embedding, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(ids, start=start), embedding(ids, start=start))


def rotate_by_complex_numbers(vector, position, base):
    """The definition, with Python's own complex numbers."""
    half = len(vector) // 2
    planes = []
    for i in range(half):
        angle = position * base ** (-2 * i / len(vector))
        planes.append(complex(vector[i], vector[i + half]) * cmath.exp(1j * angle))
    return [plane.real for plane in planes] + [plane.imag for plane in planes]


@pytest.mark.parametrize("base", [10000.0, 500000.0, 3.0])
def test_rotation_equals_complex_numbers(vectors, base):
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [9, 100, 3, 3, 0, 1_000_000, 2]])
    out = Rope(base).rotate(vectors, positions)
    for batch in range(BATCH):
        for head in range(HEADS):
            for token in range(TOKENS):
                expected = rotate_by_complex_numbers(
                    vectors[batch, head, token].tolist(), positions[batch, token].item(), base
                )
                assert out[batch, head, token].tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("per_sentence", [False, True])
def test_rotation_equals_llama(vectors, per_sentence):
    positions = torch.tensor([5, 0, 3, 17, 2, 8, 1])
    if per_sentence:
        positions = torch.stack((positions, positions.flip(0) + 4))
    speeds = 1.0 / 10000.0 ** (torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM)
    angles = positions.expand(BATCH, TOKENS)[..., None] * speeds
    angles = torch.cat((angles, angles), dim=-1)
    keys = vectors.flip(1)
    expected = apply_rotary_pos_emb(vectors, keys, angles.cos(), angles.sin())
    rope = Rope()
    torch.testing.assert_close(rope.rotate(vectors, positions), expected[0])
    torch.testing.assert_close(rope.rotate(keys, positions), expected[1])


def test_length_is_kept_and_gradients_turn_back(vectors):
    x = vectors.clone().requires_grad_()
    positions = torch.arange(TOKENS)
    out = Rope().rotate(x, positions)
    torch.testing.assert_close(out.norm(dim=-1), x.norm(dim=-1))
    (gradient,) = torch.autograd.grad(out, x, grad_outputs=out.detach())
    torch.testing.assert_close(gradient, vectors)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_is_rounded_once(vectors, dtype):
    x = vectors.to(dtype)
    positions = torch.arange(1000, 1000 + TOKENS)
    out = Rope().rotate(x, positions)
    assert out.dtype == dtype
    exact = Rope().rotate(x.double(), positions)
    # Half a step of the dtype for the rounding, and float32's error in the angle of position 1000.
    bound = exact.abs() * torch.finfo(dtype).eps / 2 + 2e-4
    assert ((out.double() - exact).abs() <= bound).all()


def test_rope_compiles_to_one_graph(vectors):
    rope = Rope(base=500.0)
    compiled = torch.compile(rope.rotate, fullgraph=True, backend="aot_eager")
    positions = torch.arange(TOKENS)
    torch.testing.assert_close(compiled(vectors, positions), rope.rotate(vectors, positions))


@pytest.mark.parametrize("base", [0.0, -1.0, math.inf, math.nan])
def test_base_must_be_positive(base):
    with pytest.raises(ValueError, match=r"base: expected a positive number, got .*\n.*10000.0"):
        Rope(base)


@pytest.mark.parametrize(
    ("shape", "positions", "error", "message"),
    [
        ((2, 3, 7, 5), 7, ValueError, r"expected an even number, got 5.\n  Rotary.*num_heads"),
        ((2, 7, 6), 7, ShapeError, r"head_dim\), got \(2, 7, 6\).\n.*after they are split"),
        ((2, 7, 3, 6), 7, ShapeError, r"\(tokens=3,\) or .*got \(7,\).\n.*was it transposed"),
    ],
)
def test_wrong_shapes_explain_themselves(shape, positions, error, message):
    with pytest.raises(error, match=message):
        Rope().rotate(torch.zeros(shape), torch.arange(positions))
