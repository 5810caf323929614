"""Record a forward pass of a class, read it, and judge it step by step."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from clearhead.checker.diagnosis.inlining import inlined
from clearhead.checker.diagnosis.intent import (
    SCALES,
    fused_order,
    is_causal,
    unscaled_on_purpose,
)
from clearhead.checker.diagnosis.judgement import Expectation, Judgement
from clearhead.checker.diagnosis.program import NotRunnable, Program, Values
from clearhead.checker.diagnosis.program_checks import normed_over_tokens, scrambled
from clearhead.checker.diagnosis.reading import Reading, Source, Stacked, Unreadable, is_same
from clearhead.checker.diagnosis.shown_steps import shown_steps
from clearhead.checker.diagnosis.step_checks import judge, judge_whole
from clearhead.checker.diagnosis.whole_attention import WholeAttention, find_whole
from clearhead.checker.harness.alternatives import mask_ways
from clearhead.checker.harness.axis_orders import HEADS_READY, ONE_TEXT, STATES, taken
from clearhead.checker.harness.building import head_counts
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.constructor_arguments import likely_meaning
from clearhead.checker.harness.forward_arguments import POLARITIES
from clearhead.checker.harness.subject import (
    Inputs,
    Subject,
    arguments_for,
    call,
    handed,
    inputs_for,
    one_text,
    orders,
    result_in,
)
from clearhead.checker.harness.weight_roles import role_of
from clearhead.checker.sandbox.answers import Recording
from clearhead.checker.sandbox.missing_parts import turns
from clearhead.checker.sandbox.submission import Failure
from clearhead.checker.source.class_text import raises_at

# Where sequences and tokens are: (batch axis, token axes).
_AXES: dict[str, tuple[int | None, tuple[int, ...]]] = {
    "batch": (0, (1,)),
    "first": (1, (0,)),
    "single": (None, (0,)),
    "packed": (None, (0,)),
    "channels": (0, (2,)),
    "picture": (0, (2, 3)),
    "rows": (0, (2,)),
    "columns": (0, (1,)),
    "pixels": (0, (1, 2)),
    "frames": (0, (1,)),
    "state": (None, (0,)),
    "states": (None, (1,)),
    "column": (None, (0,)),
    "each": (None, (1,)),
    "each-first": (None, (0,)),
    "heads": (1, (2,)),
    "spread": (2, (1,)),
    "crossed": (2, (1,)),
    "volume": (0, (2,)),
    "turned": (1, (3,)),
}
RUNS = 6


@dataclass(frozen=True, eq=False)
class Examined:
    """A recorded pass that was read and judged.

    Args:
        reading: The pass.
        steps: The judgement of its steps.
        runs: The values of every register, for other random inputs.
        expected: What is known about the class.
        whole: Its attention as one piece, if the steps inside could not be read.
    """

    reading: Reading
    steps: Judgement
    runs: list[Values]
    expected: Expectation
    whole: WholeAttention | None = None

    @cached_property
    def as_whole(self) -> WholeAttention | None:
        """Its attention as one piece, if that is correct."""
        return self.whole or find_whole(self.reading, self.runs, self.expected)


def record(case: Case, subject: Subject) -> Reading:
    """Record a forward pass and read it.

    Raises:
        Unreadable: If it cannot be recorded, run again or read, with the reason.
    """
    inputs = inputs_for(subject, subject.sizes.tokens)
    program, output, given = recorded(case, subject, inputs)
    try:
        sources = _sources(subject, program, given)
        reading = Reading(program, sources, output)
        if len(program.calls) > _LONG:
            return reading
        if not reading.has_softmax:
            return _with_learned_queries(reading) or reading
        if reading.is_readable:
            return reading
        return _with_reduced_keys(reading) or reading
    except (NotRunnable, RuntimeError, TypeError, IndexError, KeyError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}"[:200]) from error


def recorded(case: Case, subject: Subject, inputs: Inputs) -> tuple[Program, int, Inputs]:
    """A forward pass as a program, the register of its output, and the inputs as passed.

    A class that takes one sequence without a batch axis gets the first one.

    Raises:
        Unreadable: If it cannot be recorded or run again, with the reason.
    """
    if subject.axes not in _AXES:
        raise Unreadable("its inputs are of an unusual form")
    if subject.axes in ONE_TEXT:
        subject = replace(subject, texts=1)
        shaped = one_text(subject, inputs, 0)
    else:
        shaped = handed(subject, inputs)
    given = {id(tensor): new for tensor, new in zip(inputs, shaped, strict=True)}
    q, k, v = (given[id(tensor)] for tensor in inputs)
    got = case.session.record(*arguments_for(subject, (q, k, v)))
    if isinstance(got, Failure):
        raise Unreadable(f"it could not be recorded: {got.message}"[:200])
    recording, sent = got
    chosen = result_in(subject, recording.output, q.shape)
    if chosen is None:
        raise Unreadable("it returns no tensor")
    weights = {name: weight.to(subject.dtype) for name, weight in subject.weights.items()}
    if subject.built.arrays:  # arrays keep their dtype
        weights = {name: w.to(subject.built.weights[name].dtype) for name, w in weights.items()}
    if subject.built.loose:
        recording = _with_tables(recording, weights, subject.built.modules)
    try:
        values = Program(recording, weights, sent).run()
        same = is_same(values[recording.outputs[chosen]], recording.output.tensors[chosen])
        if not same and not case.dropping:
            raise Unreadable("the recorded pass gives a different output when it is run again")
        program = Program(inlined(recording, values), weights, sent)
    except (NotRunnable, RuntimeError, TypeError, IndexError, KeyError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}"[:200]) from error
    return program, recording.outputs[chosen], (q, k, v)


def _with_tables(
    recording: Recording, weights: dict[str, Tensor], modules: Mapping[str, str]
) -> Recording:
    """The recording, with tensors of plain objects as constants if their names have no role."""
    plain = {leaf.name for leaf in recording.leaves if not role_of(leaf.name)} & set(weights)
    tables = {name for name in plain if name.rpartition(".")[0] not in modules}
    leaves = tuple(
        replace(leaf, kind="constant") if leaf.name in tables else leaf for leaf in recording.leaves
    )
    constants = {**recording.constants, **{name: weights[name] for name in tables}}
    return replace(recording, leaves=leaves, constants=constants)


def _sources(subject: Subject, program: Program, inputs: Inputs) -> tuple[Source, ...]:
    """The registers that hold tokens."""
    found: list[Source] = []
    for tensor, kind in zip(inputs, orders(subject), strict=True):
        for name, register in program.inputs.items():
            same = program.given[name].shape == tensor.shape and torch.equal(
                program.given[name], tensor
            )
            if same and all(register != one.register for one in found):
                batch, axes = _AXES[kind]
                found.append(Source(register, batch, axes))
    if not found:
        raise Unreadable("its inputs could not be found in the recorded pass")
    return tuple(found)


def _with_learned_queries(reading: Reading) -> Reading | None:
    """The pass with a parameter as another sequence, if its rows are queries over the tokens."""
    program = reading.program
    for register in program.parameters:
        rows = reading.values[register].ndim - 2
        calls = {program.calls[i].name for i in program.users.get(register, ())}
        if rows < 0 or calls & {"linear", "conv1d", "conv2d", "conv3d"}:
            continue
        sources = (Source(register, None, (rows,)), *reading.sources)
        try:
            trial = Reading(program, sources, reading.output)
            operands = [[trial.tokens[r] for r in core.operands] for core in trial.cores]
        except (NotRunnable, Unreadable):
            continue  # its rows are not queries
        learned, *given = torch.split(torch.arange(sum(trial.size)), trial.size)
        if operands and all(
            any(moves[learned].any() for moves in pair)
            and not any(moves[learned].any() and moves[torch.cat(given)].any() for moves in pair)
            for pair in operands
        ):
            return trial
    return None


_LONG = 200  # calls, as of a loop over tokens: too many to read such a pass in other ways
_TRIES = 6
_POOLED_AXES = re.compile(r"(?:conv|pool)(\d)d$")


def _with_reduced_keys(reading: Reading) -> Reading | None:
    """The pass with the keys' tokens as another sequence, if they each combine several tokens.

    A strided convolution, pooling or a matrix may make fewer keys than there are queries.
    """
    program, tries = reading.program, 0
    for index in sorted(program.before(reading.output)):
        reads = [r for r in program.sources[index] if reading.depends(r)]
        out = program.calls[index].out[0]
        if not reading.is_product(index) or len(reads) != 1:
            continue
        picture = _POOLED_AXES.search(program.calls[index].name)
        rank, batch = reading.values[out].ndim, reading.text_axis(out)
        ways = [tuple(range(rank - int(picture[1]), rank))] if picture else []
        ways += [(axis,) for axis in range(rank) if axis != batch]
        for axes in ways:
            if (tries := tries + 1) > _TRIES:
                return None
            try:
                trial = Reading(
                    program, (*reading.sources, Source(out, batch, axes)), reading.output
                )
                if trial.is_readable and trial.cores:
                    return trial
            except (NotRunnable, Unreadable):
                continue
    return None


def judge_steps(case: Case, subject: Subject, causal: str = "") -> Examined:
    """Record, read and judge a class; it must also compute the same when it is not recorded.

    Args:
        case: The class.
        subject: How it is called.
        causal: Whether it is meant to be causal, if that is known.

    Raises:
        Unreadable: If that is impossible, with the reason.
    """
    reading = record(case, subject)
    program = reading.program
    generator = torch.Generator().manual_seed(23)
    registers = set(program.inputs.values()) & {s.register for s in reading.sources}
    makers = {program.maker.get(source.register) for source in reading.sources}
    # An input may lead to one of the sources through a norm.
    registers |= {r for r in program.inputs.values() if program.after(r) & makers}
    runs = []
    for _ in range(RUNS):
        inputs = {
            name: torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype)
            if program.inputs[name] in registers and x.is_floating_point()
            else x
            for name, x in program.given.items()
        }
        runs.append(program.run(inputs))
    batch = 1 if subject.axes in ONE_TEXT else subject.sizes.batch
    expected = Expectation(
        causal=causal or is_causal(case, subject),
        given_mask=bool(subject.polarity),
        batch=batch,
        arguments=_scales(subject),
        dropout=subject.sizes.p,
        window=subject.sizes.window,
        unscaled=unscaled_on_purpose(case),
        fused_order=fused_order(case),
        angles=bool(subject.rotary) and not any(map(turns, case.session.missing)),
        heads=tuple(head_counts(subject)),
    )
    picked = None
    try:
        verdict, whole = _judged(reading, runs, expected)
        if verdict.doubts:
            picked = _judged_with_picks(reading, runs, expected)
    except Unreadable:
        picked = _judged_with_picks(reading, runs, expected)
        if picked is None:
            raise
    if picked is not None:
        reading, verdict, whole = *picked, None
    _faithful(case, subject, reading, verdict)
    return Examined(reading, verdict, runs, expected, whole)


def _judged_with_picks(
    reading: Reading, runs: list[Values], expected: Expectation
) -> tuple[Reading, Judgement] | None:
    """The pass read as one attention of a few tokens, if no doubt is left then."""
    if len(reading.program.calls) > _LONG:
        return None
    try:
        trial = Reading(reading.program, reading.sources, reading.output, picks=True)
        if len(trial.cores) != 1:
            return None
        verdict, whole = _judged(trial, runs, expected)
    except (NotRunnable, Unreadable):
        return None
    doubted = verdict.doubts and not (verdict.lost and len(verdict.doubts) == 1)
    return None if doubted or whole is not None else (trial, verdict)


def steps_of(case: Case, subject: Subject, causal: str = "") -> Judgement | None:
    """The judgement of the steps of a class; None if they cannot be read."""
    try:
        return judge_steps(case, subject, causal).steps
    except Unreadable:
        return None


def _judged(
    reading: Reading, runs: list[Values], expected: Expectation
) -> tuple[Judgement, WholeAttention | None]:
    """The judgement of each step, or of the attention as one piece if that is right."""
    problem = ""
    steps = Judgement()
    if normed_over_tokens(reading, steps):
        return steps, None
    try:
        steps = judge(reading, runs, expected)
    except Stacked:
        raise
    except (NotRunnable, Unreadable, RuntimeError, TypeError, IndexError, KeyError) as error:
        named = "" if isinstance(error, Unreadable) else f"{type(error).__name__}: "
        problem = f"{named}{error}"[:200]
    if not problem and not steps.doubts and reading.cores:
        return steps, None
    whole = find_whole(reading, runs, expected)
    if whole is not None:
        around = judge_whole(whole)
        if problem or not around.doubts:
            return around, whole
    spread = Judgement()
    if scrambled(reading, spread):
        return spread, None
    if problem:
        raise Unreadable(problem)
    return steps, None


def _scales(subject: Subject) -> tuple[float, ...]:
    """Arguments that may be the scale, by name; without weights, all but widths and heads."""
    given = {p.name: subject.keywords.get(p.name, p.default) for p in subject.info.init}
    for value in subject.keywords.values():
        if isinstance(value, dict) and "__config__" in value:
            told = value["__config__"].items()
            given |= {name: v for name, v in told if "scal" in name or "temp" in name}
    sizes = {"d", "d_in", "d_out", "head_dim", "heads", "kv_heads"}
    return tuple(
        float(value)
        for name, value in given.items()
        if isinstance(value, int | float) and value > 0 and type(value) is not bool
        if re.search("scal|temp", name.lower())
        or not (subject.built.parameters or likely_meaning(name) in sizes)
    )


def _faithful(case: Case, subject: Subject, reading: Reading, verdict: Judgement) -> None:
    """Check that the program and the unrecorded class give the same output on other inputs."""
    tokens = subject.sizes.tokens
    recorded, others = inputs_for(subject, tokens), inputs_for(subject, tokens, seed=31)
    out = call(case.session, subject, others)
    if isinstance(out, Failure):
        verdict.doubts.append("it fails on other inputs of the same shape")
        return
    if subject.axes in ONE_TEXT:  # sequences that are passed together must not change each other
        old = one_text(subject, recorded, 0)
        pairs = [(one_text(subject, others, row), out[row]) for row in range(len(out))]
    else:
        old, pairs = handed(subject, recorded), [(handed(subject, others), out)]
    for new, wanted in pairs:
        given = dict(reading.program.given)
        for name, tensor in reading.program.given.items():
            for before, after in zip(old, new, strict=True):
                if tensor.shape == before.shape and torch.equal(tensor, before):
                    given[name] = after
        got = reading.program.run(given)[reading.output].to(torch.float64)
        if subject.axes in STATES:
            got = got.reshape(wanted.shape) if got.numel() == wanted.numel() else got
        elif subject.axes not in ONE_TEXT:
            got = taken(got, subject.axes)
        size = float(wanted.abs().nan_to_num(0.0, 0.0, 0.0).max().clamp_min(1.0))
        same = got.shape == wanted.shape and torch.equal(got.isnan(), wanted.isnan())
        if not same or float((got - wanted).abs().nan_to_num(0.0).max()) > 1e-5 * size:
            verdict.doubts.append("it computes something else on other inputs")
            return


INVERTED = {"mask-inverted", "sdpa-mask-polarity"}
_NOT_HIDDEN = {
    *("mask-fill-not-inf", "mask-result-dropped", "mask-added-not-filled"),
    *("mask-fill-too-small", "mask-after-softmax", "softmax-twice"),
}


def judge_mask(case: Case, subject: Subject, known: Set[str] = frozenset()) -> None:
    """Pass a causal mask to a class that takes one, and check that it hides what it marks.

    Any meaning of True is fine. If every usual mask leaves weights on what it hides, that is a
    mistake, and the recorded pass shows the line. Mistakes that are `known` occur without a mask.
    """
    takes = [p for p in case.info.forward if p.name == subject.takes_mask]
    if not takes or isinstance(takes[0].default, bool) or takes[0].annotation == "bool":
        return  # a flag
    tried: dict[str, Examined] = {}
    ran = False
    of_each_text = _of_each_text(case, subject)
    if of_each_text:
        subject = replace(subject, mask_shape=of_each_text)
    for polarity in POLARITIES:
        trial = replace(subject, polarity=polarity)
        out = call(case.session, trial, inputs_for(trial, trial.sizes.tokens))
        if isinstance(out, Failure):
            continue
        try:
            examined = judge_steps(case, trial, "yes")
        except Unreadable:
            if not out.isfinite().all():
                continue  # it is not such a mask
            return
        verdict = examined.steps
        others = [found for found in verdict.findings if found.id not in SCALES | known]
        if verdict.mask in ("causal", "none") and not others and not verdict.doubts:
            return  # it hides the future
        ran = True
        if verdict.mask == "lifted":
            tried = {polarity: examined}  # no meaning of True makes that right
            break
        if not any(found.id in INVERTED for found in others):  # else True means the opposite
            tried[polarity] = examined
    if not ran:
        _branch_fails(case, subject, known)
    sure = {polarity: one for polarity, one in tried.items() if not one.steps.doubts}
    if sure.keys() < tried.keys() and not {"keep", "hide"} <= sure.keys():
        return  # for example, ~mask with integers
    new = _NOT_HIDDEN - known
    seen = ((one, f) for one in sure.values() for f in one.steps.findings if f.id in new)
    for examined, found in itertools.islice(seen, 1):
        evidence = f"{found.evidence[:1].lower()}{found.evidence[1:]}"
        case.add(found.id, f"With a causal mask passed in, {evidence}", found.line)
        case.steps = shown_steps(examined.reading, examined.steps)


def _of_each_text(case: Case, subject: Subject) -> str:
    """The shape of masks with a batch axis, if no mask without one runs; else ""."""
    inputs = inputs_for(subject, subject.sizes.tokens)

    def runs(shape: str) -> bool:
        trials = (replace(subject, polarity=one, mask_shape=shape) for one in POLARITIES)
        return any(isinstance(call(case.session, one, inputs), Tensor) for one in trials)

    plain = call(case.session, subject, inputs)
    if isinstance(plain, Failure) or runs(subject.mask_shape):
        return ""
    batch, tokens = inputs[0].shape[:2]
    for shape, sizes in (("bnn", (batch, tokens, tokens)), ("b1nn", (batch, 1, tokens, tokens))):
        calm = call(case.session, subject, inputs, mask=torch.ones(sizes, dtype=torch.bool))
        fits = isinstance(calm, Tensor) and torch.equal(calm, plain)  # nothing is hidden
        if fits and runs(shape):
            return shape
    return ""


def _branch_fails(case: Case, subject: Subject, known: Set[str]) -> None:
    """Report if every usual mask raises an error in the class's own lines.

    Not if the class rejects them on purpose, or takes an object of another kind.
    """
    said = next(p.annotation for p in case.info.forward if p.name == subject.takes_mask)
    if (said and "Tensor" not in said) or subject.axes in HEADS_READY:
        return  # another kind of mask, or the batch axis holds heads
    if not re.search(r"mask|bias|adj", subject.takes_mask.lower()):
        return  # it may not be a mask
    by_shape: dict[tuple[int, ...], list[Failure]] = {}
    for mask in mask_ways(subject):
        got = call(case.session, subject, inputs_for(subject, subject.sizes.tokens), mask=mask)
        if not isinstance(got, Failure) or not got.raised or got.line is None:
            return
        if raises_at(case.text.file, got.line):
            return
        by_shape.setdefault(tuple(mask.shape), []).append(got)
    found = [one for each in by_shape.values() for one in each]
    fits = [e for e in by_shape.values() if not any(re.search(_OF_SHAPE, f.message) for f in e)]
    messages = {re.sub(r"\d+", "", one.message) for one in found}
    if fits or (len(messages) == 1 and not known):  # else some get further
        case.add_failure("mask-branch-fails", "With every usual mask", (fits or [found])[0][0])


_OF_SHAPE = r"size|shape|dimension|expand|broadcast|must match"


def judge_default(case: Case, subject: Subject) -> None:
    """Report if omitting an optional mask raises an error, which is why one was passed in."""
    optional = [p for p in case.info.forward if p.name == subject.takes_mask and p.has_default]
    if not subject.polarity or not optional or optional[0].default is not None:
        return
    plain = replace(subject, polarity="")
    got = call(case.session, plain, inputs_for(plain, plain.sizes.tokens))
    if isinstance(got, Failure) and got.kind == "exception" and got.line is not None:
        first = got.message.partition("\n")[0].removesuffix(", but expected one of:")
        got = replace(got, message=first)
        case.add_failure("default-mask-fails", f"Without {subject.takes_mask}", got)
