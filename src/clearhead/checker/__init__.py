"""check(): is this attention right, and if not, which mistake is it?

A submitted class is built, given random weights and run. If a right form of attention reproduces
its output, it is right; if a known mistake does, or two or three together, that is the diagnosis.

    choosing                             which classes of a file are attention
    adapters, feeding, names, building   how a class is built and called
    layouts, roles, additions            where its weights are, and what comes on top
    axes, functions                      channels or tokens first; a class around a function
    simulator, options, search, norms    attention with a switch for each way to go wrong
    recovering, terms                    attention weights from outside: what is added to scores
    probes, extras, loud, hints          what is seen from outside, in errors and in the source
    mistakes, unlisted                   the catalogue, and what is not in it
    uses, lengths, filling, cached       other uses: long texts, filled-up ones, a cache
    learning, effects, crossed           training, what a call leaves behind, crossed arguments
    diagnose, naming, words, case        from all that to findings
    isolate, sandbox, confine, limits    a submission in its own process, and what it may use
    child, leaves, answers               what that process does and answers
    notebooks, skeletons                 cells as one source; an adapter written from a signature
    report, batch, marks, policy, summary, page, runner    what students and teachers see
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
    from clearhead.checker.diagnose import check_object

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
