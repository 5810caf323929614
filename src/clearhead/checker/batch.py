"""Many submissions: one row of a CSV file as each one finishes, resumable after an interruption.

Every submission is judged in a worker process that may crash or hang: that is a row, not the end.
Importing this file imports no torch; the workers do.
"""

import hashlib
import io
import json
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from clearhead.checker.marks import Row
from clearhead.checker.notebooks import Source, read_notebook
from clearhead.checker.policy import Policy
from clearhead.checker.report import Report

SUFFIXES = (".py", ".ipynb")
LARGEST = 4 * 2**20  # bytes of one submission
PATIENCE = 300.0  # seconds for one submission, all its classes together

Check = Callable[[str, str, str | None, str | None], list[Report]]


def collect(folder: Path) -> list[Path]:
    """The Python files and notebooks in a folder and below, without hidden ones and links."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(n for n in folders if not n.startswith((".", "__pycache__")))
        paths = [Path(place, name) for name in sorted(names)]
        found += [
            path
            for path in paths
            if path.suffix in SUFFIXES and not path.name.startswith(".") and not path.is_symlink()
        ]
    return found


def read_source(path: Path) -> Source:
    """The Python of a file or of a notebook.

    Raises:
        ValueError: If it cannot be read, with the reason.
    """
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise ValueError(f"{path.name}: {size:,} bytes; the most is {LARGEST:,}.")
        if path.suffix == ".ipynb":
            return read_notebook(path)
        # As Python reads it: a byte order mark and a line `# coding:` count.
        whole = io.BytesIO(path.read_bytes())
        return Source(io.TextIOWrapper(whole, encoding=_encoding(path)).read())
    except OSError as error:
        raise ValueError(f"{path.name}: {error.strerror}.") from None
    except (UnicodeDecodeError, SyntaxError) as error:
        raise ValueError(f"{path.name}: not text in UTF-8 ({error}).") from None


def _encoding(path: Path) -> str:
    import tokenize

    with path.open("rb") as file:
        return tokenize.detect_encoding(file.readline)[0]


def check_text(
    source: str, file: str, only: str | None = None, adapter: str | None = None
) -> list[Report]:
    """Judge one source; torch is imported here."""
    from clearhead.checker.diagnose import check_source

    return check_source(source, file, only=only, adapter=adapter)


def containment() -> str:
    """One line on what a submission can reach here; torch is imported here."""
    from clearhead.checker.sandbox import choose_way, contained_by

    return contained_by(choose_way("bwrap"))


def _serve(pipe: Connection, check: Check) -> None:
    """A worker: a question in, an answer out, both as JSON."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    while True:
        try:
            path, name, adapter = json.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            source = read_source(Path(path))
            reports = check(source.text, name, None, adapter)
            answer: dict[str, object] = {
                "reports": [report.placed(source).to_json() for report in reports]
            }
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        pipe.send_bytes(json.dumps(answer).encode())


class Worker:
    """A process that judges one submission after the other, and is replaced when it dies."""

    def __init__(self, check: Check, patience: float = PATIENCE) -> None:
        self._check, self._patience = check, patience
        self._process: Any = None
        self._pipe: Connection | None = None
        self._lock, self._stopped = threading.Lock(), False

    def ask(self, path: Path, name: str, adapter: str | None) -> dict[str, Any]:
        """The answer of `_serve`, or {"error": ...} where the worker crashed or hung."""
        if self._process is None or not self._process.is_alive():
            self.close()
            with self._lock:
                if self._stopped:
                    return {"error": "was stopped"}
                self._start()
        process, pipe = self._process, self._pipe
        assert pipe is not None
        try:
            pipe.send_bytes(json.dumps([str(path), name, adapter]).encode())
            if not pipe.poll(self._patience):
                self.close()
                return {"error": f"took longer than {self._patience:g} s"}
            return dict(json.loads(pipe.recv_bytes()))
        except (EOFError, OSError):
            process.join()
            status = process.exitcode
            self.close()
            return {"error": f"the worker ended with status {status}"}

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, self._check)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def stop(self) -> None:
        """End the process for good, from another thread than the one that asks."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """End the process, if there is one; the next question starts another."""
        with self._lock:
            process, pipe = self._process, self._pipe
            self._process = self._pipe = None
        if process is not None:
            process.kill()
            process.join()
        if pipe is not None:
            pipe.close()


def row_of(
    name: str, digest: str, answer: dict[str, Any], seconds: float, policy: Policy
) -> tuple[Row, list[Report]]:
    """The row, and the reports behind it, for a worker's answer."""
    if "error" in answer:
        reports: list[Report] = []
        verdict, note = "error", str(answer["error"])
    else:
        reports = policy.judge(name, [Report.from_json(data) for data in answer["reports"]])
        verdicts = [report.verdict for report in reports]
        order = ("wrong", "error", "unsure", "correct")
        verdict = next((each for each in order if each in verdicts), "error")
        lost = [r for r in reports if r.verdict in ("error", "unsure")]
        # Of a traceback the last line: what happened; `places` says where.
        texts = [(f.evidence or f.says).strip().split("\n")[-1] for r in lost for f in r.findings]
        note = texts[0][:300] if texts else "" if reports else "no attention class was found"
    findings = [finding for report in reports for finding in report.findings]
    severities = [
        "-" if report.verdict in ("error", "unsure") else finding.severity
        for report in reports
        for finding in report.findings
    ]
    row = Row(
        file=name,
        cls=" ".join(report.cls for report in reports),
        verdict=verdict,
        findings=" ".join(finding.id for finding in findings),
        severities=" ".join(severities),
        places="; ".join(finding.place or "-" for finding in findings),
        seconds=f"{seconds:.1f}",
        note=note,
        sha256=digest,
        rules=policy.digest,
    )
    return row, reports


def run(
    files: Sequence[Path],
    root: Path,
    *,
    jobs: int = 1,
    policy: Policy | None = None,
    done: Callable[[str, str, str], bool] = lambda file, sha256, rules: False,
    check: Check = check_text,
    patience: float = PATIENCE,
) -> Iterator[tuple[Row, list[Report]] | None]:
    """Judge the files, giving each row as it finishes; None for one that was done before.

    Args:
        files: What to judge.
        root: Rows name a file by its path below this folder.
        jobs: How many at a time.
        policy: What counts.
        done: Whether a file of this name and sha256 needs no run under these rules.
        check: What judges; a function of a module, since workers import it.
        patience: Seconds for one file.
    """
    policy = policy or Policy()
    waiting: queue.SimpleQueue[Path] = queue.SimpleQueue()
    results: queue.SimpleQueue[tuple[Row, list[Report]] | BaseException | None] = (
        queue.SimpleQueue()
    )
    for file in files:
        waiting.put(file)
    workers = [Worker(check, patience) for _ in range(min(jobs, max(len(files), 1)))]
    stop = threading.Event()

    def serve(worker: Worker) -> None:
        while not stop.is_set():
            try:
                file = waiting.get_nowait()
            except queue.Empty:
                break
            try:
                results.put(_judge(worker, file, root, policy, done))
            except BaseException as error:  # the other thread raises it
                results.put(error)
                break
        worker.close()

    threads = [threading.Thread(target=serve, args=(w,), daemon=True) for w in workers]
    for thread in threads:
        thread.start()
    try:
        for _ in files:
            result = results.get()
            if isinstance(result, BaseException):
                raise result
            yield result
    finally:
        stop.set()
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join(timeout=10)


def _judge(
    worker: Worker, file: Path, root: Path, policy: Policy, done: Callable[[str, str, str], bool]
) -> tuple[Row, list[Report]] | None:
    name = file.relative_to(root).as_posix()
    start = time.perf_counter()
    try:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        return row_of(name, "", {"error": f"cannot be read: {error.strerror}"}, 0.0, policy)
    if done(name, digest, policy.digest):
        return None
    answer = worker.ask(file, name, policy.adapter)
    return row_of(name, digest, answer, time.perf_counter() - start, policy)
