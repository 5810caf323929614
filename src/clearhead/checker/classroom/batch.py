"""Many submissions: one row of a CSV file as each one finishes, resumable after an interruption.

Every submission is judged in a worker process. If that crashes or hangs, the submission gets a row
that says so, and the run continues. Importing this file does not import torch; the workers do.
"""

import ast
import codecs
import hashlib
import io
import json
import multiprocessing
import os
import queue
import signal
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from clearhead.checker.classroom.data_folder import Data
from clearhead.checker.classroom.marks_file import Detail, Row, pack
from clearhead.checker.classroom.policy import Policy
from clearhead.checker.classroom.regular_files import read_bytes
from clearhead.checker.report import Report
from clearhead.checker.sandbox.resource_usage import remove_folders
from clearhead.checker.source.notebooks import Source, parse_notebook

SUFFIXES = (".py", ".ipynb")
DEEPEST = 30  # nested folders
# By Python's names. Others are not text encodings (rot13), or take hours (punycode).
ENCODINGS = (
    *("utf-8", "utf-8-sig", "ascii", "iso8859-1", "iso8859-2", "iso8859-15", "cp1250", "cp1251"),
    *("cp1252", "cp1254", "koi8-r", "gb2312", "gbk", "gb18030", "big5", "shift_jis", "cp932"),
    *("euc_jp", "euc_kr", "cp949"),
)
NOTE = 300  # characters
PATIENCE = 300.0  # seconds for one submission, all its classes together

Check = Callable[..., list[Report]]  # see `check_text`
NOTHING: Mapping[str, Any] = {}


def collect(folder: Path) -> list[Path]:
    """The Python files and notebooks in a folder and below, without hidden ones.

    A folder that cannot be opened, is too deep or is a link is in the list itself: it becomes a
    row. Links are not followed.

    Raises:
        OSError: If the folder itself cannot be opened.
    """
    found: list[Path] = []

    def lost(error: OSError) -> None:
        if Path(error.filename) == folder:
            raise error
        found.append(Path(error.filename))

    for place, folders, names in os.walk(folder, onerror=lost):
        here = Path(place)
        folders[:] = sorted(n for n in folders if not n.startswith((".", "__pycache__")))
        found += [here / name for name in folders if (here / name).is_symlink()]
        folders[:] = [name for name in folders if not (here / name).is_symlink()]
        if len(here.relative_to(folder).parts) >= DEEPEST:
            found += [here / name for name in folders]
            folders.clear()
        found += [
            here / name
            for name in sorted(names)
            if Path(name).suffix in SUFFIXES and not name.startswith(".")
        ]
    return found


def without_helpers(files: Sequence[Path], root: Path) -> list[Path]:
    """The files without those that only help others: each folder below the root is one submission.

    Such a helper has no attention, and is an `__init__.py` or belongs to a submission with a file
    that has.
    """
    from clearhead.checker.source.class_choice import holds_attention

    helpers: list[Path] = []
    for file in files:
        with suppress(
            ValueError, OSError, SyntaxError, RecursionError, MemoryError
        ):  # a row says so
            text = read_source(file).text
            helpers += [] if ast.parse(text).body and holds_attention(text) else [file]
    whole = {file.relative_to(root).parts[0] for file in files if file not in helpers}
    out = {f for f in helpers if f.name == "__init__.py" or f.relative_to(root).parts[0] in whole}
    return [file for file in files if file not in out]


def read_source(path: Path) -> Source:
    """The Python source of a file or of a notebook.

    Raises:
        ValueError: If it cannot be read, with the reason.
    """
    return parse_source(read_bytes(path), path.name)


def parse_source(data: bytes, name: str) -> Source:
    """The Python source in the bytes of a file or of a notebook.

    Raises:
        ValueError: If it cannot be read, with the reason.
    """
    if Path(name).suffix == ".ipynb":
        return parse_notebook(data, name)
    try:
        # As Python reads it: a byte order mark and a line `# coding:` count.
        return Source(io.TextIOWrapper(io.BytesIO(data), encoding=_encoding(data)).read())
    except (UnicodeDecodeError, SyntaxError) as error:
        raise ValueError(f"{name}: not text in UTF-8 ({str(error)[:200]}).") from None


def _encoding(data: bytes) -> str:
    import tokenize

    name = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
    if codecs.lookup(name).name not in ENCODINGS:
        raise SyntaxError(f"it says that its encoding is {name}; save it as UTF-8")
    return name


def check_text(
    source: str,
    file: str,
    only: str | None = None,
    adapter: str | None = None,
    siblings: Mapping[str, str] | None = None,
    data: str = "",
    seed: int = 0,
    trusted: bool = False,
) -> list[Report]:
    """Judge one source; torch is imported here.

    Raises:
        ValueError: If its expressions are nested too deeply to be read.
    """
    import torch

    from clearhead.checker.diagnosis.file_check import check_source
    from clearhead.checker.sandbox.limits import Limits

    torch.set_num_threads(1)  # tensors are small: several threads would wait for each other
    limits = Limits(data=Path(data) if data else None, trusted=trusted)
    with not_too_deep(file):
        return check_source(
            source, file, only=only, adapter=adapter, limits=limits, siblings=siblings, seed=seed
        )


def beside(path: Path, text: str, inside: Path | None, data: Data | None) -> dict[str, Any]:
    """What a submission finds next to itself, as arguments of `check_text`; usually nothing.

    Args:
        path: The file.
        text: Its Python source.
        inside: The folder that belongs to this submission, if it has one.
        data: The assignment's data.
    """
    from clearhead.checker.source.siblings import siblings_of

    found = {} if inside is None else siblings_of(path, text, inside)
    extra: dict[str, Any] = {"siblings": found} if found else {}
    return extra if data is None else {**extra, "data": str(data.folder)}


@contextmanager
def not_too_deep(file: str) -> Iterator[None]:
    """Raise ValueError if a source exceeds Python's own limits."""
    try:
        yield
    except (RecursionError, MemoryError) as error:
        raise ValueError(
            f"{file}: an expression in it is nested too deeply to be read ({type(error).__name__})."
        ) from None


def containment(*, trusted: bool = False) -> str:
    """One line on what a submission can reach here; torch is imported here.

    Args:
        trusted: Whether it runs without containment, because its author is trusted.

    Raises:
        ValueError: If it cannot be contained at all.
    """
    from clearhead.checker.sandbox.process import choose_way, contained_by

    try:
        return contained_by(choose_way("trusted" if trusted else "bwrap"))
    except RuntimeError as error:
        raise ValueError(str(error)) from None


def _serve(pipe: Connection, check: Check) -> None:
    """A worker: takes a question and the bytes of a file, and answers in JSON."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    while True:
        try:
            name, adapter, extra = json.loads(pipe.recv_bytes())
            data = pipe.recv_bytes()
        except EOFError:
            return
        try:
            source = parse_source(data, name)
            reports = check(source.text, name, None, adapter, **extra)
            answer = {"reports": [report.placed(source).to_json() for report in reports]}
        except Exception as error:
            answer = _failed(error)
        pipe.send_bytes(json.dumps(answer).encode())


def _failed(error: Exception) -> dict[str, Any]:
    """The answer for a file that could not be read or judged; the others are unaffected."""
    said = isinstance(error, ValueError)  # with our own message
    return {"error": str(error) if said else f"{type(error).__name__}: {error}"}


class Worker:
    """A process that judges one submission after another, and is replaced when it dies."""

    def __init__(self, check: Check, patience: float = PATIENCE) -> None:
        self._check, self._patience = check, patience
        self._process: Any = None
        self._pipe: Connection | None = None
        self._stopped = False

    def ask(
        self, data: bytes, name: str, adapter: str | None, extra: Mapping[str, Any] = NOTHING
    ) -> dict[str, Any]:
        """The answer of `_serve`, or {"error": ...} if the worker crashed or hung."""
        if self._process is None or not self._process.is_alive():
            self._start()
        pipe = self._pipe
        assert pipe is not None
        try:
            pipe.send_bytes(json.dumps([name, adapter, dict(extra)]).encode())
            pipe.send_bytes(data)
            if pipe.poll(self._patience):
                return dict(json.loads(pipe.recv_bytes()))
            error = f"took longer than {self._patience:g} s"
        except (EOFError, OSError):
            self._process.join()
            error = f"the worker ended with status {self._process.exitcode}"
        self.close()
        return {"error": error}

    def _start(self) -> None:
        self.close()
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, self._check)
        process = context.Process(target=_serve, args=arguments, daemon=True)
        process.start()
        theirs.close()
        self._process = process
        if self._stopped:  # while it started
            process.kill()

    def stop(self) -> None:
        """End the process for good, from a thread other than the one that asks."""
        self._stopped = True
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the process, if there is one; the next question starts another."""
        process, pipe = self._process, self._pipe
        self._process = self._pipe = None
        if process is not None:
            process.kill()
            process.join()
            remove_folders(process.pid)
        if pipe is not None:
            pipe.close()


def row_of(
    name: str, digest: str, answer: dict[str, Any], seconds: float, policy: Policy
) -> tuple[Row, list[Report]]:
    """The row, and the reports behind it, for a worker's answer."""
    if "error" in answer:
        reports: list[Report] = []
        verdict, note = "error", str(answer["error"])[:NOTE]
    else:
        reports = policy.judge(name, [Report.from_json(data) for data in answer["reports"]])
        verdicts = [report.verdict for report in reports]
        order = ("wrong", "error", "unsure", "correct")
        verdict = next((each for each in order if each in verdicts), "error")
        lost = [r for r in reports if r.verdict in ("error", "unsure")]
        # The last line of a traceback: what happened; `places` says where.
        texts = [(f.evidence or f.says).strip().split("\n")[-1] for r in lost for f in r.findings]
        texts += [] if reports else ["no attention class was found"]
        noted = dict.fromkeys(note for report in reports for note in report.notes)
        note = (texts[0] if texts else " ".join(noted))[:NOTE]
    found = [
        (finding, "-" if report.verdict in ("error", "unsure") else finding.severity)
        for report in reports
        for finding in report.findings
    ]
    mistakes = dict.fromkeys(f.id for f, severity in found if severity in policy.fail)
    row = Row(
        file=name,
        cls=" ".join(report.cls for report in reports),
        passed=policy.passed(verdict),
        verdict=verdict,
        mistakes=", ".join(mistakes),
        findings=" ".join(finding.id for finding, _ in found),
        severities=" ".join(severity for _, severity in found),
        places="; ".join(finding.place or "-" for finding, _ in found),
        note=note,
        seconds=f"{seconds:.1f}",
        sha256=digest,
        rules=policy.digest,
        details=pack(Detail(f.id, f.place, f.code, f.evidence) for f, _ in found),
    )
    return row, reports


def run(
    files: Sequence[Path],
    root: Path,
    *,
    jobs: int = 1,
    policy: Policy | None = None,
    done: Callable[[str, str, str], bool] = lambda file, sha256, rules: False,
    links: bool = False,
    check: Check = check_text,
    patience: float = PATIENCE,
    data: Data | None = None,
) -> Generator[tuple[Row, list[Report]] | None, None, None]:
    """Judge the files, yielding each row as it finishes; None for one that was done before.

    Args:
        files: What to judge.
        root: Rows name a file by its path below this folder.
        jobs: How many at a time.
        policy: What counts in the assignment.
        done: Whether a file of this name and sha256 needs no run under these rules.
        links: Whether a file may be a symbolic link: if the user named it.
        check: The function that judges; it must be at module level, since workers import it.
        patience: Seconds for one file.
        data: The assignment's data.
    """
    policy = policy or Policy()
    workers = [Worker(check, patience) for _ in range(max(1, min(jobs, len(files))))]
    free = queue.SimpleQueue[Worker]()
    for worker in workers:
        free.put(worker)

    def judge(file: Path) -> tuple[Row, list[Report]] | None:
        name, digest, start = file.relative_to(root).as_posix(), "", time.perf_counter()
        worker = free.get()
        try:
            source = read_bytes(file, links=links)
            first = name.partition("/")[0]
            inside = file.parent if links else root / first if first != name else None
            extra = beside(file, source.decode(errors="replace"), inside, data)
            digest = _digest(source, extra.get("siblings", {}), data)
            if done(name, digest, policy.digest):
                return None
            answer = worker.ask(source, name, policy.adapter, extra)
            return row_of(name, digest, answer, time.perf_counter() - start, policy)
        except Exception as error:
            return row_of(name, digest, _failed(error), time.perf_counter() - start, policy)
        finally:
            free.put(worker)

    pool = ThreadPoolExecutor(len(workers))
    try:
        for finished in as_completed([pool.submit(judge, file) for file in files]):
            yield finished.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.stop()
        pool.shutdown()
        for worker in workers:
            worker.close()


def _digest(data: bytes, siblings: Mapping[str, str], given: Data | None) -> str:
    """The sha256 of a file, including what it finds next to itself, if there is anything."""
    found = hashlib.sha256(data)
    for name, text in sorted(siblings.items()):
        found.update(f"\0{name}\0{text}".encode())
    if given is not None:
        found.update(given.digest.encode())
    return found.hexdigest()
