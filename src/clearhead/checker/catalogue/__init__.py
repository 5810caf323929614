"""The catalogue of common mistakes in attention code, with the text for each of them.

An id goes in; a `Mistake` or a `Finding` comes out. There is one TOML file per family: add new
mistakes there. `docs/generate.py` writes docs/mistakes.md from them. Start with `scaling.toml`.

>>> find("missing-scale").fix
'Divide the scores by head_dim ** 0.5 before the softmax.'
"""

import difflib
import textwrap
import tomllib
from dataclasses import dataclass
from importlib.resources import files

from clearhead.checker.report import Finding

_FILES = (
    *("scaling", "softmax", "masking", "padding_masks", "splitting", "projections", "dropout"),
    *("gradients", "positions", "calling", "verdicts"),
)


@dataclass(frozen=True)
class Mistake:
    """One common mistake.

    Args:
        id: A name that never changes.
        severity: "wrong" computes something other than attention; "compat" computes the same
            function with its weights in another order, so only loaded weights break; "edge" fails
            only in some situations.
        says: What happens, in one sentence.
        why: The reason, if `says` does not give it.
        symptom: What is visible from outside, without the cause: a hint for a student. "" if the
            evidence serves as the hint.
        shows: Other visible effects, and how the checker handles them.
        fix: What to write instead; "" if that depends on the case.
        at: What to look for in the source if no line is known; see `locate`.
        wrong: An example in Python.
        right: The same example, fixed.
        picture: What happens to the values, as plain text.
    """

    id: str
    severity: str
    says: str
    why: str = ""
    symptom: str = ""
    shows: str = ""
    fix: str = ""
    at: tuple[str, ...] = ()
    wrong: str = ""
    right: str = ""
    picture: str = ""

    @property
    def hint(self) -> str:
        """What is visible without the cause, whatever the evidence is."""
        return self.symptom or self.says

    @property
    def section(self) -> str:
        """Its section of docs/mistakes.md, as Markdown without the heading."""
        shows = " ".join(filter(None, (self.symptom, self.shows)))
        parts = [
            _fenced("py", self.wrong),
            _filled(f"{self.says} {self.why}"),
            _filled(f"**How it shows.** {shows}") if shows else "",
            _fenced("text", self.picture),
            f"Right:\n\n{_fenced('py', self.right)}" if self.right else "",
        ]
        return "\n".join(filter(None, parts))


def _fenced(language: str, code: str) -> str:
    return f"```{language}\n{code.rstrip()}\n```\n" if code else ""


def _filled(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False) + "\n"


@dataclass(frozen=True)
class Family:
    """Mistakes in the same part of attention, in the order of the documentation."""

    title: str
    mistakes: tuple[Mistake, ...]


def _family(name: str) -> Family:
    data = tomllib.loads((files(__package__) / f"{name}.toml").read_text(encoding="utf-8"))
    made = (Mistake(**fields | {"at": tuple(fields.get("at", ()))}) for fields in data["mistakes"])
    return Family(data["title"], tuple(made))


FAMILIES: tuple[Family, ...] = tuple(map(_family, _FILES))
MISTAKES: tuple[Mistake, ...] = tuple(each for family in FAMILIES for each in family.mistakes)
_BY_ID = {mistake.id: mistake for mistake in MISTAKES}


def find(id: str) -> Mistake:
    """The mistake with this id.

    Raises:
        ValueError: If there is none.
    """
    if id not in _BY_ID:
        close = difflib.get_close_matches(id, _BY_ID, n=1)
        meant = f" Did you mean {close[0]}?" if close else ""
        raise ValueError(f"unknown mistake {id!r}.{meant}\n  All ids: clearhead mistakes")
    return _BY_ID[id]


def finding(id: str, evidence: str, line: int | None, severity: str = "") -> Finding:
    """A finding with the catalogue's text.

    Args:
        id: The mistake.
        evidence: How the checker knows, in numbers.
        line: Its line, if known.
        severity: The severity in this case, if it differs from the catalogue's.
    """
    known = find(id)
    kind = severity or known.severity
    return Finding(id, kind, known.says, evidence, known.fix, line, symptom=known.symptom)


_UNKNOWN = Mistake("", "", "", symptom="Something else was found.")


def words_of(id: str) -> Mistake:
    """The catalogue's entry for an id; a nearly empty one if the id is from another version.

    Examples:
        >>> words_of("an id of another version").hint
        'Something else was found.'
    """
    return _BY_ID.get(id, _UNKNOWN)
