"""The implementation of `clearhead check`. Importing this file does not import torch."""

import ast
import difflib
import functools
import itertools
import json
import os
import re
import secrets
import signal
import symtable
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from clearhead import drawing
from clearhead.atomic_files import check_folder, check_place
from clearhead.checker.classroom import batch
from clearhead.checker.classroom import class_page as page
from clearhead.checker.classroom import class_summary as summary
from clearhead.checker.classroom.data_folder import Data, staged
from clearhead.checker.classroom.feedback import Folder
from clearhead.checker.classroom.marks_file import Marks, Row, key_of, write
from clearhead.checker.classroom.policy import PARTS, Policy
from clearhead.checker.classroom.regular_files import package_of, read_text
from clearhead.checker.report import Report, exit_status
from clearhead.checker.source.notebooks import Source

_INTERRUPTED = 130  # what a shell reports after Ctrl-C


@dataclass(frozen=True)
class Options:
    """The command-line options.

    Args:
        as_json: Print one JSON object per class, one per line.
        hint: Show symptoms and locations only.
        steps: Show the forward pass of each class, step by step.
        adapter: A file that says how to build and call the class.
        csv: The file for the rows.
        html: The file for the page for the class.
        feedback: The folder for one file per submission.
        policy: The file with the policy.
        seed: The random seed for sizes, weights and inputs; None draws one.
        jobs: How many files to check at a time.
        data: A folder with the assignment's data.
        trust: Run the file without containment, because it is the user's own.
    """

    as_json: bool = False
    hint: bool = False
    adapter: Path | None = None
    csv: Path | None = None
    html: Path | None = None
    policy: Path | None = None
    jobs: int = 1
    seed: int | None = None
    steps: bool = False
    feedback: Path | None = None
    data: Path | None = None
    trust: bool = False


def check(target: str, options: Options, *, judge: batch.Check = batch.check_text) -> int:
    """Check a file, one class of a file, or a folder; return the exit status.

    Raises:
        ValueError: If there is nothing to check, or options exclude each other.
        SystemExit: If a signal asks the process to end; by then everything it started has ended.
    """
    with _ends_on_signals():
        return _check(target, options, judge)


def _check(target: str, options: Options, judge: batch.Check) -> int:
    if options.as_json and options.hint:
        raise ValueError("--json gives everything and --hint leaves things out: choose one.")
    path, only = split_target(target)
    if options.trust and path.is_dir():
        raise ValueError(
            "--trust runs a file of your own without containment. It is not for a folder of "
            "submissions."
        )
    _check_outputs(path, options)
    policy = Policy() if options.policy is None else Policy.read(options.policy)
    if options.adapter is not None:
        policy = replace(policy, adapter=read_text("--adapter", options.adapter))
    source = None if path.is_dir() else _readable(path)
    if source is not None and only is not None:
        _check_class(path, source, only, policy.adapter)
    contained = _warn(trusted=options.trust) if judge is batch.check_text else ""
    if judge is batch.check_text:
        drawn = 1 + secrets.randbelow(999_999) if options.seed is None else options.seed
        options = replace(options, seed=drawn)
        judge = functools.partial(judge, seed=drawn, trusted=options.trust)
    if path.is_dir() or any((options.csv, options.html, options.feedback)):
        if only is not None:
            policy = replace(policy, cls=only)
        with _data(options) as data:
            return _many(path, policy, options, judge, contained, data)
    source = source or batch.read_source(path)
    sign = _waiting(f"Checking {drawing.shorten(path.name, 40)}")
    with sign, _patient(path), _data(options) as data:
        extra = batch.beside(path, source.text, package_of(path, source.text), data)
        reports = judge(source.text, str(path), only, policy.adapter, **extra)
    judged = policy.judge(str(path), reports) or [
        Report(str(path), only or "", "error", notes=("No attention class was found.",))
    ]
    reports = [report.placed(source) for report in judged]
    _show(reports, options)
    return exit_status(reports)


def _data(options: Options) -> AbstractContextManager[Data | None]:
    """The assignment's data, as submissions see it."""
    return nullcontext() if options.data is None else staged(options.data)


def _readable(path: Path) -> Source | None:
    """The file's Python source; None if it cannot be read, which is reported later or in a row."""
    try:
        return batch.read_source(path)
    except ValueError:
        return None


def _check_class(path: Path, source: Source, only: str, adapter: str | None = None) -> None:
    """Raise ValueError, listing a file's classes, if it has no class of this name."""
    try:
        with warnings.catch_warnings(action="ignore"):  # about escapes in the submission
            text = f"{source.text}\n\n{adapter or ''}"
            nodes = list(ast.walk(ast.parse(text)))
            known = symtable.symtable(text, path.name, "exec").get_identifiers()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # the report says why it cannot be run
    classes = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    imported = (node.name for node in nodes if isinstance(node, ast.alias))
    # A name may also be a function, imported or assigned: then only running the file can tell.
    if only in {*classes, *known} or "*" in imported:
        return
    near = difflib.get_close_matches(only, classes, n=1, cutoff=0.5)
    there = f"Its classes: {', '.join(classes)}." if classes else "It has no class at all."
    meant = f" Did you mean {path}:{near[0]}?" if near else ""
    raise ValueError(f"{path}: there is no class {only} in it.\n  {there}{meant}")


def _check_outputs(path: Path, options: Options) -> None:
    """Raise unless each output can be written, and no submission can influence where it goes.

    A submission can bring a link, or a file of marks. So nothing is written among submissions, and
    next to a single submission no link is followed.
    """
    for option, file in (("--csv", options.csv), ("--html", options.html)):
        if file is not None:
            check_place(file, option)
    if options.feedback is not None:
        check_folder(options.feedback, "--feedback")
    folder = os.path.realpath(path if path.is_dir() else path.parent)
    outputs = ("--csv", options.csv), ("--html", options.html), ("--feedback", options.feedback)
    for option, output in outputs:
        if output is None:
            continue
        whole = Path.cwd() / output
        way = (whole, *whole.parents)
        beside = os.path.relpath(Path(folder).parent / output.name)
        if os.path.lexists(beside):  # perhaps the very link that was named
            beside = os.path.relpath(Path(folder).parent / f"new-{output.name}")
        if path.is_dir() and any(_is_in(folder, one) for one in way):
            raise ValueError(
                f"{option} {output}: expected a path outside {path}, the folder of submissions.\n"
                "  A submission could bring a file or a link of the same name. "
                f"Use another folder: {option} {beside}"
            )
        if any(one.is_symlink() and _is_in(folder, one.parent) for one in way):
            raise ValueError(
                f"{option} {output}: expected a file or a folder, got a link in {path.parent}, the "
                f"folder of the submission.\n  Use another folder: {option} {beside}"
            )


def _is_in(folder: str, path: Path) -> bool:
    """Whether a path leads into a folder, after resolving all links."""
    return Path(os.path.realpath(path)).is_relative_to(folder)


def _warn(*, trusted: bool) -> str:
    """Print what is not contained, before anything runs; return what is."""
    contained = batch.containment(trusted=trusted)
    if "Not contained" in contained:
        print(contained, file=sys.stderr)
    return contained


def write_adapter(target: str, file: Path, *, trust: bool = False) -> None:
    """Write an adapter for a class or a function, to be completed where marked.

    Args:
        target: FILE or FILE:NAME.
        file: Where the adapter goes.
        trust: Run the target without containment.

    Raises:
        ValueError: If the file already exists, or there is nothing to adapt.
    """
    path, only = split_target(target)
    if path.is_dir():
        raise ValueError(f"--write-adapter is for one file, and {path} is a folder.")
    if os.path.lexists(file):  # including a broken link
        raise ValueError(f"--write-adapter {file}: there is a file of that name; it is left alone.")
    source = batch.read_source(path)
    if only is not None:
        _check_class(path, source, only)
    from clearhead.checker.harness.adapter_templates import adapter_for, adapter_for_function
    from clearhead.checker.sandbox.limits import Limits
    from clearhead.checker.sandbox.submission import Failure, Isolated
    from clearhead.checker.source.class_choice import choose, choose_unnamed
    from clearhead.checker.source.wrapped_functions import likely_functions

    _warn(trusted=trust)
    with Isolated(source.text, path.name, limits=Limits(trusted=trust)) as session:
        classes = session.classes()
    if isinstance(classes, Failure):
        raise ValueError(f"{path}: it cannot be imported. {classes.type}: {classes.message}")
    text = source.text
    with _patient(path), batch.not_too_deep(str(path)):
        chosen = choose(classes, text, only)
        functions = likely_functions(text) or likely_functions(text, named=False)
        functions = [node for node in functions if only in (None, node.name)]
        if functions and not chosen:
            made = adapter_for_function(functions[0], text)
        else:
            chosen = chosen or choose_unnamed(classes, text) or list(classes)
            if not chosen:
                raise ValueError(f"{path}: it has neither a class nor a function for attention.")
            made = adapter_for(chosen[0], text)
    write(file, made.text.encode())
    todo = f"Complete {file} where it says so, then" if made.open else f"Wrote {file}. Now"
    print(f"{todo}: clearhead check {target} --adapter {file}", file=sys.stderr)


def split_target(target: str) -> tuple[Path, str | None]:
    """The path and the class of FILE[:CLASS].

    Raises:
        ValueError: If there is no such file or folder, or it is not Python.
    """
    path, only = Path(target), None
    if not path.exists():
        found = re.fullmatch(r"(.+):([^\W\d]\w*)", target)
        if found is not None:
            path, only = Path(found[1]), found[2]
    if not path.exists():
        raise ValueError(f"{path}: there is no such file or folder.{_near(path)}")
    if not path.is_dir() and path.suffix not in batch.SUFFIXES:
        raise ValueError(f"{path}: expected a .py file, an .ipynb notebook or a folder of them.")
    return path, only


def _near(path: Path) -> str:
    """A file with a similar name, or the path where the file was looked for."""
    there = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, there, n=1)
    if near:
        return f"\n  Did you mean {path.with_name(near[0])}?"
    return f"\n  Looked for {path.absolute()}."


def _show(reports: Sequence[Report], options: Options) -> None:
    out = drawing.console()
    for number, report in enumerate(reports):
        if options.as_json:
            print(json.dumps(report.to_json(), allow_nan=False), flush=True)
        else:
            drawn = report.draw(hint=options.hint, steps=options.steps)
            out.print(*([""] if number else []), drawn, sep="\n")


def _many(
    path: Path,
    policy: Policy,
    options: Options,
    judge: batch.Check,
    contained: str,
    data: Data | None,
) -> int:
    """Check a folder, or a file whose row is to be kept."""
    files, root = (batch.collect(path), path) if path.is_dir() else ([path], path.parent)
    files = batch.without_helpers(files, root)
    if not files:
        raise ValueError(f"{path}: there are no .py files and no .ipynb notebooks in it.")
    marks = Marks(options.csv) if options.csv is not None else None
    feedback = Folder(options.feedback, hint=options.hint) if options.feedback is not None else None
    names = [file.relative_to(root).as_posix() for file in files]
    if marks is not None:
        _say_what_changed(marks, names, policy)
    rows, gone = list[Row](), list[Row]()
    again = finished = 0
    try:
        with ExitStack() as stack:
            advance = stack.enter_context(_progress(len(files)))

            def done(file: str, sha256: str, rules: str) -> bool:
                judged = marks is not None and marks.done(file, sha256, rules)
                return judged and (feedback is None or feedback.has(file, sha256, rules))

            links = not path.is_dir()
            results = batch.run(
                files, root, jobs=options.jobs, policy=policy, done=done, links=links, check=judge,
                data=data,
            )  # fmt: skip
            stack.enter_context(closing(results))  # its processes end here, whatever happens
            for result in results:
                if result is None:
                    again += 1
                else:
                    row, reports = result
                    row = replace(row, seed="" if options.seed is None else str(options.seed))
                    if feedback is not None:
                        feedback.write(row, reports or [_nothing(row)])
                    if marks is not None:
                        marks.add(row)
                    else:
                        rows.append(row)
                        _show(reports or [_nothing(row)], options)
                finished += 1
                advance()
        if marks is not None:
            marks.sort()
            rows, gone = marks.there_and_gone(names, root)
    except (KeyboardInterrupt, _Stopped) as stop:
        _say_what_is_kept(finished, len(files), options)
        return stop.status if isinstance(stop, _Stopped) else _INTERRUPTED
    finally:
        if marks is not None:
            marks.close()
    if options.html is not None:
        made = page.html(rows, policy.fail, hint=options.hint, contained=contained)
        write(options.html, made.encode())
    if not options.as_json:
        out = drawing.console()
        if marks is None:
            out.print()
        if again:
            out.print(f"{again} of {len(files)} were judged before and have not changed.")
        out.print(summary.draw(rows, policy.fail, hint=options.hint))
    if gone:
        print(f"\n{_gone(gone, rows, root, options)}", file=sys.stderr if options.as_json else None)
    for file in (options.csv, options.html, options.feedback):
        if file is not None:
            print(f"Wrote {file}", file=sys.stderr)
    verdicts = {row.verdict for row in rows}
    return 1 if "wrong" in verdicts else 0 if verdicts == {"correct"} else 2


def _say_what_changed(marks: Marks, names: Sequence[str], policy: Policy) -> None:
    """Announce that rows judged under other rules are judged again, since it takes long."""
    known = [marks.rows[name] for name in map(key_of, names) if name in marks.rows]
    other = [row for row in known if row.rules != policy.digest]
    if not other:
        return
    found = {part for row in other for part in policy.changes_since(row.rules)}
    *first, last = [part for part in PARTS if part in found]
    what = f"{', '.join(first)} and {last}" if first else last
    some = f"{len(other)} of {len(names)} {'is' if len(other) == 1 else 'are'}"
    again = "all are" if len(other) == len(known) else some
    print(f"{what[0].upper()}{what[1:]} changed: {again} judged again.", file=sys.stderr)


def _gone(gone: Sequence[Row], rows: Sequence[Row], root: Path, options: Options) -> str:
    """A message that names the rows in the CSV file whose files do not exist."""
    same = {row.sha256: row.file for row in rows if row.sha256}
    names = [
        f"{row.file} (the same as {same[row.sha256]})" if row.sha256 in same else row.file
        for row in gone
    ]
    stay = "The row stays" if len(gone) == 1 else "Their rows stay"
    listed = drawing.harmless(", ".join(names))
    return f"Not in {root} any more, and not counted: {listed}\n{stay} in {options.csv}."


def _say_what_is_kept(finished: int, total: int, options: Options) -> None:
    words = f"\nStopped: {finished} of {total} checked"
    if options.csv is not None:
        kept = f", and kept in {options.csv}" if finished else ""
        words += f"{kept}. Repeat the command to check the rest."
    else:
        words += ". Nothing is saved: with --csv FILE, the check could be resumed."
    print(words, file=sys.stderr)


def _nothing(row: Row) -> Report:
    return Report(row.file, "", "error", notes=(row.note,))


@contextmanager
def _ends_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the processes and remove the folders that were created."""

    def stop(number: int, _: object) -> None:
        raise _Stopped(number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    here = threading.current_thread() == threading.main_thread()
    ours = [one for one in numbers if here and signal.getsignal(one) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


class _Stopped(SystemExit):
    """A signal asked the process to end."""

    def __init__(self, number: int) -> None:
        self.status = 128 + number  # what a shell reports
        super().__init__(self.status)


@contextmanager
def _patient(path: Path, seconds: float = batch.PATIENCE) -> Iterator[None]:
    """Stop a check that takes longer than one submission may, as in a folder of them."""

    def ring(*_: object) -> None:
        raise _TookTooLong

    if not hasattr(signal, "setitimer") or threading.current_thread() != threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _TookTooLong:
        raise ValueError(f"{path}: checking it took longer than {seconds:g} s.") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class _TookTooLong(BaseException):
    """Not an Exception, so that no handler in between takes it for an answer."""


@contextmanager
def _waiting(words: str) -> Iterator[None]:
    """Show activity on a terminal."""
    err = drawing.console(sys.stderr)
    if not err.is_terminal:
        yield
        return
    with err.status(words):
        yield


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A progress bar on standard error, or lines if it is no terminal; yields what advances it."""
    err = drawing.console(sys.stderr)
    if not err.is_terminal:
        yield _count(total)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = TextColumn("Checking"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Bar(*columns, console=err, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)


def _count(total: int) -> Callable[[], None]:
    """Print how many files were checked: after each one, or about ten times in all."""
    numbers = itertools.count(1)

    def advance() -> None:
        done = next(numbers)
        if done * 10 // total > (done - 1) * 10 // total:
            print(f"{done} of {total} checked", file=sys.stderr, flush=True)

    return advance
