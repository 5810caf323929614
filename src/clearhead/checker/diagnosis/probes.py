"""What can be measured of an attention from outside, without knowing how it is written.

Each probe answers one question: does a later token change an earlier output, does one sequence
change another, does every weight get a gradient, do other lengths and half precision work.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clearhead.checker.harness import axis_orders as axes
from clearhead.checker.harness.subject import (
    Inputs,
    Session,
    Subject,
    arguments_for,
    call,
    each,
    handed,
    inputs_for,
)
from clearhead.checker.harness.weight_roles import role_of, takes_last
from clearhead.checker.sandbox.submission import Failure, Gradients


@dataclass(frozen=True)
class Influence:
    """How much a change at one position moved the output at another, where it moved most.

    Args:
        size: The largest change.
        changed: The token or sequence that was changed.
        moved: The token or sequence whose output moved most.
    """

    size: float
    changed: int
    moved: int


def changed(inputs: Inputs, batch: int | slice, token: int | slice, seed: int = 9) -> Inputs:
    """The same inputs with other values at one position."""
    generator = torch.Generator().manual_seed(seed)

    def other(tensor: Tensor) -> Tensor:
        new = tensor.clone()
        noise = torch.randn(new[batch, token].shape, generator=generator, dtype=torch.float64)
        new[batch, token] += noise.to(new) * tensor.abs().mean()
        return new

    return each(inputs, other)


def future_leak(session: Session, subject: Subject, inputs: Inputs, out: Tensor) -> Influence:
    """How much later tokens change earlier outputs: 0 for causal attention."""
    worst = Influence(0.0, 0, 0)
    tokens = inputs[0].shape[1]
    for token in {tokens - 1, max(tokens - 2, 1)} - {0, tokens}:
        other = call(session, subject, changed(inputs, slice(None), token))
        if isinstance(other, Failure) or other.shape != out.shape or out.shape[1] < tokens:
            continue
        moved = (other - out)[:, :token].nan_to_num(0.0, 0.0, 0.0).abs().amax((0, 2))
        where = int(moved.argmax())
        if float(moved[where]) > worst.size:
            worst = Influence(float(moved[where]), token, where)
    return worst


def sees_others(session: Session, subject: Subject, inputs: Inputs, out: Tensor) -> bool:
    """Whether the first token changes any later output, as in every attention."""
    other = call(session, subject, changed(inputs, slice(None), 0))
    if isinstance(other, Failure) or other.shape != out.shape:
        return True
    return not bool(((other - out)[:, 1:].abs() < 1e-12).all())


def queries_apart(session: Session, subject: Subject, inputs: Inputs, out: Tensor) -> bool:
    """Whether the first query changes only its own output."""
    q, k, v = inputs
    other = call(session, subject, (changed((q, q, q), slice(None), 0)[0], k, v))
    if isinstance(other, Failure) or other.shape != out.shape:
        return True
    return bool(((other - out)[:, 1:].abs() < 1e-12).all())


def moved_by_last(session: Session, subject: Subject, inputs: Inputs, out: Tensor) -> list[int]:
    """The other tokens whose outputs the last token changes."""
    other = call(session, subject, changed(inputs, slice(None), -1))
    if isinstance(other, Failure) or other.shape != out.shape or out.shape[1] < 3:
        return []
    moved = (other - out)[:, :-1].abs().amax((0, 2)) > 1e-9
    return [int(token) for token in moved.nonzero()]


def only_weighs(session: Session, subject: Subject, inputs: Inputs, out: Tensor) -> bool:
    """Whether the first token changes every later output only by a factor: nothing is mixed."""
    other = call(session, subject, changed(inputs, slice(None), 0))
    if isinstance(other, Failure) or other.shape != out.shape or out.shape[1:].numel() < 4:
        return False
    factors = (other / out)[:, 1:]
    same = (factors - factors[..., :1]).abs().amax(-1) < 1e-6
    return out.shape[-1] > 1 and bool(same.all() and ((factors - 1).abs() > 1e-6).any())


def batch_leak(session: Session, subject: Subject, inputs: Inputs, out: Tensor) -> float:
    """How much one sequence changes the output of another: 0 for any attention."""
    if len(inputs[0]) < 2:
        return 0.0
    other = call(session, subject, changed(inputs, 0, slice(None)))
    if isinstance(other, Failure) or other.shape != out.shape:
        return 0.0
    return float((other - out)[1:].nan_to_num(0.0, 0.0, 0.0).abs().max())


def is_sequence_first(session: Session, subject: Subject, inputs: Inputs, out: Tensor) -> bool:
    """Whether the first axis, not the second, is the token axis."""
    if subject.axes != "batch" or not batch_leak(session, subject, inputs, out) > 1e-9:
        return False
    other = call(session, subject, changed(inputs, slice(None), 0))
    if isinstance(other, Failure) or other.shape != out.shape:
        return False
    return float((other - out)[:, 1:].abs().max()) < 1e-9


def alike(inputs: Inputs) -> Inputs:
    """The inputs with every token replaced by the first."""
    return each(inputs, lambda t: t[:, :1].expand(-1, t.shape[1], -1).contiguous())


def same_tokens(session: Session, subject: Subject, inputs: Inputs) -> float:
    """How far the output for equal tokens is from the output for one: 0 if rows sum to one.

    If all tokens are equal, any weights that sum to one give the same vector.
    """
    many = call(session, subject, alike(inputs))
    one = call(session, subject, each(inputs, lambda t: t[:, :1]))
    if isinstance(many, Failure) or isinstance(one, Failure) or many.shape[2:] != one.shape[2:]:
        return 0.0
    if many.shape[1] != inputs[0].shape[1]:
        return 0.0
    gap = (many - one).abs().nan_to_num(torch.inf)
    return float(gap.max() / one.abs().max().clamp_min(1e-12))


def permutation_gap(session: Session, subject: Subject, inputs: Inputs, out: Tensor) -> float:
    """How far outputs for permuted tokens, or image rows and columns, are from permuted outputs."""
    tokens, generator = inputs[0].shape[1], torch.Generator().manual_seed(3)
    height = axes.height_of(tokens) if subject.axes in axes.PICTURES else 1
    order = torch.arange(tokens).view(height, -1)
    for axis, count in enumerate(order.shape):
        order = order.index_select(axis, torch.randperm(count, generator=generator))
    order = order.flatten()
    other = call(session, subject, each(inputs, lambda t: t[:, order].contiguous()))
    if isinstance(other, Failure) or other.shape != out.shape:
        return 0.0
    return float((other - out[:, order]).abs().max() / out.abs().max().clamp_min(1e-12))


def large_score_leak(session: Session, subject: Subject, inputs: Inputs) -> Influence:
    """Whether the future leaks when scores are very large, as after unstable training."""
    # Scores grow quadratically, up to tens of thousands.
    made = each(inputs, lambda t: t * 120.0)
    out = call(session, subject, made)
    if isinstance(out, Failure) or not out.isfinite().all():
        return Influence(0.0, 0, 0)
    worst = Influence(0.0, 0, 0)
    size = float(out.abs().max())
    for seed in range(4):
        for token in range(1, inputs[0].shape[1]):
            other = call(session, subject, changed(made, slice(None), token, seed=seed))
            if isinstance(other, Failure) or not other.isfinite().all():
                continue
            moved = (other - out)[:, :token].abs().amax((0, 2))
            where = int(moved.argmax())
            if float(moved[where]) > max(worst.size, 1e-4 * size):
                return Influence(float(moved[where]), token, where)
    return worst


def dtype_failure(session: Session, subject: Subject, dtype: torch.dtype) -> Failure | None:
    """The failure in another dtype; None if it runs."""
    other = replace(subject, dtype=dtype)
    failed = session.load({n: w.to(dtype) for n, w in subject.weights.items()})
    got = failed or call(session, other, inputs_for(other, subject.sizes.tokens))
    session.load({n: w.to(subject.dtype) for n, w in subject.weights.items()})
    return got if isinstance(got, Failure) else None


def idle_rows(session: Session, subject: Subject, inputs: Inputs, out: Tensor) -> dict[str, int]:
    """The number of features that are never used, for each projection that has any."""
    idle = _still_rows(session, subject, inputs, out)
    layers = {name.rpartition(".")[0] for name in idle}
    if layers:  # what a ReLU cuts off passes if the sign of the layer is flipped
        own = {name: weight.to(subject.dtype) for name, weight in subject.weights.items()}
        turned = {n: -w if n.rpartition(".")[0] in layers else w for n, w in own.items()}
        session.load(turned)
        again = _still_rows(session, subject, inputs, out)
        session.load(own)
        idle = {name: rows & again[name] for name, rows in idle.items() if name in again}
    return {name: int(rows.sum()) for name, rows in idle.items() if rows.any()}


def _still_rows(
    session: Session, subject: Subject, inputs: Inputs, out: Tensor
) -> dict[str, Tensor]:
    """The rows without a gradient, for each projection in which other rows have one."""
    got = backward(session, subject, inputs, out)
    if isinstance(got, Failure):
        return {}
    idle: dict[str, Tensor] = {}
    for name, gradient in got.parameters.items():
        layer = takes_last(subject.built.modules.get(name.rpartition(".")[0], ""))
        roles = ("q", "k", "v", "o", "qkv", "kv")
        named = role_of(name) in roles and name.endswith("weight")
        if layer and named and gradient is not None:
            still = gradient.flatten(1).abs().amax(1) < 1e-14
            if still.any() and not still.all():
                idle[name] = still
    return idle


def backward(
    session: Session, subject: Subject, inputs: Inputs, out: Tensor, *, train: bool = False
) -> Gradients | Failure:
    """The gradients for a random cotangent of the output."""
    q, k, v = handed(subject, inputs)
    out = axes.given(out, subject.axes if subject.axes not in axes.STATES else "single")
    positional, keywords = arguments_for(subject, (q, k, v))
    noise = torch.randn(out.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return session.backward(positional, keywords, cotangent=noise.to(subject.dtype), train=train)
