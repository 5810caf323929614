"""check(): is this attention right, and if not, which mistake is it?

A class is built and called as its file suggests, and its forward pass is recorded. The recording is
replayed with other values and read step by step: each step is compared with what it should be,
given the previous one, so that each mistake has its own line and measurements. The output at other
lengths, in training and with masked keys is compared with correct attention of the same form.

    source       what the file says: classes, functions, notebook cells
    harness      how a class is built, fed and called
    sandbox      a submission in its own process, and what it may use
    diagnosis    the recorded pass, read step by step: from a class that runs to findings
    catalogue    the mistakes, each with its sentence and its fix
    classroom    many submissions: rows, policy, summary, page
    report.py    the result, for the terminal, a notebook or a program
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from clearhead.checker.report import Report


def check(subject: type[nn.Module] | nn.Module) -> Report:
    """Check whether an attention class is right, and if not, which mistake it makes.

    The class runs in this process. For files written by others, use `clearhead check FILE`.

    Args:
        subject: Your own class, or an instance of it.

    Examples:
        >>> from clearhead import ladder
        >>> check(ladder.MultiHeadAttention).verdict
        'correct'
    """
    from clearhead.checker.diagnosis.class_check import check_object

    return check_object(subject)


def assert_attention(subject: type[nn.Module] | nn.Module) -> None:
    """Raise AssertionError with the report unless this attention is right, for a course's tests.

    Examples:
        >>> from clearhead import ladder
        >>> assert_attention(ladder.CausalAttention)
    """
    report = check(subject)
    if report.verdict != "correct":
        raise AssertionError(f"\n{report}")
