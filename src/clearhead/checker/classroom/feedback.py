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
from clearhead.checker.report import Found, Pass, Report, limited

ENDINGS = (".md", ".html")
_LONGEST_NAME = 120  # characters
_LONGEST = 4000  # characters of code
# Windows reserves these names, with any extension.
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\.|$)")
STEPS = "The forward pass, step by step"


class Folder:
    """A folder of feedback. Nothing outside it is written, and links in it are replaced.

    Args:
        path: The folder, created if it does not exist.
        hint: Show symptoms only, without causes and fixes.

    Raises:
        OSError: If it cannot be created, or something else has that name.
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
        """The last line, which identifies the submission and the rules."""
        what = hashlib.sha256(f"{sha256} {rules} {self._hint}".encode()).hexdigest()[:16]
        return f"<!-- clearhead feedback {what} -->"


def name_for(file: str) -> str:
    """The name of a submission's feedback, without extension: safe anywhere, and unique.

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
    """The contents of a file; nothing if it does not exist or is a link."""
    try:
        return path.read_bytes() if stat.S_ISREG(path.lstat().st_mode) else b""
    except OSError:
        return b""


def _replace(path: Path, data: bytes) -> None:
    """Write a file next to its path and move it there: a link of that name is not followed."""
    draft = path.with_name(f".{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    try:
        with disk_errors(path), open(os.open(draft, flags, 0o666), "wb") as file:
            file.write(data)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def markdown(file: str, reports: Sequence[Report], *, hint: bool = False) -> str:
    """The feedback as Markdown; untrusted text cannot add markup."""
    lines = [f"# {escape(file)}", ""]
    for report in reports:
        lines += [
            f"## {report.title}: {escape(report.cls)}" if report.cls else f"## {report.title}"
        ]
        lines += ["", *(f"{escape(line).rstrip('.')}.  " for line in report.about)]
        lines += [""] if report.about else []
        for block in report.blocks(hint=hint):
            if isinstance(block, Found):
                lines += _found(block)
            elif isinstance(block, str):
                lines += [f"Note: {escape(block)}", ""]
            else:
                lines += [f"### {STEPS}", "", *_table(block), ""]
    for id in _described(reports, hint):
        lines += [f"## {id}", "", words_of(id).section.rstrip(), ""]
    return "\n".join(lines).rstrip() + "\n"


def _found(block: Found) -> Iterator[str]:
    yield f"### {escape(block.title)}" + (f" ({block.kind})" if block.kind else "")
    yield from ("", escape(block.says), "")
    for label, text, code in block.facts:
        fenced = code or (text if "\n" in text else "")  # a caret stays below its character
        shown = "" if fenced == text else f" {escape(text)}"
        yield from (f"**{label}{shown}.**" if code else f"**{label}.**{shown}", "")
        if fenced:
            shown = drawing.harmless(fenced[:_LONGEST]).replace("```", "'''")
            yield from (f"```{'py' if code else 'text'}", shown, "```", "")
    if words_of(block.id).id:
        yield from (f"More: [{block.id}](#{block.id}), below.", "")


def _table(steps: Pass) -> Iterator[str]:
    """The forward pass, one row per operation."""
    yield "| line | code | operation | shape |" + (" remark |" if steps.remarks else "")
    yield "|---|---|---|---|" + ("---|" if steps.remarks else "")
    for group in steps.groups:
        for index, step in enumerate(group):
            first = ["", ""] if index else [escape(step.place), _code(step.code)]
            cells = [*first, _code(step.operation), _code(step.shape_text)]
            cells += [escape(step.remark)] if steps.remarks else []
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
    words = re.sub(r"([\\`*_<>\[\]|#~&$!])", r"\\\1", limited(words).strip())
    words = re.sub(r"://", r":&#47;/", words)  # no links that a viewer creates by itself
    words = re.sub(r"(?m)^(\s*)(\d+)([.)])", r"\1\2\\\3", words)
    return re.sub(r"(?m)^(\s*)([-+=])", r"\1\\\2", words).replace("\n", "  \n")


def _described(reports: Iterable[Report], hint: bool) -> list[str]:
    """The ids to describe at the end: those in the catalogue, each once; none with hints."""
    found = (finding.id for report in reports for finding in report.findings if not hint)
    return [id for id in dict.fromkeys(found) if words_of(id).id]


def html(file: str, reports: Sequence[Report], *, hint: bool = False) -> str:
    """The feedback as a page: one file, no network access, untrusted text escaped."""
    main = "\n".join(_section(report, hint) for report in reports)
    main += "".join(
        f'<section><h2 id="{id}"><code>{id}</code></h2>\n{parts.section(id)}</section>\n'
        for id in _described(reports, hint)
    )
    return parts.page(file, main)


def _section(report: Report, hint: bool) -> str:
    """The section on one class."""
    found, rest = "", ""
    for block in report.blocks(hint=hint):
        if isinstance(block, Found):
            found += parts.found(block, link=True)
        elif isinstance(block, str):
            rest += f"<p>Note: {parts.text(block)}</p>"
        else:
            rest += f"<h3>{STEPS}</h3>{parts.steps_list(block)}"
    about = (f'<p class="quiet">{parts.text(line).rstrip(".")}.</p>' for line in report.about)
    title = f'<span class="verdict {report.judged}">{parts.text(report.title)}</span>'
    title += f": {parts.text(report.cls)}" if report.cls else ""
    above = f"<h2>{title}</h2>{''.join(about)}"
    return f"<section>{above}{parts.found_list(found)}{rest}</section>"
