"""The mistakes that people make in attention code, each with its sentence and its fix.

Start with `mistakes.py`.
"""

from clearhead.checker.catalogue.mistakes import MISTAKES
from clearhead.checker.catalogue.unlisted import UNLISTED
from clearhead.checker.report import Finding

_KNOWN = {mistake.id: mistake for mistake in MISTAKES}


def default_severity(id: str) -> str:
    """How bad a finding with this id is, unless something else is said.

    Examples:
        >>> default_severity("missing-scale"), default_severity("made-on-cpu")
        ('wrong', 'edge')
    """
    return _KNOWN[id].severity if id in _KNOWN else UNLISTED[id][0]


def finding(id: str, evidence: str, line: int | None, severity: str = "") -> Finding:
    """A finding with the catalogue's words."""
    if id in _KNOWN:
        known = _KNOWN[id]
        return Finding(
            id,
            severity or known.severity,
            known.says,
            evidence,
            known.fix,
            line,
            symptom=known.symptom,
        )
    default, says, fix = UNLISTED[id]
    return Finding(id, severity or default, says, evidence, fix, line)


def words_of(id: str) -> tuple[str, str]:
    """What happens and what to write instead, for any id; ("", "") if it is not known."""
    if id in _KNOWN:
        return _KNOWN[id].says, _KNOWN[id].fix
    if id == "not-what-was-asked":
        return "It is not what the assignment asks for.", ""
    _, says, fix = UNLISTED.get(id, ("", "", ""))
    return says, fix


def symptom_of(id: str) -> str:
    """What can be seen of any finding of this id, without a fix.

    Examples:
        >>> symptom_of("not-what-was-asked")
        'It is not what the assignment asks for.'
    """
    if id in _KNOWN:
        return _KNOWN[id].symptom
    return words_of(id)[0] or "Something else was found."
