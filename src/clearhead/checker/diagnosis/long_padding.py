"""Texts that begin with a lot of padding, for classes that go through the keys in pieces.

Where a whole piece is padding, a running maximum is -inf, and -inf less -inf is no number.
"""

import re
import time

import torch
from torch import Tensor

from clearhead.checker.diagnosis.lengths import LEAST, PATIENCE, longest, of_one_length
from clearhead.checker.diagnosis.other_uses import with_mask
from clearhead.checker.diagnosis.reference import AnyReference
from clearhead.checker.harness.axis_orders import HEADS_READY
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.comparison import difference
from clearhead.checker.harness.subject import Subject, call, inputs_for
from clearhead.checker.source.class_text import used_by

_PIECES = r"for .*range\([^)]*,[^)]*,|\.split\(|chunk|block|tile"
# The padding is said to stand at the end, and nowhere else.
_RIGHT_ONLY = r"(?is)\A(?!.*\bleft\b).*(right[- ]pad|pad\w* (only )?(on|at|to) the (right|end))"
SHORT = 9


def long_padding(case: Case, subject: Subject, reference: AnyReference, known: set[str]) -> None:
    """Whether real tokens stay numbers after padding that is longer than a piece.

    Args:
        case: The class.
        subject: How it is called.
        reference: Right attention of its form.
        known: Arguments that mark tokens, as far as that is known.
    """
    if subject.axes not in ("batch", "first", *HEADS_READY) or reference.mask not in (
        "none",
        "causal",
    ):
        return
    if of_one_length(subject):
        return
    if not any(part.has(_PIECES) for part in (case.text, *used_by(case.text))):
        return
    optional = {p.name for p in case.info.forward if p.has_default and p.default is None}
    names = known | {name for name in optional if "pad" in name.lower()}
    began = time.monotonic()
    call(case.session, subject, inputs_for(subject, min(67, longest(case, subject))))
    if (time.monotonic() - began) * (LEAST / 67) ** 2 > PATIENCE:
        return
    for name in sorted(names):
        for hides in (True, False):
            if _lost(case, subject, reference, name, SHORT, hides) == 0:
                tokens = min(longest(case, subject), LEAST)
                lost = _lost(case, subject, reference, name, tokens, hides)
                if lost:
                    evidence = (
                        f"With {name} given, a sequence of {tokens} tokens that begins with "
                        f"{tokens - 5} padding tokens has {lost} real tokens whose output is "
                        f"NaN; with {SHORT - 5} padding tokens out of {SHORT}, all is right."
                    )
                    only = re.search(_RIGHT_ONLY, case.text.source)
                    case.add("padding-gives-nan", evidence, severity="edge" if only else "")
                break


def _lost(
    case: Case, subject: Subject, reference: AnyReference, name: str, tokens: int, hides: bool
) -> int | None:
    """How many real tokens give NaN; None if the marks do not mean this, or it does not run.

    Args:
        case: The class.
        subject: How it is called.
        reference: Right attention of its form.
        name: The argument that takes the marks.
        tokens: The length of the text; its last five tokens are real.
        hides: Whether True marks the padding.
    """
    inputs = inputs_for(subject, tokens)
    real = torch.ones(inputs[0].shape[:2], dtype=torch.bool)
    real[:, :-5] = False
    got = with_mask(case, subject, inputs, name, ~real if hides else real)
    if got is None or got.shape[:2] != real.shape:
        return None
    visible = real[:, None, None, :].expand(len(real), 1, tokens, tokens)
    right = reference.output(inputs, visible)
    if right is None or right.shape != got.shape:
        return None
    fine: Tensor = got[real].isfinite().all(-1)
    if fine.any() and difference(got[real][fine], right[real][fine]) > 1e-4:
        return None
    return int((~fine).sum())
