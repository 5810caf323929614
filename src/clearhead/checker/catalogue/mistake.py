"""What is known about one mistake, and a family of mistakes."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["wrong", "compat", "edge"]


@dataclass(frozen=True)
class Mistake:
    """One mistake that people make.

    Args:
        id: The name that never changes.
        severity: "wrong" computes something other than attention; "compat" computes the same
            function with its weights in another order, so only loaded weights break; "edge" goes
            wrong in some situations only.
        says: What happens, in one sentence.
        fix: What to write instead; "" where that depends on the case.
        symptom: What can be seen from outside, without the cause: a hint for a student. "" where
            the evidence is the hint.
        section: Its section of docs/mistakes.md, in Markdown, without the heading.
    """

    id: str
    severity: Severity
    says: str
    fix: str = ""
    symptom: str = ""
    section: str = ""


@dataclass(frozen=True)
class Family:
    """Mistakes in the same part of attention, in the order of the documentation."""

    title: str
    mistakes: tuple[Mistake, ...]
