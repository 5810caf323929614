"""What the checker says of one class: for the terminal, a notebook, or a program.

The verdict comes first, then each finding with its evidence, its line and its fix. Everything in a
report that comes from a stranger's file (names, messages, printed text) is shown, never obeyed.

>>> finding = Finding("missing-scale", "wrong", "Not divided.", "Too large.", "Divide.", None)
>>> report = Report("mine.py", "Attention", "wrong", (finding,))
>>> print(str(report).splitlines()[0])
Wrong: mine.py:Attention
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from clearhead import drawing
from clearhead.checker.catalogue.mistakes import MISTAKES
from clearhead.checker.catalogue.unlisted import UNLISTED
from clearhead.checker.source.notebooks import Source, find_cell

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

SEVERITIES = ("wrong", "compat", "edge")
VERDICTS = ("correct", "wrong", "error", "unsure")

_COLOURS = {"correct": "green", "wrong": "red", "error": "red", "unsure": "yellow"}
_BUT = {
    "compat": "weights from elsewhere give another result",
    "edge": "it fails in some situations",
}
MEANS = {
    "wrong": "wrong",
    "compat": "compat: only loaded weights break",
    "edge": "edge: only in some situations",
}
_LONGEST = 4000  # characters of one text; a stranger's message may be endless
_KNOWN = {mistake.id: mistake for mistake in MISTAKES}


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be.

    Args:
        id: The mistake's name in the catalogue, or another one where it is in no list.
        severity: "wrong", "compat" (only loaded weights break) or "edge" (in some situations).
        says: What happens, in one sentence.
        evidence: How we know, in numbers.
        fix: What to write instead.
        line: Where in the file (in a notebook: in the cell), counted from 1, if known.
        cell: The cell of a notebook: "In[4]" or "code cell 2"; "" in other files.
        code: The line itself, if the file's text is known.
    """

    id: str
    severity: str
    says: str
    evidence: str
    fix: str
    line: int | None
    cell: str = ""
    code: str = ""

    @property
    def place(self) -> str:
        """Where it is: "line 25", "In[4], line 7", or "" if that is not known."""
        if self.line is None:
            return ""
        return f"{self.cell}, line {self.line}" if self.cell else f"line {self.line}"

    @property
    def symptom(self) -> str:
        """What can be seen from outside, without the cause: for a hint."""
        if self.id == "not-what-was-asked":  # the assignment's own words are no fix
            return f"{self.says} {self.evidence}"
        known = _KNOWN.get(self.id)
        return known.symptom if known is not None else self.evidence or self.says

    def to_json(self) -> dict[str, object]:
        """The finding as plain data."""
        return {
            "id": self.id,
            "severity": self.severity,
            "says": self.says,
            "evidence": self.evidence,
            "fix": self.fix,
            "cell": self.cell or None,
            "line": self.line,
            "code": self.code or None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Finding:
        """The finding that `to_json` gave."""
        return cls(**{**data, "cell": data["cell"] or "", "code": data["code"] or ""})


@dataclass(frozen=True)
class Report:
    """What was found in one class.

    Args:
        file: The file's name.
        cls: The class's name; "" if the file could not be read that far.
        verdict: "correct", "wrong", "error" (could not be run) or "unsure" (ran, and the checker
            does not know).
        findings: What is not as it should be, the most important first.
        form: One line on what the class is: "4 heads × 8, causal, returns a tensor".
        notes: What else the reader must know, a sentence each.
    """

    file: str
    cls: str
    verdict: str
    findings: tuple[Finding, ...] = ()
    form: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict: expected one of {VERDICTS}, got {self.verdict!r}.")

    @property
    def headline(self) -> str:
        """The verdict as people say it: "correct, but it fails in some situations"."""
        if self.verdict == "error" and any(finding.id == "unsure" for finding in self.findings):
            return "unsure"
        return in_words(self.verdict, (finding.severity for finding in self.findings))

    @property
    def status(self) -> int:
        """What a command ends with: 0 correct, 1 wrong, 2 could not be run or judged."""
        return {"correct": 0, "wrong": 1}.get(self.verdict, 2)

    def to_json(self) -> dict[str, object]:
        """The report as plain data. What is unsure has the verdict "error" there."""
        findings = [finding.to_json() for finding in self.findings]
        if self.verdict == "unsure" and not any(found["id"] == "unsure" for found in findings):
            says = "The checker does not know whether this is right."
            findings.append(Finding("unsure", "edge", says, "", "", None).to_json())
        return {
            "schema": 1,
            "file": self.file,
            "class": self.cls,
            "verdict": "error" if self.verdict == "unsure" else self.verdict,
            "findings": findings,
            "form": self.form,
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Report:
        """The report that `to_json` gave."""
        findings = tuple(Finding.from_json(finding) for finding in data["findings"])
        verdict = data["verdict"]
        if verdict == "error" and any(finding.id == "unsure" for finding in findings):
            verdict = "unsure"
        notes = tuple(data["notes"])
        return cls(data["file"], data["class"], verdict, findings, data["form"], notes)

    def placed(self, source: Source) -> Report:
        """The same report, its lines shown as they stand in the file, or in a notebook's cells."""
        texts = source.text.split("\n")  # as Python counts lines
        found = []
        for finding in self.findings:
            line, cell, code = finding.line, "", ""
            if line is not None and 1 <= line <= len(texts):
                code = drawing.shorten(texts[line - 1].expandtabs(4).strip(), 160)
                cell, line = find_cell(source.cells, line) or ("", line)
            evidence = _in_cells(finding.evidence, source)
            found.append(replace(finding, evidence=evidence, line=line, cell=cell, code=code))
        return replace(self, findings=tuple(found))

    def draw(self, *, hint: bool = False) -> RenderableType:
        """The report for a terminal.

        Args:
            hint: Show the symptoms and the places, without the causes and the fixes.
        """
        name = drawing.shorten(f"{self.file}:{self.cls}" if self.cls else self.file, 300)
        colour = _COLOURS["unsure" if self.headline == "unsure" else self.verdict]
        headline = self.headline[0].upper() + self.headline[1:]
        parts: list[RenderableType] = [Text.assemble((headline, f"bold {colour}"), f": {name}")]
        if self.form:
            parts.append(drawing.Indent(Text(_shown(self.form), style="dim"), 2))
        for number, finding in enumerate(self.findings, start=1):
            parts.append(Text())
            parts += self._hint(number, finding) if hint else self._finding(finding)
        if self.notes:
            parts.append(Text())
        parts += [drawing.Indent(_Labelled("Note", note), 2) for note in self.notes]
        return Group(*parts)

    def _finding(self, finding: Finding) -> list[RenderableType]:
        severity = MEANS.get(finding.severity, finding.severity)
        if self.verdict == "error":  # nothing was judged
            severity = "not judged"
        title = Text.assemble(
            (drawing.shorten(finding.id, 80), "bold"), f" ({drawing.shorten(severity, 80)})"
        )
        lines: list[RenderableType] = [Text(_shown(finding.says))]
        if finding.evidence:
            lines.append(_Labelled("Evidence", finding.evidence))
        lines += _place(finding)
        if finding.fix:
            lines.append(_Labelled("Fix", finding.fix))
        return [drawing.Indent(title, 2), *(drawing.Indent(line, 4) for line in lines)]

    def _hint(self, number: int, finding: Finding) -> list[RenderableType]:
        lines = [Text(_shown(finding.symptom)), *_place(finding)]
        title = Text(f"Hint {number}", style="bold")
        return [drawing.Indent(title, 2), *(drawing.Indent(line, 4) for line in lines)]

    def __rich__(self) -> RenderableType:
        """The report for `rich.print` and for a console."""
        return self.draw()

    def __str__(self) -> str:
        return drawing.plain(self.draw())

    def _repr_html_(self) -> str:
        return drawing.html(self.draw())


def in_words(verdict: str, severities: Iterable[str]) -> str:
    """A verdict as people say it, with the severities of what was found.

    Examples:
        >>> in_words("correct", ["edge", "edge"])
        'correct, but it fails in some situations'
    """
    if verdict == "error":
        return "could not be run"
    kinds = dict.fromkeys(severities)
    if verdict == "correct" and kinds:
        return "correct, but " + " and ".join(_BUT.get(kind, "see the findings") for kind in kinds)
    return verdict


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


def exit_status(reports: Iterable[Report]) -> int:
    """0 if all are correct, 1 if one is wrong, else 2: something could not be run or judged.

    Nothing at all to judge is 2.
    """
    statuses = {report.status for report in reports}
    if not statuses:
        return 2
    return 1 if 1 in statuses else max(statuses)


def _place(finding: Finding) -> list[RenderableType]:
    """The line's number, with the cell in a notebook, and the line itself where it is known."""
    if finding.line is None:
        return []
    label, place = ("Cell", finding.place) if finding.cell else ("Line", str(finding.line))
    return [_Labelled(label, f"{place}: {finding.code}" if finding.code else place)]


def _in_cells(text: str, source: Source) -> str:
    """A traceback's lines, told by a notebook's cells as Jupyter does."""

    def named(found: re.Match[str]) -> str:
        place = find_cell(source.cells, int(found[1]))
        if place is None:
            return found[0]
        cell, line = place
        return f"{'Cell ' if cell.startswith('In') else ''}{cell}, line {line}"

    return re.sub(r'File "[^"\n]*\.ipynb", line (\d+)', named, text)


def _shown(text: str) -> str:
    """A text of any length and origin, in characters that do nothing but stand there."""
    text = text.expandtabs(4).strip("\n")
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]} ... ({len(text) - _LONGEST:,} characters more)"
    return drawing.harmless(text)


class _Labelled:
    """A dim label, and a text beside it that wraps under itself."""

    def __init__(self, label: str, text: str) -> None:
        self._label, self._text = label, _shown(text)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines, without spaces at their ends."""
        indent = len("Evidence") + 2
        inner = options.update_width(max(1, options.max_width - indent))
        lines = console.render_lines(Text(self._text, overflow="fold"), inner, pad=False)
        for number, line in enumerate(lines):
            label = self._label if number == 0 else ""
            yield Segment(label.ljust(indent), Style(dim=True))
            yield from line
            yield Segment.line()
