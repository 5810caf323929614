"""Attention over channels: every feature reads features, and the tokens are summed in the scores.

XCiT, Restormer, DaViT and EdgeNeXt have it. It is another operation than attention over tokens, of
which this package has no reference: the checker says what it is, and does not judge it.
"""

import re

from clearhead.checker.diagnosis.reading import Reading, Unreadable
from clearhead.checker.diagnosis.recorded_pass import record
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.subject import Subject

# How a source calls it; without such a word, scores without tokens are a mistake.
_WORDS = r"(?i)channel[\w-]*[ _-]?att|covarian|\bxca\b|\bmdta\b|transposed[\w -]*attention"
OVER_CHANNELS = (
    "It attends over channels: its scores compare features, and are summed over the tokens. This "
    "kind of attention is not judged."
)


def is_over_channels(case: Case, subject: Subject) -> bool:
    """Whether the source speaks of attention over channels, and the class computes that."""
    if not re.search(_WORDS, case.text.file):
        return False
    try:
        reading = record(case, subject)
    except Unreadable:
        return False
    return any(_compares_features(reading, i) for i in range(len(reading.program.calls)))


def _compares_features(reading: Reading, index: int) -> bool:
    """Whether a softmax gets products in which the axis of the tokens is summed."""
    program, tokens = reading.program, reading.size[0]
    call = program.calls[index]
    if call.name != "softmax" or not reading.depends(call.out[0]):
        return False
    for i in program.before(call.out[0]):
        out = program.calls[i].out[0]
        operands = [r for r in reading.places(i) if reading.depends(r)]
        if program.calls[i].name not in ("matmul", "__matmul__", "bmm", "einsum"):
            continue
        apart = [tokens in reading.values[r].shape for r in operands]
        if apart == [True, True] and tokens not in reading.values[out].shape[-2:]:
            return True
    return False
