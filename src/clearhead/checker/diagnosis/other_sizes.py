"""Other sizes, other dtypes and repeated calls: does the class compute the same attention?

A class that is right with two sequences and three heads may be wrong with nine sequences and eight
heads, in float32, or in one call out of ten.
"""

import time
from dataclasses import replace

import torch
from torch import Tensor

from clearhead.checker.diagnosis.recorded_pass import steps_of
from clearhead.checker.harness.alternatives import widened
from clearhead.checker.harness.axis_orders import HEADS_READY, given
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.comparison import difference, percent
from clearhead.checker.harness.subject import (
    Inputs,
    Subject,
    arguments_for,
    call,
    each,
    handed,
    inputs_for,
    renew,
)
from clearhead.checker.sandbox.submission import Failure

TIMES = 44  # finds what fails in one call out of ten with 99 % probability
TEXTS = 7  # additional sequences in the batch
PATIENCE = 1.0  # seconds
LOOSE = 1e-3  # relative: float32 is more accurate than that


def same_elsewhere(case: Case, subject: Subject, inputs: Inputs, out: Tensor) -> None:
    """Check that a right class stays right in a larger batch, in float32 and in every call."""
    for probe in (many_texts, many_pixels, in_float32, many_times):
        if not case.wrong:
            probe(case, subject, inputs, out)


def many_times(case: Case, subject: Subject, inputs: Inputs, out: Tensor) -> None:
    """Check that the same input gives the same output every time."""
    began = time.monotonic()
    for times in range(1, TIMES + 1):
        if time.monotonic() - began > PATIENCE:
            case.notes.append(f"It is slow: the same input was run {times} times, not {TIMES}.")
            return
        got = call(case.session, subject, inputs, seed=100 + times)
        if isinstance(got, Failure):
            if got.raised:
                case.add_failure("depends-on-earlier-call", "Called again on the same input", got)
            return
        if got.shape != out.shape or difference(got, out) > 1e-6:
            evidence = (
                f"In evaluation, call {times} on the same input gave a different output: "
                f"it differs by {percent(difference(got, out))}."
            )
            case.add("random-in-eval", evidence)
            return


def many_texts(case: Case, subject: Subject, inputs: Inputs, out: Tensor) -> None:
    """Check that a sequence gives the same output in a larger batch."""
    if subject.axes not in ("batch", "first", "channels"):
        return
    count = subject.sizes.batch
    more = inputs_for(subject, inputs[0].shape[1], seed=41, batch=count + TEXTS)
    joined = {id(new): torch.cat([old, new[count:]]) for old, new in zip(inputs, more, strict=True)}
    q, k, v = (joined[id(new)] for new in more)
    got = call(case.session, subject, (q, k, v))
    if isinstance(got, Failure) or got.shape[1:] != out.shape[1:] or len(got) < count:
        return
    gap = difference(got[:count], out)
    if gap > 1e-5:
        evidence = (
            f"In a batch of {count + TEXTS} sequences, the outputs of the first {count} differ by "
            f"{percent(gap)} from those in a batch of {count}."
        )
        case.add("breaks-with-size", evidence)


def many_pixels(case: Case, subject: Subject, inputs: Inputs, out: Tensor) -> None:
    """Check that frames of several equal pixels give each pixel the output of a one-pixel frame."""
    if subject.axes not in ("volume", "frames") or subject.separate:
        return
    if any(n > 1 for shape in subject.built.parameters.values() for n in shape[2:]):
        return  # a convolution sees the border, and a table may distinguish pixels
    (x, _, _) = handed(subject, inputs)
    positional, keywords = arguments_for(subject, (x.expand(*x.shape[:3], 2, 3).contiguous(),) * 3)
    got = case.session.forward(positional, keywords)
    if isinstance(got, Failure):
        return
    found = [one for one in got.tensors if one.shape == (*x.shape[:3], 2, 3)]
    alone = given(out, subject.axes)
    gap = difference(found[0].to(torch.float64), alone.expand(*x.shape[:3], 2, 3)) if found else 0.0
    if gap > 1e-5:
        evidence = (
            f"With frames of 2 × 3 pixels that are all alike, the output differs by {percent(gap)} "
            "from that with one pixel, which must be the same."
        )
        case.add("breaks-with-size", evidence)


def in_float32(case: Case, subject: Subject, inputs: Inputs, out: Tensor) -> None:
    """Check that float32 gives the same output as float64, up to rounding."""
    if not subject.weights or subject.dtype != torch.float64 or subject.built.arrays:
        return
    single = replace(subject, dtype=torch.float32)
    failed = case.session.load({n: w.to(torch.float32) for n, w in subject.weights.items()})
    got = failed or call(case.session, single, each(inputs, lambda t: t.to(torch.float32)))
    far = isinstance(got, Tensor) and got.shape == out.shape and difference(got, out) > LOOSE
    there = _read(case, single) if far else None
    case.session.load({n: w.to(torch.float64) for n, w in subject.weights.items()})
    if isinstance(got, Failure) or got.shape != out.shape:
        return
    gap = difference(got, out)
    if gap > LOOSE and (there is None or there != _read(case, subject)):  # another eps is fine
        evidence = f"In float32, the output differs by {percent(gap)} from that in float64."
        case.add("breaks-with-size", evidence)


def _read(case: Case, subject: Subject) -> tuple[object, ...] | None:
    """The kind of attention that its recorded pass shows; None unless every step is right."""
    steps = steps_of(case, subject)
    if steps is None or not steps.right:
        return None
    return steps.mask, steps.heads, steps.head_dim, steps.rotary


def wide(case: Case, subject: Subject) -> None:
    """Check it with many heads and large widths, step by step."""
    if case.given or case.wrong or subject.axes in HEADS_READY or subject.sizes.window:
        return
    with case.session.optional():
        trial = widened(case, subject)
    if trial is not None:
        steps = steps_of(case, trial)
        before = {found.id for found in case.findings}
        filled = any(id.startswith("mask-fill") for id in before)
        new = [
            one
            for one in (steps.findings if steps is not None and steps.wrong else ())
            if one.severity != "edge" and one.id not in {*before, *_ROLES}
            if not (filled and one.id.startswith("mask-fill"))  # roughly the same value
        ]
        for found in new[:1]:
            heads, width = trial.sizes.heads, trial.sizes.head_dim
            evidence = (
                f"With {heads} heads of size {width} and {trial.sizes.batch} sequences: "
                f"{found.evidence} With {subject.sizes.heads} of size {subject.sizes.head_dim}, "
                "it is right."
            )
            case.add("breaks-with-size", evidence, found.line)
    renew(case.session, subject)


# Which weights feed which role does not depend on the size: a different reading is no evidence.
_ROLES = {
    f"{one}-from-{other}"
    for one in ("query", "key", "value")
    for other in ("query-weights", "key-weights", "value-weights", "keys", "queries")
}
