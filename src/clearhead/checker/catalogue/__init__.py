"""The mistakes that people make in attention code: what is said about each of them.

An id enters, a `Mistake` or a `Finding` leaves. There is one file per family: add a mistake there.
`docs/generate.py` writes docs/mistakes.md from them. Start with `scaling.py`.

>>> find("missing-scale").fix
'Divide the scores by head_dim ** 0.5 before the softmax.'
"""

from clearhead.checker.catalogue import (
    calling,
    dropout,
    gradients,
    masking,
    padding_masks,
    projections,
    rotary,
    scaling,
    softmax,
    splitting,
    verdicts,
)
from clearhead.checker.catalogue.mistake import Family, Mistake
from clearhead.checker.report import Finding

__all__ = ["FAMILIES", "MISTAKES", "Family", "Mistake", "find", "finding", "symptom_of", "words_of"]

FAMILIES: tuple[Family, ...] = (
    scaling.FAMILY,
    softmax.FAMILY,
    masking.FAMILY,
    padding_masks.FAMILY,
    splitting.FAMILY,
    projections.FAMILY,
    dropout.FAMILY,
    gradients.FAMILY,
    rotary.FAMILY,
    calling.FAMILY,
    verdicts.FAMILY,
)
MISTAKES: tuple[Mistake, ...] = tuple(each for family in FAMILIES for each in family.mistakes)
_BY_ID = {mistake.id: mistake for mistake in MISTAKES}


def find(id: str) -> Mistake:
    """The mistake with this id.

    Raises:
        ValueError: If there is none.
    """
    if id not in _BY_ID:
        raise ValueError(f"No mistake has the id {id!r}.")
    return _BY_ID[id]


def finding(id: str, evidence: str, line: int | None, severity: str = "") -> Finding:
    """A finding with the catalogue's words.

    Args:
        id: The mistake.
        evidence: How we know, in numbers.
        line: Where it is, if that is known.
        severity: How bad it is here, if that differs from the catalogue.
    """
    known = find(id)
    return Finding(
        id,
        severity or known.severity,
        known.says,
        evidence,
        known.fix,
        line,
        symptom=known.symptom,
    )


def symptom_of(id: str) -> str:
    """What can be seen of a mistake without naming its cause, for any id.

    Examples:
        >>> symptom_of("not-what-was-asked"), symptom_of("an id of another version")
        ('It is not what the assignment asks for.', 'Something else was found.')
    """
    known = _BY_ID.get(id)
    return "Something else was found." if known is None else known.symptom or known.says


def words_of(id: str) -> tuple[str, str]:
    """What happens and what to write instead, for any id; ("", "") if it is not known."""
    known = _BY_ID.get(id)
    return ("", "") if known is None else (known.says, known.fix)
