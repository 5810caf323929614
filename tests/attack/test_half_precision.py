"""bfloat16 with qk_norm: a gradient that looks wrong is rounding, the same in plain code.

In one of 620 configurations a gradient of W_key was off by 0.31, in all three kernels. The norm
divides the gradient by the length of the key, and so its rounding too: short keys make it large.
"""

import copy
from statistics import geometric_mean

import pytest
import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from clearhead import MultiHeadAttention

NAMES = ("W_query.weight", "W_key.weight", "W_value.weight")


def plain(m: MultiHeadAttention, x: Tensor) -> Tensor:
    """Attention as one writes it, in the dtype of its weights."""
    batch, tokens, _ = x.shape
    shape = (batch, tokens, m.num_heads, m.head_dim)
    q, k, v = (layer(x).view(shape) for layer in (m.W_query, m.W_key, m.W_value))
    q = rms_norm(q, (m.head_dim,), m.q_norm.weight)
    k = rms_norm(k, (m.head_dim,), m.k_norm.weight)
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    scores = q @ k.transpose(-2, -1) / m.head_dim**0.5
    future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(future, -torch.inf).softmax(-1)
    return m.out_proj((weights @ v).transpose(1, 2).reshape(batch, tokens, -1))


def gradients(m: MultiHeadAttention, out: Tensor, cotangent: Tensor) -> dict[str, Tensor]:
    m.zero_grad()
    (out * cotangent).sum().backward()
    return {name: m.get_parameter(name).grad.double().clone() for name in NAMES}


def errors(seed: int) -> dict[tuple[str, str], tuple[float, float]]:
    """For each kernel and weight: its error, and that of plain code, both against float64."""
    torch.manual_seed(seed)
    heads, head_dim, tokens, d_in = (
        sizes[seed * step % len(sizes)]
        for step, sizes in ((1, (1, 2, 3)), (2, (2, 3, 5, 8, 64)), (3, (2, 7, 33)), (5, (3, 17)))
    )
    m = MultiHeadAttention(d_in, heads * head_dim, 64, 0.0, heads, qk_norm=True).bfloat16()
    x, c = (torch.randn(2, tokens, n).bfloat16() for n in (d_in, heads * head_dim))
    exact = copy.deepcopy(m).double()
    truth = gradients(exact, plain(exact, x.double()), c.double())
    usual = gradients(m, plain(m, x), c)
    found = {}
    for m.kernel in ("eager", "sdpa", "blocked"):
        ours = gradients(m, m(x), c)
        for name in NAMES:
            both = ((one[name] - truth[name]).abs().max().item() for one in (ours, usual))
            found[m.kernel, name] = tuple(both)
    return found


@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(1500), marks=pytest.mark.slow)])
def test_gradients_through_the_norm_are_as_exact_as_plain_code(seeds):
    found = [errors(seed) for seed in seeds]
    for kernel, name in found[0]:
        pairs = [one[kernel, name] for one in found]
        ours, usual = (sum(error**2 for error in side) ** 0.5 for side in zip(*pairs, strict=True))
        assert ours <= 2 * usual, (kernel, name)
        ratios = [mine / theirs for mine, theirs in pairs if mine and theirs]
        assert 0.8 < geometric_mean(ratios) < 1.2, (kernel, name)
        if kernel == "eager":
            assert sum(mine > 2 * theirs for mine, theirs in pairs) == 0
