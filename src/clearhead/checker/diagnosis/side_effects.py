"""What a call leaves behind: an input that was changed in place, or a graph that was kept."""

import re
from dataclasses import replace

import torch

from clearhead.checker.diagnosis import probes
from clearhead.checker.harness.axis_orders import STATES
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.subject import Subject, arguments_for, handed, renew
from clearhead.checker.sandbox.submission import Failure, Output
from clearhead.checker.source.class_text import keeps_something

_POSITIONS = r"pos(ition)?(_?(emb\w*|enc\w*))?$|pos_?emb|pos_?enc"
_CACHES = r"@\s*(functools\.|ft\.)?(lru_)?cache\b"
_SCORES = ("b h n n", "1 h n n", "h n n")  # shapes of a bias
_STATE = r"self\.\w*(cache|past|memory|mems?\b|state)"


def changed_inputs(case: Case, subject: Subject, inputs: probes.Inputs) -> None:
    """Whether the caller's tensors are others after the call; with positions or a bias too."""
    if subject.axes in ("single", *STATES):
        return
    names = [p.name for p in case.info.forward if p.has_default and p.default is None]
    fed = {name for name, _ in subject.feed}
    places = [n for n in names if n not in fed and re.search(_POSITIONS, n.lower())]
    for name in ("", *places):
        x = handed(subject, inputs)
        noise = torch.Generator().manual_seed(17)
        other = torch.randn(x[0].shape, generator=noise, dtype=torch.float64).to(x[0])
        got = case.session.forward(*arguments_for(subject, x, given={name: other} if name else {}))
        changed = () if isinstance(got, Failure) else _inputs_among(subject, got)
        if changed:
            given = f" with {name} given" if name else ""
            evidence = f"After one call{given}, {changed[0]} has changed."
            case.add("changes-its-input", evidence)
            return
    _changed_bias(case, subject, inputs)


def _changed_bias(case: Case, subject: Subject, inputs: probes.Inputs) -> None:
    """Whether a bias of the scores, which layers may share, is another one after the call."""
    for parameter in case.info.forward:
        told = isinstance(parameter.default, bool) or parameter.annotation == "bool"
        if told or "bias" not in parameter.name.lower():
            continue
        others = tuple(pair for pair in subject.feed if pair[0] != parameter.name)
        for shape in _SCORES:
            trial = replace(subject, feed=(*others, (parameter.name, f"tensor {shape}")))
            positional, keywords = arguments_for(trial, handed(trial, inputs))
            got = case.session.forward(positional, keywords)
            order = [p.name for p in case.info.forward]
            changed = () if isinstance(got, Failure) else got.changed
            if parameter.name in (order[n] if isinstance(n, int) else n for n in changed):
                evidence = (
                    f"After one call, the {parameter.name} that was passed has changed: the next "
                    "layer that it is passed to gets another one."
                )
                case.add("changes-its-input", evidence)
                return


def _inputs_among(subject: Subject, got: Output) -> list[str]:
    """The names of the inputs that were changed: vectors, no mask and no cache."""
    order = [p.name for p in subject.info.forward]
    names = [order[one] if isinstance(one, int) else one for one in got.changed]
    vectors = {name for name, role in subject.feed if role in ("x", "q", "k", "v", "kv")}
    return [name for name in names if name in vectors]


def kept_graph(case: Case, subject: Subject, inputs: probes.Inputs, out: torch.Tensor) -> None:
    """Whether a second step of training fails, because the first one's graph was kept."""
    if not subject.weights or subject.built.arrays:
        return
    kept = keeps_something(case.text) or re.search(_CACHES, case.text.file)
    if not kept or case.wrong:
        return
    if not renew(case.session, subject):
        return
    first, second = (probes.backward(case.session, subject, inputs, out) for _ in range(2))
    renew(case.session, subject)
    if isinstance(first, Failure) or not isinstance(second, Failure):
        return
    if "second time" in second.message:
        evidence = f"The second backward pass fails: {second.type}: {second.message}"[:200] + "..."
        severity = "edge" if case.text.has(_STATE) else ""
        case.add("keeps-its-graph", evidence, severity=severity)
