"""Judge one class: build, call and record it, read it step by step, then vary how it is used.

correct  every step is right, and so is everything that the plain run could not show
wrong    a step is wrong, or a property that every attention has does not hold
unsure   the steps could not be judged, and no tested property fails
"""

import inspect
import itertools
import re
import sys
import time
from dataclasses import replace

import torch
from torch import Tensor, nn

from clearhead.checker.catalogue import finding
from clearhead.checker.diagnosis import extras, learning, lengths, probes
from clearhead.checker.diagnosis.intent import SCALES, has_width_of_its_own
from clearhead.checker.diagnosis.judgement import Judgement, StepFinding
from clearhead.checker.diagnosis.plain_form import PlainForm, plain_form
from clearhead.checker.diagnosis.pooling import judge_pooling
from clearhead.checker.diagnosis.properties import judge_properties
from clearhead.checker.diagnosis.randomness import run_twice
from clearhead.checker.diagnosis.reading import Unreadable
from clearhead.checker.diagnosis.recorded_pass import (
    INVERTED,
    Examined,
    judge_default,
    judge_mask,
    judge_steps,
    steps_of,
)
from clearhead.checker.diagnosis.reference import Reference
from clearhead.checker.diagnosis.shown_steps import shown_steps
from clearhead.checker.harness.alternatives import alternatives, other_flags, widened
from clearhead.checker.harness.axis_orders import CHANNELS_FIRST, STATES
from clearhead.checker.harness.building import mark_ways, prepare, rotary_ways
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.constructor_arguments import (
    likely_meaning,
    meaning_for,
    with_configs,
)
from clearhead.checker.harness.error_messages import misspelled, own_fault
from clearhead.checker.harness.forward_arguments import POLARITIES, feeds
from clearhead.checker.harness.subject import Inputs, Session, Subject, call, inputs_for, renew
from clearhead.checker.harness.weight_roles import role_of
from clearhead.checker.report import Form, Report
from clearhead.checker.sandbox.submission import ClassInfo, Failure, InProcess
from clearhead.checker.source.class_choice import (
    NO_ATTENTION,
    OVER_CHANNELS,
    is_no_attention,
    is_over_channels,
)
from clearhead.checker.source.class_text import Text, dropped_mask, text_of, ties_weights


def check_object(subject: type | nn.Module) -> Report:
    """Check a class, or a module instance, in this process."""
    cls = subject if isinstance(subject, type) else type(subject)
    if not isinstance(subject, type | nn.Module):
        raise TypeError(
            f"subject: expected a class or a module, got {subject!r}.\n"
            "  For a file, use the command: clearhead check FILE."
        )
    session = InProcess(subject)
    classes = session.classes()
    assert not isinstance(classes, Failure)
    try:
        source = inspect.getsource(sys.modules[cls.__module__])
    except (OSError, TypeError, KeyError):
        source = ""
    try:
        filename = inspect.getsourcefile(cls) or ""
    except (OSError, TypeError):  # defined at the Python prompt: there is no file
        filename = ""
    given = isinstance(subject, nn.Module)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are small: threads would wait for each other
    try:
        return check_class(session, classes[0], source, filename or cls.__module__, given=given)
    finally:
        torch.set_num_threads(threads)


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
        session: The process that runs the class.
        info: The class.
        source: The source of the whole file.
        filename: The file's name, for the report.
        given: Whether its constructor arguments are unknown; see `Case`.
        text: The source to inspect, if it is not that of `info`.
        seed: The seed for sizes, weights and inputs.
    """
    text = text or text_of(source, info)
    info = with_configs(info, text.code, source)
    case = Case(session, info, text, filename, given=given, seed=seed)
    wrong_name = misspelled(info)
    if wrong_name is not None:
        id, name = wrong_name
        name = name.removeprefix(f"_{info.name}")  # Python mangles __init
        line = case.text.line_with(f"def-{name}")
        case.add(id, f"The class has a method named {name!r}.", line)
        return case.report()
    try:
        subject = prepare(case)
        if isinstance(subject, Report):
            return _with_dropped_mask(case, subject)
        report = _examine(case, subject)
        return _otherwise(case, subject, report) or _with_dropped_mask(case, report)
    except RecursionError:
        raise  # the source is nested too deeply, which is reported for the whole file
    except (ArithmeticError, AssertionError, LookupError, RuntimeError, ValueError) as error:
        # Answers may be forged or of an unforeseen form: neither justifies a verdict.
        return case.unsure(f"The checker itself failed: {type(error).__name__}: {error}"[:300])


def _with_dropped_mask(case: Case, report: Report) -> Report:
    """The report; wrong if it has no verdict and the result of a masking statement is unused."""
    line = None if report.verdict in ("correct", "wrong") else dropped_mask(case.text)
    if line is None:
        return report
    evidence = "The statement makes a masked tensor and does not keep it, so it has no effect."
    found = finding("mask-result-dropped", evidence, line)
    return replace(report, verdict="wrong", findings=(found, *report.findings))


def _examine(case: Case, subject: Subject) -> Report:
    """Run all checks for one way of building and calling a class."""
    case.how = subject.how
    case.asked_from = len(case.session.unanswered)
    inputs = inputs_for(subject, subject.sizes.tokens)
    ran = run_twice(case, subject, inputs)
    if isinstance(ran, Report):
        return ran
    subject, out = ran
    if subject.axes == "pooled":
        return judge_pooling(case, subject, inputs, out)
    if is_no_attention(case, subject, inputs, out):
        return replace(case.unsure(NO_ATTENTION), is_attention=False)
    if is_over_channels(case.text):
        return case.unsure(OVER_CHANNELS)
    subject, out, read = _read(case, subject, inputs, out)
    if not isinstance(read, str) and read.steps.head_dim == 1 < subject.sizes.head_dim:
        wide = widened(case, subject)  # with a head_dim of 1, the scale cannot be determined
        if wide is not None and wide.sizes != subject.sizes:
            return _examine(case, wide)
        renew(case.session, subject)
    judge_default(case, subject)
    if isinstance(read, str):
        return _unread(case, subject, inputs, out, read)
    case.steps = shown_steps(read.reading, read.steps)
    case.form = _form(subject, read.steps)
    try:
        reference = Reference.of(case, subject, read)
    except Unreadable as reason:
        if read.steps.right:
            read.steps.doubts.append(str(reason))
        reference = None
    if read.steps.question and reference is None:
        return _wrong(case, subject, inputs, out, read.steps)
    if read.steps.doubts:
        wrong = any(found.is_wrong for found in read.steps.findings)
        if wrong and read.steps.lost and len(read.steps.doubts) == 1:
            return _wrong(case, subject, inputs, out, read.steps)
        why, attends = "; ".join(read.steps.doubts), read.steps.lost or not read.steps.findings
        return _unread(case, subject, inputs, out, why, attends=attends)
    of_scale = {found.id for found in read.steps.findings if found.is_wrong} <= SCALES
    if reference is None or not of_scale:
        return _wrong(case, subject, inputs, out, read.steps)
    return _right(case, subject, inputs, out, read.steps, reference)


def _unread(
    case: Case,
    subject: Subject,
    inputs: Inputs,
    out: Tensor,
    reason: str,
    *,
    attends: bool = False,
) -> Report:
    """Judge a class with unreadable steps by the usual form or, failing that, by its properties."""
    plain = plain_form(case, subject, inputs, out)
    if plain is None:
        return judge_properties(case, subject, inputs, out, reason, attends=attends)
    case.form = _form(subject, plain.steps)
    return _right(case, subject, inputs, out, plain.steps, plain)


def _read(
    case: Case, subject: Subject, inputs: Inputs, out: Tensor
) -> tuple[Subject, Tensor, Examined | str]:
    """Judge the recorded pass; if it cannot be read, give the reason instead.

    If a mask or angles are required and their convention is unknown, every convention is tried,
    and the one with the fewest problems counts.
    """
    polarities = POLARITIES if subject.polarity else ("",)
    shapes = dict.fromkeys((subject.mask_shape, "bnn") if subject.polarity else ("nn",))
    angles, marked = rotary_ways(subject), mark_ways(subject)
    ways = list(itertools.product(shapes, polarities, angles, marked))
    tried: list[tuple[Subject, Tensor, Examined | str]] = []
    for shape, polarity, rotary, marks in ways:
        trial = replace(subject, mask_shape=shape, polarity=polarity, rotary=rotary, marks=marks)
        got = call(case.session, trial, inputs) if len(ways) > 1 else out
        if isinstance(got, Failure) or any(torch.equal(got, other) for _, other, _ in tried):
            continue
        try:
            read: Examined | str = judge_steps(case, trial)
        except Unreadable as reason:
            read = str(reason)
        tried.append((trial, got, read))
        if isinstance(read, Examined) and read.steps.right:
            break
    # A mask with too many axes adds an axis to the scores.
    ranks = [(*_trouble(read), trial.mask_shape == "11nn") for trial, _, read in tried]
    if not tried:
        return subject, out, "it cannot be run"
    return tried[ranks.index(min(ranks))]


def _trouble(read: Examined | str) -> tuple[int, bool, int]:
    """How far a pass is from correct, as a sort key; an inverted mask is probably our doing."""
    if isinstance(read, str):
        return 3, False, 0
    steps = read.steps
    inverted = any(found.id in INVERTED for found in steps.findings)
    count = len(steps.findings) + len(steps.doubts)
    return 0 if steps.right else 1 if steps.wrong else 2, inverted, count


# The weights sum to one along an axis other than the keys.
_OTHER_AXES = {"softmax-over-queries", "softmax-over-heads", "softmax-over-batch"}


def _wrong(case: Case, subject: Subject, inputs: Inputs, out: Tensor, steps: Judgement) -> Report:
    """Report the mistakes in the recorded pass, each at its own line."""
    case.doubt |= steps.question
    case.notes += steps.notes
    ids = {found.id for found in steps.findings}
    leak = probes.future_leak(case.session, subject, inputs, out)
    for found in _on_purpose(case, subject, steps):
        evidence = found.evidence
        if re.match("mask(?!-hides)|no-causal|sdpa|softmax", found.id) and leak.size > 1e-9:
            moved = f"Changing token {leak.changed} changed output {leak.moved}"
            evidence += f" {moved} by {leak.size:.2g}."
        case.add(found.id, evidence, found.line, found.severity)
    _heads(case, subject, steps)
    if subject.takes_mask and not subject.polarity:
        judge_mask(case, subject, ids)
    learning.detached(case, subject, inputs, out)
    extras.training(case, subject, inputs, out, over_keys=not ids & _OTHER_AXES)
    return case.report()


def _right(
    case: Case,
    subject: Subject,
    inputs: Inputs,
    out: Tensor,
    steps: Judgement,
    reference: Reference | PlainForm,
) -> Report:
    """Check the other uses of a class whose recorded steps are all right, and report."""
    for found in _on_purpose(case, subject, steps):
        case.add(found.id, found.evidence, found.line, found.severity)
    case.doubt |= steps.question
    case.notes += steps.notes
    _heads(case, subject, steps)
    if subject.takes_mask and not subject.polarity:
        judge_mask(case, subject)
    if steps.mask.startswith("window"):
        lengths.window_asked(case, subject, reference, int(steps.mask.removeprefix("window")))
    idle = probes.idle_rows(case.session, subject, inputs, out)
    masks = extras.examine(case, subject, inputs, out, reference)
    if not case.wrong:
        for name, rows in idle.items():
            size = subject.built.parameters[name][0]
            evidence = f"{rows} of the {size} outputs of {name} are never used."
            case.add("unexplained", evidence)
    _with_keys_from_elsewhere(case, subject)
    _with_other_flags(case, subject)
    learning.own_backward(case, subject, inputs, out)
    how = "step by step" if isinstance(reference, Reference) else "against the formula"
    if masks:
        how += f", with the argument{'s' * (len(masks) > 1)} {' and '.join(sorted(masks))}"
    case.tested = (
        f"tested {how} and at other lengths; numpy has no gradients and no training mode"
        if subject.built.arrays or case.numpy
        else f"tested {how}, at other lengths, with gradients, in training and in evaluation"
    )
    return case.report()


def _with_keys_from_elsewhere(case: Case, subject: Subject) -> None:
    """Check the steps again with keys and values from another input, if the class allows it."""
    trial = replace(subject, feed=feeds(case.info, optional=True))
    given = {name for name, role in trial.feed if role in ("k", "v", "kv")}
    if subject.separate or case.given or not given or case.wrong:
        return
    q, k, v = inputs_for(trial, trial.sizes.tokens)
    out, other = (call(case.session, trial, (q, *kv)) for kv in ((k, v), (k.flip(-1), v.flip(-1))))
    names = " and ".join(sorted(given))
    if isinstance(out, Failure):
        missing = case.session.missing
        own = own_fault(out, case.text.file, case.info, missing) or _tested_as_flag(out)
        if own:
            case.add("crashes", f"With {names} given: {own}", out.line)
        return
    if isinstance(other, Failure) or torch.equal(out, other):
        return  # perhaps it is meant for another class with the same base
    steps = steps_of(case, trial, "no")
    for found in steps.findings if steps is not None and steps.wrong else ():
        if found.is_wrong and found.id not in SCALES:
            evidence = f"With {names} given: {found.evidence}"
            case.add(found.id, evidence, found.line)


def _tested_as_flag(failure: Failure) -> str:
    """Describe the error if a tensor ends up where a bool is expected; "" for other errors."""
    ambiguous = re.match("Boolean value of Tensor with more than one value", failure.message)
    return f"{failure.type}: {failure.message}. It arrives as a flag." if ambiguous else ""


def _with_other_flags(case: Case, subject: Subject) -> None:
    """Check the steps again with the other value of each flag, which may run other code."""
    if case.given or case.wrong:
        return
    began, tried = time.monotonic(), False
    for trial in other_flags(case, subject):
        tried = True
        steps = steps_of(case, trial)
        same = _SAME_FUNCTION.search(trial.switched)
        meant, severity = (set(), "") if same else (_BY_A_FLAG | SCALES, "edge")
        for found in steps.findings if steps is not None and steps.wrong else ():
            if found.is_wrong and found.id not in meant:
                evidence = f"When it is {trial.how}: {found.evidence}"
                case.add(found.id, evidence, found.line, severity)
        if time.monotonic() - began > _PATIENCE:
            break
    if tried:
        renew(case.session, subject)


# The file loads weights that were trained elsewhere.
_LOADS_OTHERS = (
    r"(?is)from_pretrained|checkpoint.*\b(HF|hugging ?face|released|llama|mistral|qwen|gemma)|"
    r"\b(HF|hugging ?face|released|llama|mistral|qwen|gemma)\b.*checkpoint"
)


_OF_SETS = {"dim_q", "dim_k", "dim_v"}  # the constructor of a MAB
_OF_TIED = ("query-from-key-weights", "key-from-query-weights")


def _on_purpose(case: Case, subject: Subject, steps: Judgement) -> list[StepFinding]:
    """The findings; one that may be intended, such as a missing scale, is only an edge case."""
    found = []
    keys = {"k", "kv", "qkv"} & set(map(role_of, subject.built.parameters))
    told = [(n, v) for n, v in subject.built.plain.items() if type(v) is float]
    for one in steps.findings:
        question = ""
        if one.id == "missing-scale" and subject.axes in STATES:
            question = "It is right in Luong's attention, which has no scale."
        elif one.id == "missing-scale" and subject.axes in CHANNELS_FIRST and steps.heads == 1:
            question = "It is right in SAGAN and in non-local blocks, which have no scale."
        elif one.id == "missing-scale" and any("scal" in n and v == 1 for n, v in told):
            question = "An attribute sets this scale. If that is intended, as in T5, it is right."
        elif one.id == "missing-scale" and not keys and "scaled" not in subject.info.name.lower():
            question = (
                "It is right if the caller scales the queries, or if this is Luong's attention, "
                "which has no scale."
            )
        elif (
            one.id == "wrong-scale"
            and steps.products > 1
            and (name := _width_attribute(subject, steps.scale))
        ):
            question = f"It is right for heads of self.{name}, if the keys are not expanded."
        elif one.id == "wrong-scale" and steps.scale > 0 and has_width_of_its_own(case):
            width = round(steps.scale**-2, 6)  # the head width for which this scale is right
            if width.is_integer() and width not in (subject.d_in, subject.sizes.d_out):
                question = f"It is right for heads of size {width:g}: the file fixes a width."
        elif one.id == "kv-heads-in-other-order" and re.search(_LOADS_OTHERS, case.text.file):
            evidence = f"{one.evidence} The file speaks of checkpoints made with the usual order."
            one = replace(one, evidence=evidence, severity="wrong")
        elif one.id == "scale-by-d-out" and {p.name.lower() for p in case.info.init} >= _OF_SETS:
            question = "Set Transformer's own code scales so. If that is intended, it is right."
        elif one.id in _OF_TIED and ties_weights(case.text):
            question = "The source ties them. If that is intended, it is right."
        elif one.id == "rotary-on-values" and case.text.has(r"map\(.*(rot|rope).*\bv\b"):
            question = "One expression rotates all three. If that is intended, it is right."
            case.doubt = True
        if question:
            one = replace(one, evidence=f"{one.evidence} {question}", severity="edge")
        found.append(one)
    return found


def _width_attribute(subject: Subject, scale: float) -> str:
    """The attribute for the width of a head for which a scale is right; else ""."""
    widths = [n for n, v in subject.built.plain.items() if type(v) is int and v > 0
              and likely_meaning(n) == "head_dim" and abs(v * scale**2 - 1) < 1e-4]  # fmt: skip
    return next(iter(widths), "")


def _heads(case: Case, subject: Subject, steps: Judgement) -> None:
    """Report requested heads that do not exist, and heads that share their projections."""
    shapes = subject.built.parameters
    inside = [n for n, s in shapes.items() if role_of(n) in ("q", "k", "v") and len(s) == 2]
    width = steps.head_dim
    shared = len(inside) < 3 * steps.heads  # else each head in a list has its own
    if steps.heads > 1 and inside and shared and all(shapes[n] == (width, width) for n in inside):
        evidence = f"{inside[0]} is {width} × {width} for {steps.heads} heads of {width}."
        case.add("heads-share-projection", evidence)
    asked = [p.name for p in case.info.init if meaning_for(p) == "heads" and not case.given]
    splits = any(len(shape) > 1 for shape in shapes.values())  # else its caller splits the heads
    if splits and asked and subject.sizes.heads > steps.heads == 1 and asked[0] in subject.keywords:
        case.add("heads-ignored", f"With {asked[0]}={subject.sizes.heads} there is still one head.")


_AXES = {
    "single": "one sequence without a batch axis",
    "first": "tokens before batch",
    "channels": "channels before tokens",
    "picture": "images",
}


def _form(subject: Subject, steps: Judgement) -> Form:
    windowed = steps.mask.startswith("window")
    causal = "window" if windowed else {"causal": "yes", "none": "no"}.get(steps.mask, "")
    return Form(
        heads=steps.heads or None,
        head_dim=steps.head_dim,
        kv_heads=steps.kv_heads or None,
        causal=causal,
        window=int(steps.mask.removeprefix("window")) if windowed else None,
        takes_mask=bool(subject.takes_mask),
        out_proj=steps.projected,
        positions="rotary positions" if steps.rotary else "",
        axes=_AXES.get(subject.axes, ""),
    )


_PATIENCE = 3.0  # seconds
_SAME_FUNCTION = re.compile(r"(?i)flash|sdpa|fused|efficient|xformers|kernel|scaled_dot|naive|slow")
# Findings that another value of a flag may explain, such as masked=False or scale=False.
_BY_A_FLAG = {
    *("no-causal-mask", "missing-scale", "wrong-scale", "unexplained", "input-ignored"),
    "dropout-unused",
}


def _otherwise(case: Case, subject: Subject, report: Report) -> Report | None:
    """The report for another flag value or for other sizes, if the class is right with them."""
    wrong = {found.id for found in report.findings if found.severity == "wrong"}
    if report.verdict != "wrong" or case.given or not wrong <= _BY_A_FLAG:
        return None
    began = time.monotonic()
    for trial in alternatives(case, subject):
        if time.monotonic() - began > _PATIENCE:
            break
        if trial.sizes.d_in != subject.sizes.d_in and wrong != {"unexplained"}:
            continue
        if trial.sizes.heads < subject.sizes.heads:
            continue  # one head hides how heads are split and merged
        again = replace(case, findings=[], notes=list(case.session.notes), steps=())
        other = _examine(again, trial)
        if other.verdict == "correct":
            note = f"It is right when {trial.how}."
            return replace(other, notes=(*other.notes, note))
    renew(case.session, subject)
    return None
