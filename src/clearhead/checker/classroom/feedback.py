"""One readable file per submission, as Markdown and as HTML: what a student gets back."""

import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from clearhead import drawing
from clearhead.atomic_files import disk_errors
from clearhead.checker.catalogue import words_of
from clearhead.checker.classroom import html_parts as parts
from clearhead.checker.classroom.marks_file import Row
from clearhead.checker.report import Finding, Report, Step

ENDINGS = (".md", ".html")
_LONGEST_NAME = 120  # characters
_LONGEST = 4000  # characters of one text
# Windows reserves these names, with any ending.
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\.|$)")
_MOST_STEPS = 400


class Folder:
    """A folder of feedback. Nothing outside it is written, and links in it are replaced.

    Args:
        path: The folder; made if it is not there.
        hint: Show symptoms only, without causes and fixes.

    Raises:
        OSError: If it cannot be made, or there is something else of that name.
    """

    def __init__(self, path: Path, *, hint: bool = False) -> None:
        if not path.parent.is_dir():
            raise FileNotFoundError(
                f"--feedback {path}: there is no folder {path.parent}. Create it first."
            )
        path.mkdir(exist_ok=True)
        self._path, self._hint = path, hint

    def has(self, file: str, sha256: str, rules: str) -> bool:
        """Whether both files of a submission are there and up to date."""
        ending = self._stamp(sha256, rules).encode()
        return all(
            _read(self._path / (name_for(file) + end)).rstrip().endswith(ending) for end in ENDINGS
        )

    def write(self, row: Row, reports: Sequence[Report]) -> None:
        """Write the two files of a submission, each completely or not at all.

        Args:
            row: The submission.
            reports: What was found in it.
        """
        stamp = self._stamp(row.sha256, row.rules)
        for end, made in zip(ENDINGS, (markdown, html), strict=True):
            whole = f"{made(row.file, reports, hint=self._hint)}\n{stamp}\n"
            _replace(self._path / (name_for(row.file) + end), whole.encode())

    def _stamp(self, sha256: str, rules: str) -> str:
        """The last line: which submission this is about, under which rules."""
        what = hashlib.sha256(f"{sha256} {rules} {self._hint}".encode()).hexdigest()[:16]
        return f"<!-- clearhead feedback {what} -->"


def name_for(file: str) -> str:
    """The name of a submission's feedback, without an ending: safe anywhere, and its own.

    Examples:
        >>> name_for("anna/homework.py")
        'anna__homework.py'
        >>> name_for("../x y.py")
        '_.__x_y.py-c13b0968'
    """
    plain = "".join(
        c if c.isalnum() or c in "._-" else "_" for c in file.replace("/", "__")[:_LONGEST_NAME]
    )
    if not plain.isascii():  # up to four bytes per character; most systems allow 255 in all
        plain = plain[: _LONGEST_NAME // 3]
    if plain.startswith("."):
        plain = "_" + plain[1:]
    plain = plain or "_"
    same = plain == file.replace("/", "__") and "__" not in file
    if same and plain.isascii() and not _RESERVED.match(plain):
        return plain
    return f"{plain}-{hashlib.sha256(file.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def _read(path: Path) -> bytes:
    """What is in a file; nothing if it is not there, or is a link."""
    try:
        return path.read_bytes() if stat.S_ISREG(path.lstat().st_mode) else b""
    except OSError:
        return b""


def _replace(path: Path, data: bytes) -> None:
    """Write a file beside its place and move it there: a link of that name is not followed."""
    draft = path.with_name(f".{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    try:
        with disk_errors(path), open(os.open(draft, flags, 0o666), "wb") as file:
            file.write(data)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


# Markdown


def markdown(file: str, reports: Sequence[Report], *, hint: bool = False) -> str:
    """The feedback as Markdown; text from outside cannot add markup."""
    lines = [f"# {escape(file)}", ""]
    for report in reports:
        lines += _report(report, hint)
    if not hint:
        for id in _described(reports):
            lines += [f"## {id}", "", words_of(id).section.rstrip(), ""]
    return "\n".join(lines).rstrip() + "\n"


def _report(report: Report, hint: bool) -> Iterator[str]:
    headline = report.headline[0].upper() + report.headline[1:]
    yield f"## {headline}: {escape(report.cls)}" if report.cls else f"## {headline}"
    yield ""
    if report.about:
        yield from (f"{escape(line).rstrip('.')}.  " for line in report.about)
        yield ""
    for number, finding in enumerate(report.findings, start=1):
        yield from _hint(number, finding) if hint else _finding(report, finding)
    for note in report.notes:
        yield from (f"Note: {escape(note)}", "")
    if report.steps:
        yield from ("### The forward pass, step by step", "")
        yield from _steps(report.steps[:_MOST_STEPS], remarks=not hint)
        yield ""


def _finding(report: Report, finding: Finding) -> Iterator[str]:
    kind = report.kind_of(finding)
    yield f"### {escape(finding.id)}" + (f" ({kind})" if kind else "")
    yield from ("", escape(finding.says), "")
    if "\n" in finding.evidence:  # spaces count: a caret stands below its character
        yield from (
            "**Evidence.**",
            "",
            "```text",
            *_fenced(finding.evidence[:_LONGEST]),
            "```",
            "",
        )
    elif finding.evidence:
        yield from (f"**Evidence.** {escape(finding.evidence)}", "")
    yield from _location(finding)
    if finding.fix:
        yield from (f"**Fix.** {escape(finding.fix)}", "")
    if words_of(finding.id).id:
        yield from (f"More: [{finding.id}](#{finding.id}), below.", "")


def _hint(number: int, finding: Finding) -> Iterator[str]:
    yield from (f"### Hint {number}", "", escape(finding.hint), "")
    yield from _location(finding)


def _location(finding: Finding) -> Iterator[str]:
    if finding.place:
        place = finding.place[0].upper() + finding.place[1:]
        yield from (f"{escape(place)}:" if finding.code else f"{escape(place)}.", "")
    if finding.code:
        yield from ("```py", *_fenced(finding.code), "```", "")


def _fenced(code: str) -> list[str]:
    """Code for inside a fence, which it cannot end."""
    return [line.replace("```", "'''") for line in drawing.harmless(code).split("\n")]


def _steps(steps: Sequence[Step], *, remarks: bool) -> Iterator[str]:
    yield "| line | code | operation | shape |" + (" remark |" if remarks else "")
    yield "|---|---|---|---|" + ("---|" if remarks else "")
    before: tuple[str, str] | None = None
    for step in steps:
        here = (step.place, step.code)
        place, code = ("", "") if here == before else here
        before = here
        cells = [escape(place), _code(code), _code(step.operation), _code(step.shape_text)]
        cells += [escape(step.remark)] if remarks else []
        yield f"| {' | '.join(cell.replace(chr(10), ' ') for cell in cells)} |"


def _code(words: str) -> str:
    """Text as code in a cell of a table, which it can neither end nor divide."""
    plain = drawing.visible(words[:_LONGEST]).replace("`", "'").replace("|", "\\|")
    return f"`{plain}`" if plain else ""


def escape(words: str) -> str:
    r"""Any text as Markdown that shows these characters and nothing else.

    Examples:
        >>> escape("a_b <img> [x](y) | *z*")
        'a\\_b \\<img\\> \\[x\\](y) \\| \\*z\\*'
    """
    if len(words) > _LONGEST:
        words = f"{words[:_LONGEST]} ... ({len(words) - _LONGEST:,} characters more)"
    words = drawing.harmless(words.expandtabs(4)).strip()
    words = re.sub(r"([\\`*_<>\[\]|#~&$!])", r"\\\1", words)
    words = re.sub(r"://", r":&#47;/", words)  # no links that a viewer makes by itself
    words = re.sub(r"(?m)^(\s*)(\d+)([.)])", r"\1\2\\\3", words)
    return re.sub(r"(?m)^(\s*)([-+=])", r"\1\\\2", words).replace("\n", "  \n")


def _described(reports: Iterable[Report]) -> list[str]:
    """The ids that the catalogue describes, each once."""
    found = (finding.id for report in reports for finding in report.findings)
    return [id for id in dict.fromkeys(found) if words_of(id).id]


# HTML


def html(file: str, reports: Sequence[Report], *, hint: bool = False) -> str:
    """The feedback as a page: one file, no network, text from outside escaped."""
    main = "\n".join(_section(report, hint) for report in reports)
    if not hint:
        main += "".join(
            f'<section><h2 id="{id}"><code>{id}</code></h2>\n{parts.section(id)}</section>\n'
            for id in _described(reports)
        )
    return parts.page(file, main)


def _section(report: Report, hint: bool) -> str:
    """One class."""
    kind = "unsure" if report.headline == "unsure" else report.verdict
    headline = parts.text(report.headline[0].upper() + report.headline[1:])
    name = f": {parts.text(report.cls)}" if report.cls else ""
    about = "".join(
        f'<p class="quiet">{parts.text(line).rstrip(".")}.</p>' for line in report.about
    )
    found = "".join(
        parts.hint(number, finding)
        if hint
        else parts.finding(finding, report.kind_of(finding), link=bool(words_of(finding.id).id))
        for number, finding in enumerate(report.findings, start=1)
    )
    notes = "".join(f"<p>Note: {parts.text(note)}</p>" for note in report.notes)
    steps = ""
    if report.steps:
        listed = parts.steps_list(report.steps[:_MOST_STEPS], remarks=not hint)
        steps = f"<h3>The forward pass, step by step</h3>{listed}"
    return (
        f'<section><h2><span class="verdict {kind}">{headline}</span>{name}</h2>{about}'
        + (f'<ol class="found">{found}</ol>' if found else "")
        + f"{notes}{steps}</section>"
    )
