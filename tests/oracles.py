"""Attention in plain Python lists and math.exp: the truth that the ladder is proven against.

No torch here but for turning tensors into lists and back. One number at a time, as on paper.
"""

import cmath
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Vector = list[float]
Matrix = list[Vector]


def linear(x: Matrix, layer: nn.Linear) -> Matrix:
    weight: Matrix = layer.weight.tolist()
    bias: Vector = [0.0] * len(weight) if layer.bias is None else layer.bias.tolist()
    return [
        [
            sum(a * w for a, w in zip(row, column, strict=True)) + b
            for column, b in zip(weight, bias, strict=True)
        ]
        for row in x
    ]


def softmax(scores: Vector) -> Vector:
    """Softmax in which -inf gets nothing, and a row of nothing but -inf gets zeros."""
    peak = max(scores)
    if peak == -math.inf:
        return [0.0] * len(scores)
    powers = [math.exp(score - peak) for score in scores]
    return [power / math.fsum(powers) for power in powers]


def attend(
    q: Matrix, k: Matrix, v: Matrix, scale: float, visible: Callable[[int, int], bool]
) -> tuple[Matrix, Matrix]:
    """(context, weights) of one head."""
    context, weights = [], []
    for i, query in enumerate(q):
        scores = [
            math.fsum(a * b for a, b in zip(query, key, strict=True)) * scale
            if visible(i, j)
            else -math.inf
            for j, key in enumerate(k)
        ]
        row = softmax(scores)
        weights.append(row)
        context.append(
            [
                math.fsum(w * value[c] for w, value in zip(row, v, strict=True))
                for c in range(len(v[0]))
            ]
        )
    return context, weights


def causal(i: int, j: int) -> bool:
    return j <= i


def everything(i: int, j: int) -> bool:
    return True


def rotate(rows: Matrix, base: float, start: int = 0) -> Matrix:
    """Rotary positions with complex numbers: entries c and c + half are one number's two parts."""
    rotated = []
    for position, row in enumerate(rows, start):
        half = len(row) // 2
        turned = [
            complex(row[c], row[c + half]) * cmath.exp(1j * position * base ** (-c / half))
            for c in range(half)
        ]
        rotated.append([z.real for z in turned] + [z.imag for z in turned])
    return rotated


def rms_norm(rows: Matrix, weight: Vector, eps: float) -> Matrix:
    normed = []
    for row in rows:
        root = math.sqrt(math.fsum(a * a for a in row) / len(row) + eps)
        normed.append([a / root * w for a, w in zip(row, weight, strict=True)])
    return normed


def multi_head(
    module: Any, x: Matrix, visible: Callable[[int, int], bool], context: Matrix | None = None
) -> Matrix:
    """What `clearhead.MultiHeadAttention` with all its options must compute, one sequence."""
    source = x if context is None else context
    q, k, v = (
        linear(x, module.W_query),
        linear(source, module.W_key),
        linear(source, module.W_value),
    )
    width, heads = module.head_dim, []
    for h in range(module.num_heads):
        g = h // (module.num_heads // module.num_kv_heads)
        mine, shared = (h * width, (h + 1) * width), (g * width, (g + 1) * width)
        head_q, head_k, head_v = columns(q, *mine), columns(k, *shared), columns(v, *shared)
        if module.qk_norm:
            eps = torch.finfo(torch.float64).eps  # what torch takes when nothing is said
            head_q = rms_norm(head_q, module.q_norm.weight.tolist(), eps)
            head_k = rms_norm(head_k, module.k_norm.weight.tolist(), eps)
        if module.rope is not None:
            head_q, head_k = (rotate(rows, module.rope.base) for rows in (head_q, head_k))
        heads.append(attend(head_q, head_k, head_v, width**-0.5, visible)[0])
    return linear(side_by_side(heads), module.out_proj)


def columns(x: Matrix, start: int, stop: int) -> Matrix:
    return [row[start:stop] for row in x]


def side_by_side(parts: list[Matrix]) -> Matrix:
    return [[a for part in parts for a in part[i]] for i in range(len(parts[0]))]


def as_tensor(rows: list[Matrix]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def randomise(module: nn.Module, seed: int = 0) -> nn.Module:
    """Distinct random float64 parameters, biases and norms too: equal ones hide exchanged ones."""
    generator = torch.Generator().manual_seed(seed)
    module.to(torch.float64)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(
                torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5
            )
    return module


def gradients(function: Callable[..., Tensor], module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """d(something random of the output) / d(x and every parameter)."""
    x = x.detach().clone().requires_grad_()
    module.zero_grad()
    output = function(x)
    weight = torch.randn(
        output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    (output * weight.to(output.dtype)).sum().backward()
    grads = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    assert x.grad is not None
    return {"x": x.grad, **grads}
