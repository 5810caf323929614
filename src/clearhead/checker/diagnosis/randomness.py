"""In evaluation, the same input must give the same output.

The recorded pass shows which call is random. When a pass is read, dropout is skipped and random
numbers are constants, so other mistakes are found as well.
"""

import ast
import re
import time
from contextlib import suppress
from typing import Any

from torch import Tensor

from clearhead.checker.diagnosis.judgement import StepFinding
from clearhead.checker.diagnosis.reading import Unreadable
from clearhead.checker.diagnosis.recorded_pass import Examined, judge_steps
from clearhead.checker.harness.building import could_not_run, without_dropout
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.comparison import difference
from clearhead.checker.harness.subject import Inputs, Subject, arguments_for, call, handed
from clearhead.checker.report import Report
from clearhead.checker.sandbox.answers import Call
from clearhead.checker.sandbox.submission import Failure
from clearhead.checker.source.call_sites import last_name
from clearhead.checker.source.class_text import Text

# The positions of the dropout rate and the training flag among the arguments.
_DROPOUTS: dict[str, tuple[int, int | None]] = {
    **dict.fromkeys(("dropout", "dropout_", "dropout1d", "dropout2d", "alpha_dropout"), (1, 2)),
    "scaled_dot_product_attention": (4, None),
    "multi_head_attention_forward": (10, 13),
}


def run_twice(case: Case, subject: Subject, inputs: Inputs) -> tuple[Subject, Tensor] | Report:
    """The output, which must be reproducible; if dropout prevents that, the output without it."""
    out = call(case.session, subject, inputs)
    began = time.monotonic()
    again = call(case.session, subject, inputs, seed=1)
    case.session.set_pace(time.monotonic() - began)
    if isinstance(out, Failure) or isinstance(again, Failure):
        failure = out if isinstance(out, Failure) else again
        assert isinstance(failure, Failure)
        return could_not_run(case.filename, case.info.name, failure, "forward")
    gap = float((out - again).abs().nan_to_num(0.0).max())
    if out.shape != again.shape or gap <= 1e-9:
        return subject, out
    dropped = _dropouts(case, subject, inputs)
    evidence = f"In evaluation, two runs on the same input differ by {gap:.2g}."
    made = None if dropped else _drawn(case.text)
    layer = made is not None and last_name(made.func) in _LAYERS
    if dropped:
        case.add("dropout-in-eval", evidence, dropped[0].line)
    elif made is None:
        case.add("random-in-eval", evidence)
    else:
        what = "is made anew in each pass, and never trained" if layer else "draws new numbers"
        case.add("random-in-eval", f"{evidence} {last_name(made.func)} {what}.", made.lineno)
    beside: list[StepFinding] = []
    case.dropping = bool(dropped)
    with suppress(Unreadable):
        read = judge_steps(case, subject) if dropped or layer else None
        if read is not None:
            _before_softmax(case, read)
            beside = read.steps.findings
    case.dropping = False
    calm = without_dropout(case, subject)
    if calm is not None:
        out, again = (call(case.session, calm, inputs, seed=seed) for seed in (0, 1))
        if isinstance(out, Tensor) and isinstance(again, Tensor) and difference(out, again) == 0:
            return calm, out
    for found in beside:
        case.add(found.id, found.evidence, found.line, found.severity)
    if not beside:
        case.notes.append("Nothing else was checked: fix this first, then check again.")
    return case.report()


_LAYERS = {
    "Linear",
    "Conv1d",
    "Conv2d",
    "Embedding",
    "MultiheadAttention",
    "Parameter",
    "LSTM",
    "GRU",
}
_RANDOM = {"rand", "randn", "randint", "rand_like", "randn_like", "normal", "normal_", "uniform_"}


def _drawn(text: Text) -> ast.Call | None:
    """The call outside the constructor that makes a layer or, failing that, random numbers."""
    methods = [n for n in ast.walk(text.tree) if isinstance(n, ast.FunctionDef)]
    running = [one for one in methods if not re.search("init|reset", one.name)]
    calls = [n for one in running for n in ast.walk(one) if isinstance(n, ast.Call)]
    for names in (_LAYERS, _RANDOM):
        for made in calls:
            if last_name(made.func) in names:
                return made
    return None


def _dropouts(case: Case, subject: Subject, inputs: Inputs) -> list[Call]:
    """The calls of a recorded pass that apply dropout in evaluation."""
    positional, keywords = arguments_for(subject, handed(subject, inputs), None)
    got = case.session.record(positional, keywords)
    return [] if isinstance(got, Failure) else [c for c in got[0].calls if _drops(c)]


def _drops(call: Call) -> bool:
    if call.name not in _DROPOUTS:
        return False
    rate, training = _DROPOUTS[call.name]
    on = training is None or _argument(call, training, "training", True)
    default = 0.5 if training == 2 else 0.0
    name = "p" if training == 2 else "dropout_p"
    return bool(on) and _argument(call, rate, name, default) != 0


def _argument(call: Call, place: int, name: str, default: object) -> Any:
    return call.args[place] if len(call.args) > place else call.kwargs.get(name, default)


def _before_softmax(case: Case, read: Examined) -> None:
    """Report dropout that is applied to the scores instead of the weights."""
    program = read.reading.program
    for core in read.reading.cores:
        between = program.after(core.dots) & program.before(core.weights)
        for index in sorted(between):
            dropped = program.calls[index]
            if _drops(dropped):
                evidence = "The scores are dropped, before the softmax, and not the weights."
                case.add("dropout-before-softmax", evidence, dropped.line)
                return
