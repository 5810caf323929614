"""The CSV file of marks: one row per submission, added as it finishes, never torn."""

import csv
import io
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import IO, NamedTuple

from clearhead.atomic_files import beside, disk_errors, is_plain
from clearhead.drawing import guarded
from clearhead.drawing.text_format import guarded_whole, unguarded


@dataclass(frozen=True)
class Row:
    """One submission in the CSV file.

    Args:
        file: Its path inside the folder.
        cls: The classes that were judged.
        passed: "yes", "no", or "unclear" where nothing could be judged.
        verdict: "correct", "wrong", "error" or "unsure": the worst of its classes.
        mistakes: The ids of the findings that fail, separated by commas.
        findings: The ids of all findings, separated by spaces.
        severities: The severity of each finding; "-" where nothing could be judged.
        places: The line of each finding, separated by "; ": "line 25", "In[4], line 7" in a
            notebook; "-" if unknown.
        note: Why it could not be judged; else the notes of the reports.
        seconds: How long it took.
        sha256: Digest of the file's bytes: the same file is not run again under the same rules.
        rules: Digest of the policy, the adapter and this package's version; see `Policy.digest`.
        details: Evidence and code of each finding, for the page; see `Detail`.
        seed: The random seed for sizes, weights and inputs: `--seed` repeats the check.
    """

    file: str
    cls: str
    passed: str
    verdict: str
    mistakes: str
    findings: str
    severities: str
    places: str
    note: str
    seconds: str
    sha256: str
    rules: str
    details: str = ""
    seed: str = ""


HEAD = tuple("class" if field.name == "cls" else field.name for field in fields(Row))
# Columns that earlier versions did not write: their files are read, and get these columns.
LATER = {"passed", "mistakes", "details", "seed"}
PASSED = {"correct": "yes", "wrong": "no"}


class Detail(NamedTuple):
    """What the page shows of one finding, kept in the row so that a run can be resumed."""

    id: str
    place: str
    code: str
    evidence: str


_MOST_DETAILS = 15_000  # characters of a row's details; a cell holds 20,000
_LONGEST_EVIDENCE = 600


def pack(details: Iterable[Detail]) -> str:
    """Details as the text of a cell; those that do not fit are left out."""
    kept: list[Detail] = []
    for detail in details:
        kept.append(detail._replace(evidence=detail.evidence[:_LONGEST_EVIDENCE]))
        if len(json.dumps(kept)) > _MOST_DETAILS:
            kept.pop()
            break
    return json.dumps(kept) if kept else ""


def unpack(cell: str) -> list[Detail]:
    """The details that `pack` was given; none if the cell was edited."""
    try:
        rows = json.loads(unguarded(cell)) if cell else []
        return [Detail(*map(str, row)) for row in rows]
    except (ValueError, TypeError, RecursionError):
        return []


def _row(head: Sequence[str], cells: Sequence[str]) -> Row:
    """The row with these columns; `mistakes` defaults to the findings that are wrong."""
    known = dict(zip(head, cells, strict=True))
    pairs = zip(known["findings"].split(), known["severities"].split(), strict=False)
    wrong = dict.fromkeys(id for id, severity in pairs if severity == "wrong")
    known.setdefault("mistakes", ", ".join(wrong) if known["verdict"] == "wrong" else "")
    known.setdefault("passed", PASSED.get(known["verdict"], "unclear"))
    return Row(cls=known.pop("class"), **known)


def key_of(file: str) -> str:
    r"""The cell for a file's name: guarded, and different for different names.

    Examples:
        >>> key_of("=x.py"), key_of("'=x.py"), key_of("a\\nb.py")
        ("'=x.py", "''=x.py", 'a\\\\nb.py')
    """
    return guarded_whole(file.replace("\\", r"\\"))


def file_of(key: str) -> str:
    r"""The file's name that a cell stands for.

    Examples:
        >>> file_of(key_of("a\n'=b\\n\u2028é.py")) == "a\n'=b\\n\u2028é.py"
        True
    """
    return unguarded(key).encode("latin-1", "backslashreplace").decode("unicode_escape")


class Marks:
    """The CSV file: its rows are kept, a torn last line is removed, new rows are added.

    Args:
        path: The file, created if it does not exist. Rows go into a pipe as they finish.

    Raises:
        ValueError: If there is another kind of file of that name.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: dict[str, Row] = {}
        self._others: list[list[str]] = []  # not ours: kept below the rows
        self._lasting = is_plain(path) or not path.exists()
        data = path.read_bytes() if self._lasting and path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        lines = _cells(whole.decode("utf-8", "replace"))
        head = tuple(lines[0]) if whole else HEAD
        if not {*HEAD} - LATER <= {*head} <= {*HEAD}:
            raise ValueError(
                f"--csv {path}: expected a file with the columns {', '.join(HEAD)}, got another.\n"
                "  It is left as it is: choose another name."
            )
        if data and not whole and not line(HEAD).startswith(data):
            raise ValueError(f"--csv {path}: this is not a file of marks. It is left as it is.")
        for cells in lines[1:]:
            if len(cells) == len(head):
                row = _row(head, cells)
                self.rows[row.file] = row
            elif cells:
                self._others.append(cells)
        self._file: IO[bytes] = path.open("r+b" if data else "wb")
        if data:
            self._file.truncate(len(whole))
            self._file.seek(0, os.SEEK_END)
        if not whole:
            self._write(HEAD)
        elif head != HEAD:
            self._rewrite()

    def done(self, file: str, sha256: str, rules: str) -> bool:
        """Whether this file was judged before, with the same content under the same rules."""
        row = self.rows.get(key_of(file))
        return row is not None and (row.sha256, row.rules) == (sha256, rules)

    def add(self, row: Row) -> None:
        """Write a row, so that nothing is lost if the power fails afterwards."""
        cells = (key_of(row.file), *(guarded(cell) for cell in astuple(row)[1:]))
        again = cells[0] in self.rows
        self.rows[cells[0]] = Row(*cells)
        if again and self._lasting:  # the file has changed since: one row per submission
            self._rewrite()
        else:
            self._write(cells)

    def sort(self) -> None:
        """Sort the rows by the files' names; they are written in the order they finish."""
        ordered = sorted(self.rows)
        if ordered != list(self.rows) and self._lasting:
            self.rows = {name: self.rows[name] for name in ordered}
            self._rewrite()

    def there_and_gone(self, files: Iterable[str], root: Path) -> tuple[list[Row], list[Row]]:
        """The rows of files that exist, and the rows of files that do not.

        Args:
            files: The names of the files that were found.
            root: Their folder; a row's file may be in it without being among them.
        """
        names = {key_of(file) for file in files}
        there, gone = list[Row](), list[Row]()
        for name, row in self.rows.items():
            kept = name in names or _is_there(root, name)
            (there if kept else gone).append(row)
        return there, gone

    def _write(self, cells: Iterable[str]) -> None:
        with disk_errors(self._path):
            self._file.write(line(cells))
            self._file.flush()
            if self._lasting:
                os.fsync(self._file.fileno())

    def _rewrite(self) -> None:
        rows = [*(astuple(row) for row in self.rows.values()), *self._others]
        write(self._path, line(HEAD) + b"".join(map(line, rows)))
        self._file.close()
        self._file = self._path.open("ab")

    def close(self) -> None:
        """Close the file."""
        with disk_errors(self._path):  # what could not be written is tried again
            self._file.close()


def _is_there(root: Path, key: str) -> bool:
    """Whether the file of a row is in the folder."""
    try:
        return (root / file_of(key)).is_file()
    except (OSError, ValueError):  # not a valid file name
        return False


def _cells(text: str) -> list[list[str]]:
    """The cells of a CSV file, however long they are."""
    before = csv.field_size_limit(len(text) + 1)
    try:
        return list(csv.reader(io.StringIO(text)))
    finally:
        csv.field_size_limit(before)


def line(cells: Iterable[str]) -> bytes:
    """One line of CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode("utf-8", "backslashreplace")


def write(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old one or the whole new one."""
    with beside(path) as whole:
        whole.write_bytes(data)
