"""From probes and reproduction to findings: `check_source` and `check_object`.

The order matters: build, run, the same result twice, then which form reproduces the output, then
what shows only in training, in half precision, at other lengths or with loaded weights.
"""

import inspect
import itertools
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from clearhead.checker.catalogue import finding
from clearhead.checker.diagnosis import extras, learning, probes
from clearhead.checker.diagnosis.evidence import form_of
from clearhead.checker.diagnosis.naming import (
    SCALES,
    is_causal,
    name_mistakes,
    question_of_causality,
    scale_set_by,
    unscaled_on_purpose,
)
from clearhead.checker.diagnosis.reading import Unreadable
from clearhead.checker.diagnosis.recorded_pass import judge_default, judge_mask, judge_steps
from clearhead.checker.diagnosis.reference import Reference, Replayed, Simulated
from clearhead.checker.diagnosis.search import Explanation, Search
from clearhead.checker.diagnosis.shown_steps import shown_steps
from clearhead.checker.diagnosis.simulator import Program, Switches, difference
from clearhead.checker.diagnosis.step_checks import Judgement
from clearhead.checker.diagnosis.weight_layouts import Candidate, candidates
from clearhead.checker.harness.alternatives import alternatives
from clearhead.checker.harness.axis_orders import CHANNELS_FIRST
from clearhead.checker.harness.building import (
    could_not_run,
    head_counts,
    mark_ways,
    prepare,
    rotary_ways,
    without_dropout,
)
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.constructor_arguments import with_configs
from clearhead.checker.harness.error_messages import misspelled
from clearhead.checker.harness.forward_arguments import ANGLES, POLARITIES
from clearhead.checker.harness.subject import Session, Subject, call, inputs_for, others, renew
from clearhead.checker.harness.weight_roles import role_of
from clearhead.checker.report import Finding, Form, Report
from clearhead.checker.sandbox.limits import Limits
from clearhead.checker.sandbox.submission import ClassInfo, Failure, InProcess, Isolated
from clearhead.checker.source.class_choice import (
    NO_ATTENTION,
    choose,
    choose_blocks,
    choose_unnamed,
    is_no_attention,
    left_out,
    owners_of,
)
from clearhead.checker.source.text_patterns import Text, hints_of, text_of
from clearhead.checker.source.wrapped_functions import Wrapped, wrapped

LIMITS = Limits()


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
    """Check the attention classes of a file, in a process of its own.

    Args:
        source: The file's text.
        filename: Its name, for the report.
        only: The one class to check.
        adapter: The text of an adapter: a class that builds and calls the submitted class.
        limits: What the file may use.
        siblings: Modules that lie beside it; see `siblings_of`.
        seed: What sizes, weights and inputs are drawn with.
    """
    if siblings:
        note = f"It imports {', '.join(siblings)} from beside it."
        reports = _check_file(source, filename, only, adapter, limits, siblings, seed)
        return [replace(report, notes=(*report.notes, note)) for report in reports]
    return _check_file(source, filename, only, adapter, limits, {}, seed)


def _check_file(
    source: str,
    filename: str,
    only: str | None,
    adapter: str | None,
    limits: Limits,
    siblings: Mapping[str, str],
    seed: int,
) -> list[Report]:
    if adapter is not None:
        source = f"{source}\n\n{adapter}\n"
    with Isolated(source, filename, limits=limits, siblings=siblings) as session:
        classes = session.classes()
        if isinstance(classes, Failure):
            return [could_not_run(filename, only or "", classes, "import")]
        if adapter is not None and only is None and classes:
            only = max(classes, key=lambda info: info.line).name
        chosen = choose(classes, source, only)
        if not chosen and only is None and adapter is None:
            functions = wrapped(source)
            chosen = [] if functions else choose_unnamed(classes, source)
            functions = functions if functions or chosen else wrapped(source, named=False)
            if functions:
                return check_functions(source, filename, limits, functions, siblings, seed)
            if not chosen:
                blocks = choose_blocks(classes, source)
                return [check_inside(session, info, source, filename, seed) for info in blocks] or [
                    _none_found(filename, classes, only)
                ]
        if not chosen:
            return [_none_found(filename, classes, only)]
        if adapter is not None and len(chosen) == 1:
            text = inner_text(source, classes, chosen[0])
            adapted = check_class(
                session, chosen[0], source, filename, given=True, text=text, seed=seed
            )
            return [adapted]
        reports = [check_class(session, info, source, filename, seed=seed) for info in chosen]
        named = {info.name for info in chosen}
        for place, report in enumerate(reports):
            if report.verdict == "error" and only is None:
                for owner in owners_of(classes, source, report.cls)[:2]:
                    if owner.name not in named:
                        inside = check_inside(session, owner, source, filename, seed, report)
                        reports[place] = inside
                        if inside is not report:
                            break
        return left_out(reports, source)


def _none_found(filename: str, classes: Sequence[ClassInfo], only: str | None) -> Report:
    names = ", ".join(info.name for info in classes) or "none"
    missing = f"no class {only!r}" if only else "no attention class"
    says = f"The file has {missing}; its classes: {names}."
    return Report(filename, only or "", "error", (_plain("unsure", says, ""),))


def check_inside(
    session: Session,
    block: ClassInfo,
    source: str,
    filename: str,
    seed: int,
    inner: Report | None = None,
) -> Report:
    """Check a class that has more than attention: of that, only mistakes with a name count.

    Args:
        session: Who answers for it.
        block: The class.
        source: The whole file.
        filename: The file's name, for the report.
        seed: What sizes, weights and inputs are drawn with.
        inner: The report on a class inside it that could not be run by itself: it stays where the
            block shows nothing.
    """
    report = check_class(session, block, source, filename, seed=seed)
    ids = {found.id for found in report.findings if found.severity == "wrong"}
    if report.verdict == "wrong" and "unexplained" in ids:
        doubts = tuple(
            replace(found, id="unsure", severity="edge") if found.id == "unexplained" else found
            for found in report.findings
        )
        verdict = "unsure" if ids == {"unexplained"} else "wrong"
        report = replace(report, verdict=verdict, findings=doubts)
    if inner is None:
        return report
    if report.verdict not in ("correct", "wrong"):
        return inner
    note = f"{inner.cls} could not be called by itself; it was checked inside {block.name}."
    return replace(report, cls=inner.cls, notes=(note, *report.notes))


def check_functions(
    source: str,
    filename: str,
    limits: Limits,
    made: Sequence[Wrapped],
    siblings: Mapping[str, str],
    seed: int,
) -> list[Report]:
    """Check the attention functions of a file, each inside a class that is written around it."""
    whole = "\n\n".join([source, *(one.text for one in made)])
    reports = []
    with Isolated(whole, filename, limits=limits, siblings=siblings) as session:
        classes = session.classes()
        if isinstance(classes, Failure):
            return [could_not_run(filename, "", classes, "import")]
        around = {info.name: info for info in classes}
        for one in made:
            lines = "\n".join(source.splitlines()[one.line - 1 : one.end_line])
            text = Text(lines, one.line, one.name, source)
            report = check_class(session, around[one.cls], whole, filename, text=text, seed=seed)
            reports.append(replace(report, cls=one.name))
    return reports


def inner_text(source: str, classes: Sequence[ClassInfo], adapted: ClassInfo) -> Text:
    """The source of the class that an adapter builds; the adapter's own where it builds none."""
    outer = text_of(source, adapted)
    named = [info for info in classes if outer.has(rf"\b{re.escape(info.name)}\(")]
    inner = [info for info in named if info.name != adapted.name and info.line < adapted.line]
    return text_of(source, inner[-1]) if inner else outer


def check_object(subject: type | nn.Module) -> Report:
    """Check a class, or a module that is built, in this process."""
    cls = subject if isinstance(subject, type) else type(subject)
    session = InProcess(subject)
    classes = session.classes()
    assert not isinstance(classes, Failure)
    try:
        source = inspect.getsource(sys.modules[cls.__module__])
    except (OSError, TypeError, KeyError):
        source = ""
    try:
        filename = inspect.getsourcefile(cls) or ""
    except (OSError, TypeError):  # typed at Python's prompt: there is no file
        filename = ""
    given = isinstance(subject, nn.Module)
    return check_class(session, classes[0], source, filename or cls.__module__, given=given)


def check_class(
    session: Session,
    info: ClassInfo,
    source: str,
    filename: str,
    *,
    given: bool = False,
    text: Text | None = None,
    seed: int = 0,
) -> Report:
    """Check one class.

    Args:
        session: Who answers for it.
        info: The class.
        source: The whole file.
        filename: The file's name, for the report.
        given: Whether it is unknown what it is built with; see `Case`.
        text: The source to look at, if it is not that of `info`.
        seed: What sizes, weights and inputs are drawn with.
    """
    text = text or text_of(source, info)
    info = with_configs(info, text.code, source)
    case = Case(session, info, text, filename, given=given, seed=seed)
    wrong_name = misspelled(info)
    if wrong_name is not None:
        id, name = wrong_name
        name = name.removeprefix(f"_{info.name}")  # Python mangles __init
        line = case.text.line(rf"def {re.escape(name)}\b")
        case.add(id, f"The class has a method {name!r}.", line)
        return case.report()
    try:
        subject = prepare(case)
        if isinstance(subject, Report):
            return subject
        report = _examine(case, subject)
        return _otherwise(case, subject, report) or report
    except (ArithmeticError, AssertionError, LookupError, RuntimeError, ValueError) as error:
        # Answers may be forged, or of a form that no one has thought of: that is no verdict.
        evidence = f"The checker itself failed on it: {type(error).__name__}: {error}"[:300]
        case.findings.append(finding("unsure", evidence, None, "edge"))
        wrong = any(found.severity == "wrong" for found in case.findings)
        return case.report("wrong" if wrong else "unsure")


# What another value of a flag may explain: masked=False, scale=False.
_PATIENCE = 3.0  # seconds
_BY_A_FLAG = {"no-causal-mask", "missing-scale", "wrong-scale", "unexplained"}


def _otherwise(case: Case, subject: Subject, report: Report) -> Report | None:
    """The report for another value of a flag, or other sizes, if the class is right with them."""
    wrong = {found.id for found in report.findings if found.severity == "wrong"}
    if report.verdict != "wrong" or case.given or not wrong <= _BY_A_FLAG:
        return None
    began = time.monotonic()
    for trial in alternatives(case, subject):
        if time.monotonic() - began > _PATIENCE:
            break
        if trial.sizes.d_in != subject.sizes.d_in and wrong != {"unexplained"}:
            continue
        again = replace(case, findings=[], notes=list(case.session.notes), steps=())
        other = _examine(again, trial, seconds=0.3)
        if other.verdict == "correct":
            note = f"It is right when it is {trial.how}."
            return replace(other, notes=(*other.notes, note))
    renew(case.session, subject)
    return None


def _plain(id: str, says: str, evidence: str, fix: str = "") -> Finding:
    return Finding(id, "wrong", says, evidence, fix, None)


def programs_for(
    case: Case, subject: Subject, inputs: probes.Inputs
) -> list[tuple[Candidate, Program]]:
    """Every reading of the weights, ready to run on these inputs."""
    q, k, v = (t.to(torch.float64) for t in inputs)
    found = candidates(
        subject.weights,
        subject.built.modules,
        d_in=subject.d_in,
        heads=head_counts(subject),
        head_dim=subject.sizes.head_dim,
        p=subject.sizes.p,
    )
    fitting = [one for one in found if one.weights.q.shape[0] == subject.d_in]
    same = (q, q, q) if k is q else (q, k, v)
    return [(one, Program(one.weights, same)) for one in fitting]


def allowed_masks(case: Case, subject: Subject) -> list[str]:
    """The masks that a right form of this class may have."""
    causal = is_causal(case, subject) == "yes" or subject.polarity
    masks = ["causal"] if causal else ["none", "causal"]
    if any("window" in p.name for p in case.info.init):
        masks += [f"window{w}" for w in range(1, subject.sizes.tokens)]
    return masks


def _examine(case: Case, subject: Subject, seconds: float = 0.0) -> Report:
    """Ask everything about one way to build and call a class.

    Args:
        case: The class.
        subject: How it is called.
        seconds: How long the search may take, if not as long as usual.
    """
    session = case.session
    case.how = subject.how
    case.asked_from = len(session.unanswered)
    inputs = inputs_for(subject, subject.sizes.tokens)
    out = call(session, subject, inputs)
    began = time.monotonic()
    again = call(session, subject, inputs, seed=1)
    session.set_pace(time.monotonic() - began)
    if isinstance(out, Failure) or isinstance(again, Failure):
        failure = out if isinstance(out, Failure) else again
        assert isinstance(failure, Failure)
        return could_not_run(case.filename, case.info.name, failure, "forward")
    gap = (out - again).abs().nan_to_num(0.0).max()
    if out.shape == again.shape and float(gap) > 1e-9:
        calm = _calmed(case, subject, inputs, float(gap))
        if isinstance(calm, Report):
            return calm
        subject, out = calm
    if is_no_attention(case, subject, inputs, out):
        case.findings.append(finding("unsure", NO_ATTENTION, None, "edge"))
        return replace(case.report("unsure"), is_attention=False)
    search = _search(case, subject, inputs, out)
    if subject.polarity or subject.rotary or subject.marks:
        subject, out, search = _right_way(case, subject, inputs, out, search)
    judge_default(case, subject)
    steps, replayed = _steps(case, subject)
    if steps is not None and not steps.doubts:
        search.seconds = 1.0  # several mistakes at once are seen better in the steps
    search.seconds = seconds or search.seconds
    best = _found(search)
    if steps is not None and steps.wrong and (best is None or best.ids):
        best = _add_steps(case, subject, inputs, out, steps, best)
        if best is None:
            return _by_steps(case, subject, inputs, out, steps)
    if steps is not None and replayed is not None and best is None:
        return _right_by_steps(case, subject, inputs, out, steps, replayed)
    case.form = form_of(subject, best, out)
    if best is None:
        return unexplained(case, subject, inputs, out, search)
    if subject.marks and any(re.match("mask|no-causal|sdpa|padding", id) for id in best.ids):
        unknown = "An argument must be given that may be a mask, and its meaning is not known."
        case.findings.append(finding("unsure", unknown, None, "edge"))
        return case.report("unsure")
    name_mistakes(case, subject, inputs, out, best, search)
    if subject.takes_mask and not subject.polarity and not case.findings:
        judge_mask(case, subject)
    question_of_causality(case, subject, inputs, out, best)
    found: Reference = Simulated(best, subject)
    if replayed is not None and not best.ids:
        found = replace(replayed, otherwise=found)
    extras.examine(case, subject, inputs, out, found)
    case.tested = (
        "tested against a reference, at other lengths, with gradients, in training and evaluation"
    )
    return case.report()


def _steps(case: Case, subject: Subject) -> tuple[Judgement | None, Replayed | None]:
    """What the recorded pass shows, step by step, and a reference made from it if it is right."""
    try:
        reading, steps, runs = judge_steps(case, subject)
        case.steps = shown_steps(reading, steps)
    except Unreadable:
        return None, None
    if not steps.right:
        return steps, None
    try:
        return steps, Replayed.of(case, subject, reading, steps, runs)
    except Unreadable as reason:
        steps.doubts.append(str(reason))
        return steps, None


def _found(search: Search) -> Explanation | None:
    """What the search finds; nothing where its forms do not fit the class's own shapes."""
    try:
        return search.best()
    except RuntimeError:  # a rotation of a part of each head, for example
        return None


# The search knows only that nothing is hidden; the steps know why.
_NOTHING_HIDDEN = {"mask-result-dropped", "mask-fill-not-inf", "mask-added-not-filled"}


def _add_steps(
    case: Case,
    subject: Subject,
    inputs: probes.Inputs,
    out: Tensor,
    steps: Judgement,
    best: Explanation | None,
) -> Explanation | None:
    """Note what the steps have shown; what the search has found beside that, if it agrees."""
    ids = {found.id for found in steps.findings}
    leak = probes.future_leak(case.session, subject, inputs, out)
    set_by = scale_set_by(case.text, subject, best) if best is not None and ids & SCALES else ""
    for found in steps.findings:
        evidence, severity = found.evidence, found.severity
        if re.match("mask|no-causal|sdpa", found.id) and leak.size > 1e-9:
            evidence += (
                f" Changing token {leak.changed} changed output {leak.moved} by {leak.size:.2g}."
            )
        if found.id == "missing-scale" and unscaled_on_purpose(case):
            severity = "edge"
        if found.id == "missing-scale" and subject.axes in CHANNELS_FIRST and steps.heads == 1:
            evidence += " SAGAN and non-local blocks have none, on purpose: is it one of them?"
            severity = "edge"
        if found.id in SCALES and set_by == "a constant":
            evidence += " A constant sets it so: on purpose, as in T5? Then it is right."
            severity = "edge"
        case.add(found.id, evidence, found.line, severity)
    if best is None:
        return None
    same = {"no-causal-mask"} if ids & _NOTHING_HIDDEN else set()
    same |= {"mask-inverted"} if "sdpa-mask-polarity" in ids else set()
    left = ids - _NOTHING_HIDDEN - {"sdpa-mask-polarity"} | same
    if not left <= set(best.ids):
        return None
    return replace(best, ids=tuple(id for id in best.ids if id not in same))


def _by_steps(
    case: Case, subject: Subject, inputs: probes.Inputs, out: Tensor, steps: Judgement
) -> Report:
    """The mistakes that the recorded pass shows, each at its own line."""
    case.notes += steps.notes
    ids = {found.id for found in steps.findings}
    case.form = _form(subject, steps)
    learning.detached(case, subject, inputs, out)
    extras.training(case, subject, inputs, out, over_keys=not ids & _OTHER_AXES)
    return case.report()


_OTHER_AXES = {"softmax-over-queries", "softmax-over-heads", "softmax-over-batch"}


def _right_by_steps(
    case: Case,
    subject: Subject,
    inputs: probes.Inputs,
    out: Tensor,
    steps: Judgement,
    reference: Reference,
) -> Report:
    """Every step of the recorded pass is right, and the class computes what was recorded."""
    idle = probes.idle_rows(case.session, subject, inputs, out)
    for name, rows in idle.items():
        size = subject.built.parameters[name][0]
        evidence = f"{rows} of the {size} numbers that {name} gives are never used."
        case.add("unexplained", evidence)
    for found in steps.findings:
        case.add(found.id, found.evidence, found.line, found.severity)
    case.doubt |= steps.question
    case.notes += steps.notes
    case.form = _form(subject, steps)
    if subject.takes_mask and not subject.polarity:
        judge_mask(case, subject)
    extras.examine(case, subject, inputs, out, reference)
    case.tested = (
        "tested step by step, at other lengths, with gradients, in training and evaluation"
    )
    return case.report()


def _form(subject: Subject, steps: Judgement) -> Form:
    windowed = steps.mask.startswith("window")
    causal = "window" if windowed else {"causal": "yes", "none": "no"}.get(steps.mask, "")
    return Form(
        heads=steps.heads or None,
        head_dim=steps.head_dim,
        causal=causal,
        window=int(steps.mask.removeprefix("window")) if windowed else None,
        takes_mask=bool(subject.takes_mask),
    )


def _turns(case: Case, subject: Subject) -> tuple[str, ...]:
    """The rotary positions that a right form of this class may have."""
    if not re.search(r"(?i)rope|rotary|\bcos\b|freqs|polar", case.text.file):
        return ("none",)
    required = {p.name for p in case.info.forward if not p.has_default}
    must = any(n in required and n.lower() in ANGLES for n, _ in subject.feed)
    return ("half", "pairs") if must else ("none", "half", "pairs")


def _search(case: Case, subject: Subject, inputs: probes.Inputs, out: Tensor) -> Search:
    return Search(
        out,
        programs_for(case, subject, inputs),
        allowed_masks(case, subject),
        unscaled=not subject.built.parameters and "scaled" not in case.info.name.lower(),
        turns=_turns(case, subject),
        hints=hints_of(case.text),
    )


def _right_way(
    case: Case, subject: Subject, inputs: probes.Inputs, out: Tensor, search: Search
) -> tuple[Subject, Tensor, Search]:
    """A mask or angles must be given: the way that makes the output right, or nearly."""
    tried: list[tuple[Subject, Tensor, Search]] = []
    polarities = POLARITIES if subject.polarity else ("",)
    ways = itertools.product(polarities, rotary_ways(subject), mark_ways(subject))
    for polarity, rotary, marks in ways:
        trial = replace(subject, polarity=polarity, rotary=rotary, marks=marks)
        got = call(case.session, trial, inputs)
        if isinstance(got, Failure) or any(torch.equal(got, other) for _, other, _ in tried):
            continue
        again = _search(case, trial, inputs, got)
        if again.is_right():
            return trial, got, again
        tried.append((trial, got, again))
    for trial, got, again in tried:
        if next(again.one(), None) is not None:
            return trial, got, again
    return subject, out, search


def _calmed(
    case: Case, subject: Subject, inputs: probes.Inputs, gap: float
) -> tuple[Subject, Tensor] | Report:
    """It is random in evaluation: say so, then go on with dropout 0."""
    evidence = f"In evaluation, two runs on the same input differ by {gap:.2g}."
    calm = without_dropout(case, subject)
    if calm is not None:
        out, again = (call(case.session, calm, inputs, seed=seed) for seed in (0, 1))
        if isinstance(out, Tensor) and isinstance(again, Tensor) and difference(out, again) == 0:
            case.add("dropout-in-eval", evidence)
            return calm, out
    id = "dropout-in-eval" if case.text.has(r"[Dd]ropout") else "random-in-eval"
    case.add(id, evidence)
    case.notes.append("Nothing else was checked: fix this first, then check again.")
    return case.report()


def unexplained(
    case: Case, subject: Subject, inputs: probes.Inputs, out: Tensor, search: Search
) -> Report:
    """Nothing reproduces it: a property that every attention has may still fail."""
    session, text = case.session, case.text
    failed: list[str] = []
    unknown = _unknown_kind(subject, out)
    if unknown:
        case.findings.append(finding("unsure", unknown, None, "edge"))
        return case.report("unsure")
    where = _first_step(case, subject)
    positions = text.has(r"rope|rotary|[Pp]osition|alibi|rel_pos|relative|\bcos\b|\bfreqs")
    counted = text.has(r"arange|\btable|bias_table|enumerate")  # what stands where may matter
    positions |= any("Conv" in kind for kind in subject.built.modules.values() if kind != "Conv1D")
    if not out.isfinite().all():
        rows = int((~out.isfinite()).any(-1).sum())
        failed.append(f"{rows} of {out.shape[0] * out.shape[1]} output rows are NaN or infinite")
    if out.shape[:2] != inputs[0].shape[:2]:
        shape = tuple(out.shape)
        failed.append(f"the output's shape is {shape} for inputs {tuple(inputs[0].shape)}")
    elif not probes.sees_others(session, subject, inputs, out):
        failed.append("changing the first token changes no later output: no token sees another")
    leak = probes.batch_leak(session, subject, inputs, out)
    if leak > 1e-7:
        failed.append(f"changing one sentence changed the output of another by {leak:.2g}")
    causal = is_causal(case, subject) == "yes"
    future = probes.future_leak(session, subject, inputs, out)
    if causal and future.size > 1e-7:
        failed.append(
            f"changing token {future.changed} changed output {future.moved} by {future.size:.2g}, "
            "though this attention is meant to be causal"
        )
    gap, _ = probes.same_tokens(session, subject, inputs)
    if not positions and gap > 1e-6 and not others(subject):
        failed.append(
            f"with equal tokens the output changes with their number (by {gap:.2g}), so the "
            "weights of a row do not sum to one"
        )
    if (
        not (causal or positions or counted or subject.polarity)
        and future.size > 1e-7
        and not text.has("mask")
    ):
        moved = probes.permutation_gap(session, subject, inputs, out)
        if moved > 1e-6:
            failed.append(
                f"permuted tokens do not give permuted outputs (they part by {moved:.2g})"
            )
    got = probes.gradients(session, subject, inputs, out)
    if not isinstance(got, Failure) and out.isfinite().all():
        idle = [n for n, size in got[0].items() if size < 1e-12 and role_of(n) and "bias" not in n]
        if idle:
            failed.append(f"no gradient reaches {', '.join(idle[:4])}")
        for name, rows in probes.idle_rows(session, subject, inputs, out).items():
            size = subject.built.parameters[name][0]
            failed.append(f"{rows} of the {size} numbers that {name} gives are never used")
        learning.detached(case, subject, inputs, out)
        learning.out_of_reach(case, subject, inputs, out)
    error, _ = search.closest()
    near = f" The nearest right form differs by {error:.2g}." if error < 1e6 else ""
    if failed and subject.marks:  # what the marks mean is not known
        near += f" This was seen: {'; '.join(failed)}."
        failed = []
    if failed:
        case.findings.insert(
            0, finding("unexplained", f"{'; '.join(failed)}.{where}{near}", None, "wrong")
        )
        return case.report("wrong")
    case.findings.append(
        finding("unsure", f"No known form gives this output.{where}{near}", None, "edge")
    )
    wrong = any(f.severity == "wrong" for f in case.findings)
    return case.report("wrong" if wrong else "unsure")


def _unknown_kind(subject: Subject, out: Tensor) -> str:
    """Why this may be attention of a kind of which no property is known; "" if it is not."""
    rows = out.shape[1]
    bare = [s for n, s in subject.built.parameters.items() if not n.endswith(("weight", "bias"))]
    if rows != subject.sizes.tokens and any(rows in shape[:-1] for shape in bare):
        return "The rows of its output are learned queries, and not the tokens."
    roles = {role_of(name) for name in subject.built.parameters}
    if subject.axes in CHANNELS_FIRST and not roles & {"q", "k", "qkv", "kv"}:
        return "It takes channels first and has no queries and keys: a gate, perhaps."
    return ""


def _first_step(case: Case, subject: Subject) -> str:
    """Where the numbers first part from the reference, told by a run with one token."""
    inputs = inputs_for(subject, 1)
    out = call(case.session, subject, inputs)
    if isinstance(out, Failure):
        return ""
    for _, program in programs_for(case, subject, inputs):
        for switches in (Switches(), Switches(split="strided", merge="interleaved")):
            got = program.run(switches)
            if got is not None and got.shape == out.shape and torch.allclose(got, out, atol=1e-5):
                return (
                    " With one token the output is right, so the values and the output "
                    "projection are; the scores, the mask or the softmax are not."
                )
    return " It is different with one token already: in the values, the merge or the projection."
