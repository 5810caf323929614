"""What the students found hard: counted from the rows, and shown in the terminal."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from clearhead import drawing
from clearhead.checker.catalogue import words_of
from clearhead.checker.classroom.marks_file import Row
from clearhead.checker.report import MEANS, NO_MISTAKES

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class Counted:
    """One kind of finding, and how many submissions have it.

    Args:
        name: Its id, or its symptom if only hints are given.
        count: How many submissions have it.
        kind: Its severity in words, if it does not fail.
    """

    name: str
    count: int
    kind: str = ""

    @property
    def title(self) -> str:
        """The name with its severity."""
        return f"{self.name} ({self.kind})" if self.kind else self.name


FAIL = ("wrong",)


@dataclass(frozen=True)
class Tally:
    """The counts over all rows, most frequent first.

    Args:
        verdicts: How many submissions have each verdict.
        fails: The findings that fail, each with the number of submissions.
        remarks: The same for findings that do not fail.
        remarked: How many submissions are correct and have a remark.
        not_run: The rows of files that could not be run.
        unsure: The rows of files that the checker could not judge as right or wrong.
    """

    verdicts: list[tuple[str, int]]
    fails: list[Counted]
    remarks: list[Counted]
    remarked: int
    not_run: list[Row]
    unsure: list[Row]


def tally(rows: Sequence[Row], fail: Sequence[str] = FAIL, *, hint: bool = False) -> Tally:
    """Count the rows.

    Args:
        rows: One for each submission.
        fail: The severities that fail; see `Policy`.
        hint: Give symptoms in place of ids, which reveal the cause.
    """
    fails: dict[tuple[str, str], set[str]] = {}
    remarks: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        for id, severity in _findings_of(row):
            name = words_of(id).hint if hint else id
            if severity in fail:
                fails.setdefault((name, ""), set()).add(row.file)
            else:
                kind = MEANS.get(severity, "not judged")
                remarks.setdefault((name, kind), set()).add(row.file)

    def ranked(found: dict[tuple[str, str], set[str]]) -> list[Counted]:
        made = [Counted(name, len(files), kind) for (name, kind), files in found.items()]
        return sorted(made, key=lambda each: (-each.count, each.title))

    verdicts = Counter(row.verdict for row in rows)
    ordered = sorted(rows, key=lambda row: row.file)
    return Tally(
        sorted(verdicts.items(), key=lambda item: (-item[1], item[0])),
        ranked(fails),
        ranked(remarks),
        sum(row.verdict == "correct" and bool(row.findings) for row in rows),
        [row for row in ordered if row.verdict == "error"],
        [row for row in ordered if row.verdict == "unsure"],
    )


def _findings_of(row: Row) -> Iterator[tuple[str, str]]:
    """Each finding's id with its severity, "-" where nothing could be judged."""
    for id, kind in zip_longest(row.findings.split(), row.severities.split(), fillvalue="-"):
        if id not in (*NO_MISTAKES, "-"):
            yield id, kind


def draw(
    rows: Sequence[Row], fail: Sequence[str] = FAIL, *, hint: bool = False
) -> "RenderableType":
    """The summary for the terminal: the mistakes, what does not fail, what could not be judged."""
    from rich.console import Group
    from rich.text import Text

    seen = tally(rows, fail, hint=hint)
    many = "submission" if len(rows) == 1 else "submissions"
    words = ", ".join(_verdict(verdict, count, seen) for verdict, count in seen.verdicts)
    parts: list[RenderableType] = [Text(f"{len(rows)} {many}: {words or 'none'}")]
    for title, found in (("What fails", seen.fails), ("Remarks: what does not fail", seen.remarks)):
        if found and hint:
            lines = [f"{e.count} of {len(rows)}: {drawing.harmless(e.title)}" for e in found]
            parts += _listed(title, lines)
        elif found:
            cells = [
                [drawing.shorten(each.title, 70), str(each.count), f"{each.count / len(rows):.0%}"]
                for each in found
            ]
            parts += [Text(), drawing.table([title, "files", "share"], cells)]
    for title, lost in (("Could not be run", seen.not_run), ("Unsure", seen.unsure)):
        if lost:
            parts += _listed(title, (f"{drawing.shorten(r.file, 80)}: {reason(r)}" for r in lost))
    return Group(*parts)


def _verdict(verdict: str, count: int, seen: Tally) -> str:
    if verdict != "correct" or not seen.remarked:
        return f"{count} {verdict}"
    of = "" if seen.remarked == count else f"{seen.remarked} of them "
    return f"{count} {verdict} ({of}with a remark)"


def _listed(title: str, lines: Iterable[str]) -> "list[RenderableType]":
    from rich.text import Text

    indented = [drawing.Indent(Text(line, overflow="fold"), 2) for line in lines]
    return [Text(), Text(f"{title}:"), *indented]


def reason(row: Row) -> str:
    """Why a file could not be judged, in one line, and where if that is known.

    Examples:
        >>> reason(Row("a.py", "", "", "error", "", "x", "-", "line 7", "SyntaxError: ( ?", *"123"))
        'SyntaxError: ( ? (line 7)'
    """
    places = [place for place in row.places.split("; ") if place not in ("", "-")]
    where = f" ({places[0]})" if places else ""
    return drawing.harmless(row.note or "no reason is known").replace("\n", "\\n") + where
