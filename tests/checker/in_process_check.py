"""Check a class or a file in this process, which is faster than in a separate one.

A separate process imports torch first, which takes longer than most checks. That answers from a
separate process are the same ones is tested in `sandbox/test_isolation.py`. A file that changes
other modules, ends its process, or chooses a branch by the version of torch needs a process of its
own: use `check_source` there.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from clearhead.checker.diagnosis import file_check, owner_checks
from clearhead.checker.diagnosis.class_check import check_class
from clearhead.checker.report import Report
from clearhead.checker.sandbox.answers import read_start
from clearhead.checker.sandbox.limits import Limits
from clearhead.checker.sandbox.submission import Failure, InProcess, Submission
from clearhead.checker.sandbox.worker import Header, Tensors, Worker
from clearhead.checker.source.class_choice import choose


class Here(InProcess):
    """The classes of a file, run in this process; the arguments are those of `Isolated`."""

    def __init__(
        self,
        source: str,
        filename: str = "file.py",
        *,
        limits: Limits | None = None,
        siblings: Mapping[str, str] | None = None,
    ) -> None:
        assert not siblings, "modules beside the file need a process of their own"
        Submission.__init__(self)
        self._worker = Worker(lambda file: file == filename, Exception)
        self._broken: Failure | None = None
        started = super()._ask("start", {"source": source, "filename": filename}, {})
        if isinstance(started, Failure):
            self._broken = started
        else:
            self.notes, self.missing = read_start(started[0])

    def _ask(
        self, question: str, fields: Header, tensors: Tensors
    ) -> tuple[Header, Tensors] | Failure:
        return self._broken or super()._ask(question, fields, tensors)


def check_all(source: str, only: str | None = None) -> list[Report]:
    """The reports on the attention classes of a source."""
    session = Here(source)
    classes = session.classes()
    assert not isinstance(classes, Failure)
    return [check_class(session, info, source, "file.py") for info in choose(classes, source, only)]


def check(source: str) -> Report:
    (report,) = check_all(source)
    return report


@contextmanager
def in_this_process() -> Iterator[None]:
    """While it lasts, no file gets a process of its own."""
    with patch.object(file_check, "Isolated", Here), patch.object(owner_checks, "Isolated", Here):
        yield


def check_file(source: str, filename: str = "file.py", **options: Any) -> list[Report]:
    """`check_source` with the same arguments, for files that need no limits."""
    with in_this_process():
        return file_check.check_source(source, filename, **options)


def ids(report: Report) -> set[str]:
    return {finding.id for finding in report.findings}
