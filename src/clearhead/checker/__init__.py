"""check(): is this attention right, and if not, which mistake is it?

A class is built and called as its file suggests, and its forward pass is recorded. The record is
run again with other numbers and read step by step: each step is compared with what it should be,
given the step before, so that a mistake has a line and numbers of its own. What the class computes
at other lengths, in training and with hidden keys is compared with right attention of its form.

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
    """Whether an attention class is right, and if not, which mistake it makes.

    The class runs in this process: for files that others wrote, use `clearhead check FILE`.

    Args:
        subject: Your own class, or a module built from it.

    Examples:
        >>> from clearhead import ladder
        >>> check(ladder.MultiHeadAttention).verdict
        'correct'
    """
    from clearhead.checker.diagnosis.class_check import check_object

    return check_object(subject)


def assert_attention(subject: type[nn.Module] | nn.Module) -> None:
    """Raise AssertionError with the report unless this attention is right; for a course's tests.

    Examples:
        >>> from clearhead import ladder
        >>> assert_attention(ladder.CausalAttention)
    """
    report = check(subject)
    if report.verdict != "correct":
        raise AssertionError(f"\n{report}")
