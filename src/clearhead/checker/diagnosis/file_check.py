"""Choose and judge a file's attention classes and functions one by one: `check_source`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from clearhead.checker.catalogue import finding
from clearhead.checker.diagnosis.class_check import check_class
from clearhead.checker.diagnosis.owner_checks import with_owner
from clearhead.checker.harness.building import ADAPTER, could_not_run
from clearhead.checker.harness.error_messages import own_fault
from clearhead.checker.harness.subject import Session
from clearhead.checker.report import Finding, Report
from clearhead.checker.sandbox.limits import Limits
from clearhead.checker.sandbox.submission import ClassInfo, Failure, Isolated
from clearhead.checker.source.class_choice import (
    choose,
    choose_blocks,
    choose_unnamed,
    left_out,
    owners_of,
)
from clearhead.checker.source.class_text import Text, text_of, used_by
from clearhead.checker.source.wrapped_functions import Wrapped, likely_functions, wrapped

LIMITS = Limits()
_TOLD = 5  # at most this many sibling modules are named


def check_source(
    source: str,
    filename: str,
    *,
    only: str | None = None,
    adapter: str | None = None,
    limits: Limits = LIMITS,
    siblings: Mapping[str, str] | None = None,
    seed: int = 0,
) -> list[Report]:
    """Check the attention classes of a file in a separate process.

    Args:
        source: The source of the file.
        filename: Its name, for the report.
        only: The one class to check.
        adapter: The source of an adapter: a class that builds and calls the submitted class.
        limits: The resource limits for the file.
        siblings: Modules in the same directory; see `siblings_of`.
        seed: The seed for sizes, weights and inputs.
    """
    own_lines = source.count("\n") + 1
    if adapter is not None:
        source = f"{source}\n\n{adapter}\n"
    file = _File(source, filename, limits, siblings or {}, seed)
    reports = _check_file(file, only, own_lines if adapter is not None else 0)
    if siblings:
        more = f" and {len(siblings) - _TOLD} more" if len(siblings) > _TOLD else ""
        note = f"It imports {', '.join([*siblings][:_TOLD])}{more} from its folder."
        reports = [replace(report, notes=(*report.notes, note)) for report in reports]
    return reports


@dataclass(frozen=True)
class _File:
    """A file to check, with its settings; see `check_source`."""

    source: str
    filename: str
    limits: Limits
    siblings: Mapping[str, str]
    seed: int

    def session(self, more: str = "") -> Isolated:
        """A process that has imported the file, with more source appended."""
        source = self.source + more
        return Isolated(source, self.filename, limits=self.limits, siblings=self.siblings)

    def check(self, session: Session, info: ClassInfo) -> Report:
        """Check one of its classes."""
        return check_class(session, info, self.source, self.filename, seed=self.seed)


def _check_file(file: _File, only: str | None, adapter_at: int) -> list[Report]:
    """Check the classes of a file, or those built by the adapter after line `adapter_at`."""
    source, filename = file.source, file.filename
    with file.session() as session:
        classes = session.classes()
        if isinstance(classes, Failure):
            return [_not_imported(source, filename, only or "", classes)]
        if adapter_at and only is None and classes:
            only = max(classes, key=lambda info: info.line).name
        chosen = choose(classes, source, only)
        functions = [] if adapter_at else wrapped(source, only=only or "")
        if not chosen and only is None and not adapter_at:
            chosen = [] if functions else choose_unnamed(classes, source)
            functions = functions if functions or chosen else wrapped(source, named=False)
            if not chosen and not functions:
                blocks = choose_blocks(classes, source)
                return [check_block(session, info, file) for info in blocks] or [
                    _none_found(file, classes, only)
                ]
        if not chosen:
            return check_functions(file, functions) or [_none_found(file, classes, only)]
        if adapter_at and len(chosen) == 1:
            text = inner_text(source, classes, chosen[0])
            adapted = check_class(
                session, chosen[0], source, filename, given=True, text=text, seed=file.seed
            )
            return [_adapter_failed(adapted, adapter_at) or adapted]
        reports = [file.check(session, info) for info in chosen]
        if only is None:
            by_class = {report.cls: report for report in reports}
            for place, (info, report) in enumerate(zip(chosen, reports, strict=True)):
                alone = report.verdict in ("correct", "wrong") or not report.is_attention
                for owner in () if alone else owners_of(classes, source, info.name)[:2]:
                    outer = by_class.get(owner.name) or check_block(session, owner, file)
                    inside = seen_inside(report, info, outer)
                    if inside is not None:
                        reports[place] = inside
                        break
        reports = left_out(reports, source)
    if adapter_at or only is not None:
        return reports
    judged = {report.cls for report in reports if report.verdict in ("correct", "wrong")}
    used = {p.name for i in classes if i.name in judged for p in used_by(text_of(source, i))}
    beside = check_functions(file, [one for one in functions if one.name not in used])
    left = [one.cls for one in beside if one.verdict not in ("correct", "wrong")]
    if left:  # they may not be attention: no reason to doubt the classes
        note = f"Not judged: the function{'s' * (len(left) > 1)} {', '.join(left)}."
        reports[-1] = replace(reports[-1], notes=(*reports[-1].notes, note))
    reports += [one for one in beside if one.cls not in left]
    return with_owner(reports, source, filename, file.limits, file.siblings)


def _not_imported(source: str, filename: str, name: str, failure: Failure) -> Report:
    """The report on a file that cannot be imported; wrong if that is its own fault."""
    own = own_fault(failure, source, ClassInfo(name, 0, 0, False, (), (), (), ()), ())
    if not own:
        return could_not_run(filename, name, failure, "import")
    found = finding("crashes", f"When the file is imported: {own}", failure.line)
    return Report(filename, name, "wrong", (found,))


def _adapter_failed(report: Report, own_lines: int) -> Report | None:
    """An error report if the adapter itself raises: that is no evidence about the submission."""
    for found in report.findings:
        if found.id == "crashes" and found.line is not None and found.line > own_lines:
            says = f"The adapter failed in its line {found.line - own_lines - 1}: {found.evidence}"
            fix = "Does the adapter name a class or an argument that this file does not have?"
            failed = Finding("cannot-run", "wrong", says, "", fix, None)
            return Report(report.file, report.cls, "error", (failed,))
    return None


def _none_found(file: _File, classes: Sequence[ClassInfo], only: str | None) -> Report:
    filename, names = file.filename, ", ".join(info.name for info in classes) or "none"
    says = f"The file has no class {only!r}; its classes: {names}."
    if only and likely_functions(file.source, only=only):
        says = f"The roles of the arguments of the function {only!r} are not clear. {ADAPTER}"
    elif only is not None and any(info.name == only for info in classes):
        says = f"{only} is a base class: it computes nothing without its subclasses."
    if only is None:
        says = (
            f"The file has no attention class; its classes: {names}. The checker looks for a "
            "subclass of nn.Module whose name says attention or head, or that computes a softmax "
            "and a matrix product."
        )
    return Report(filename, only or "", "error", (Finding("unsure", "wrong", says, "", "", None),))


def check_block(session: Session, block: ClassInfo, file: _File) -> Report:
    """Check a class that does more than attention; unexplained differences are only doubts."""
    report = file.check(session, block)
    ids = {found.id for found in report.findings if found.severity == "wrong"}
    if report.verdict != "wrong" or "unexplained" not in ids:
        return report
    doubts = tuple(
        replace(found, id="unsure", severity="edge") if found.id == "unexplained" else found
        for found in report.findings
    )
    verdict = "unsure" if ids == {"unexplained"} else "wrong"
    return replace(report, verdict=verdict, findings=doubts)


def seen_inside(inner: Report, info: ClassInfo, outer: Report) -> Report | None:
    """The report on a class that could not be run by itself, from that on its enclosing block.

    Args:
        inner: The report on the class.
        info: The class.
        outer: The report on the block.

    Returns:
        The report; None if the block shows nothing about the class.
    """
    own = range(info.line, info.end_line + 1)
    if outer.verdict not in ("correct", "wrong") or all(s.line not in own for s in outer.steps):
        return None
    found = tuple(one for one in outer.findings if one.line is None or one.line in own)
    if outer.verdict == "wrong" and all(one.severity != "wrong" for one in found):
        return None  # the mistake is outside the class
    fails = "called" if inner.verdict == "error" else "judged"
    note = f"{inner.cls} could not be {fails} by itself; it was checked inside {outer.cls}."
    return replace(outer, cls=inner.cls, findings=found, notes=(note, *outer.notes))


def check_functions(file: _File, made: Sequence[Wrapped]) -> list[Report]:
    """Check the attention functions of a file, each in a generated wrapper class."""
    if not made:
        return []
    more = "".join(f"\n\n{one.text}" for one in made)
    reports = []
    with file.session(more) as session:
        classes = session.classes()
        if isinstance(classes, Failure):
            return [could_not_run(file.filename, "", classes, "import")]
        around = {info.name: info for info in classes}
        for one in made:
            lines = "\n".join(file.source.splitlines()[one.line - 1 : one.end_line])
            text = Text(lines, one.line, one.name, file.source)
            whole = file.source + more
            report = check_class(
                session, around[one.cls], whole, file.filename, text=text, seed=file.seed
            )
            reports.append(replace(report, cls=one.name))
    return reports


def inner_text(source: str, classes: Sequence[ClassInfo], adapted: ClassInfo) -> Text:
    """The source of the class that an adapter builds; the adapter's own if it builds none."""
    outer = text_of(source, adapted)
    named = [
        info
        for info in classes
        if outer.has(rf"\b{re.escape(info.name)}\(") or info.name in adapted.bases
    ]
    inner = [info for info in named if info.name != adapted.name and info.line < adapted.line]
    return text_of(source, inner[-1]) if inner else outer
