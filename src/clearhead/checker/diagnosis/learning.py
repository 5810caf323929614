"""Whether every weight can learn from the initial values that the class itself sets.

A layer that starts at zero is good practice: it changes in the first step, and the layers before
it in the second. Two layers that are multiplied and both start at zero never change, because the
gradient of each is a multiple of the other.
"""

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from clearhead.checker.diagnosis import probes
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.comparison import difference
from clearhead.checker.harness.subject import Inputs, Subject, arguments_for, call, inputs_for
from clearhead.checker.harness.weight_roles import role_of
from clearhead.checker.sandbox.submission import Failure

STEPS = 4
RATE = 0.1  # per step: the largest change of any entry of a weight
# Weights that are loaded from a file, or set by a function that __init__ does not call.
_FILLED_LATER = (
    r"\bempty\(|empty_like|load_state_dict|from_pretrained|checkpoint|torch\.load|"
    r"def \w*(init|reset)\w*(weight|param)\w*|\.apply\("
)


def from_its_start(case: Case, subject: Subject, inputs: Inputs, out: Tensor) -> None:
    """Take a few steps from the class's own values and report weights that get no gradient."""
    if not subject.weights or subject.built.arrays:
        return
    if case.wrong:
        return
    own = {name: subject.built.weights.get(name) for name in subject.weights}
    values = {name: w.to(torch.float64) for name, w in own.items() if w is not None}
    matrices = [w for w in values.values() if w.ndim > 1]
    if all(bool((w == w.flatten()[0]).all()) for w in matrices) or len(values) < len(own):
        return  # none is random: placeholders for weights from elsewhere
    if re.search(_FILLED_LATER, case.text.file):
        return
    still = list(values)
    for step in range(STEPS):
        some = inputs_for(subject, subject.sizes.tokens, seed=30 + step)
        got = _gradients(case, subject, values, some, out)
        sizes = {name: float(gradient.abs().max()) for name, gradient in got.items()}
        still = [name for name in still if sizes.get(name) == 0.0]
        if not still:
            break
        values = {n: w - RATE * got[n] / (sizes[n] or 1.0) for n, w in values.items()}
    usual = _gradients(case, subject, subject.weights, inputs, out) if still else {}
    _load(case, subject, subject.weights)
    stuck = [name for name in still if name in usual and float(usual[name].abs().max()) > 1e-8]
    if stuck:
        names = ", ".join(stuck[:4])
        evidence = (
            f"In {STEPS} training steps from the values that __init__ sets, {names} got no "
            "gradient; with random values, they get one."
        )
        case.add("never-learns", evidence)


def _gradients(
    case: Case,
    subject: Subject,
    weights: dict[str, Tensor],
    inputs: Inputs,
    out: Tensor,
) -> dict[str, Tensor]:
    """The gradient of each of these weights, zeros where there is none; empty if it fails."""
    if not _load(case, subject, weights):
        return {}
    got = probes.backward(case.session, subject, inputs, out)
    if isinstance(got, Failure):
        return {}
    found = {n: got.parameters.get(n) for n in weights}
    return {
        n: torch.zeros_like(weights[n]) if g is None else g.to(weights[n]) for n, g in found.items()
    }


def through_numpy(case: Case, gradients: Sequence[Tensor | None]) -> bool:
    """Whether an adapter passes tensors to numpy code, which has no gradients; notes it if so."""
    if (
        not case.given
        or not case.text.has(r"\b(np|numpy)\.")
        or any(g is not None for g in gradients)
    ):
        return False
    case.numpy = True
    case.notes.append(
        "The adapter passes tensors to numpy code, so gradients were not tested. An adapter "
        "without torch, as --write-adapter creates it, is judged step by step."
    )
    return True


_STEP = 1e-5


def own_backward(case: Case, subject: Subject, inputs: Inputs, out: Tensor) -> None:
    """Compare a backward pass that was written by hand with the slope of the forward pass."""
    if not subject.built.loose or "backward" not in case.info.methods or case.wrong:
        return
    x = inputs[0]
    draw = torch.Generator().manual_seed(41)
    along, cotangent = (torch.randn(t.shape, generator=draw, dtype=x.dtype) for t in (x, out))
    positional, keywords = arguments_for(subject, (x, x, x))
    got = case.session.own_backward(positional, keywords, cotangent)
    found = () if isinstance(got, Failure) else got.tensors
    gradients = [one.to(torch.float64) for one in found if one.shape == x.shape]
    ends = [call(case.session, subject, (y, y, y)) for y in (x + _STEP * along, x - _STEP * along)]
    exact = subject.axes == "batch" and x.dtype == torch.float64
    if not exact or not gradients or any(isinstance(end, Failure) for end in ends):
        case.notes.append("Its own backward pass was not checked.")
        return
    apart = len(gradients) >= len({*map(id, inputs)}) and subject.separate
    told = float((sum(gradients[:3] if apart else gradients[:1]) * along).sum())
    first, last = (end for end in ends if isinstance(end, Tensor))
    slope = float(((first - last) * cotangent).sum() / (2 * _STEP))
    if abs(slope - told) > 1e-4 * max(abs(slope), abs(told)):
        evidence = (
            f"The slope of the loss in a random direction of the input is {slope:.4g}; its own "
            f"backward pass gives {told:.4g}."
        )
        case.add("backward-differs", evidence, case.text.line_with("def-backward"))


def detached(case: Case, subject: Subject, inputs: Inputs, out: Tensor) -> bool:
    """Report rows of projections that get no gradient, though the output depends on them."""
    got = probes.backward(case.session, subject, inputs, out)
    if isinstance(got, Failure):
        return False
    found = False
    for name, gradient in got.parameters.items():
        role = role_of(name)
        if role not in ("q", "k", "v", "o", "qkv", "kv") or subject.weights[name].ndim < 2:
            continue
        weight = subject.weights[name]
        rows = torch.ones(len(weight), dtype=torch.bool)
        if gradient is not None:
            rows = gradient.flatten(1).abs().amax(1) == 0
        if not rows.any():
            continue
        other = weight.clone()
        other[rows] *= 1.001  # too small a change to activate an inactive unit
        _load(case, subject, {**subject.weights, name: other})
        moved = call(case.session, subject, inputs)
        if isinstance(moved, Tensor) and float((moved - out).abs().max()) > 1e-8:
            evidence = (
                f"No gradient reaches {int(rows.sum())} of the {len(weight)} rows of {name}, "
                "though the output depends on them."
            )
            case.add("values-detached" if role in ("v", "o") else "scores-detached", evidence)
            found = True
    _load(case, subject, subject.weights)
    return found


def out_of_reach(case: Case, subject: Subject, inputs: Inputs, out: Tensor) -> None:
    """Report weights outside the graph though the output depends on them: float(w), math.exp(w).

    A gradient of zero is a different case: the output may be flat at these values.
    """
    if not subject.weights or subject.built.arrays:
        return
    if case.wrong:
        return
    got = probes.backward(case.session, subject, inputs, out)
    if isinstance(got, Failure) or not any(g is not None for g in got.parameters.values()):
        return
    found = []
    for name in [n for n, gradient in got.parameters.items() if gradient is None][:12]:
        weight = subject.weights.get(name)
        if weight is None or case.text.has(rf"\b{name.rpartition('.')[2]}\.(detach\(|data\b)"):
            continue  # the source detaches it explicitly
        _load(case, subject, {**subject.weights, name: 0.5 - 1.5 * weight})
        moved = call(case.session, subject, inputs)
        if isinstance(moved, Tensor) and difference(moved, out) > 1e-6:
            found.append(name)
    _load(case, subject, subject.weights)
    trained = probes.backward(case.session, subject, inputs, out, train=True) if found else None
    if found and (isinstance(trained, Failure) or trained is None):
        return
    if trained is not None and not isinstance(trained, Failure):  # evaluation may cache a table
        found = [name for name in found if trained.parameters.get(name) is None]
    if found:
        evidence = (
            f"No gradient reaches {', '.join(found[:4])}, though the output depends on them: "
            "they are converted to plain numbers on the way."
        )
        line = case.text.line_with("float( item( tolist( numpy( no_grad( math")
        case.add("never-learns", evidence, line)


def _load(case: Case, subject: Subject, weights: Mapping[str, Tensor]) -> bool:
    """Load these weights into the class, in the dtype it computes in; whether that worked."""
    return case.session.load({n: w.to(subject.dtype) for n, w in weights.items()}) is None
