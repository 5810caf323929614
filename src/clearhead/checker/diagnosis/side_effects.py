"""Side effects of a call: an input that was changed in place, or a graph that was kept."""

import re
from dataclasses import replace

import torch

from clearhead.checker.diagnosis import probes
from clearhead.checker.harness.axis_orders import STATES
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.subject import Inputs, Subject, arguments_for, handed, renew
from clearhead.checker.sandbox.submission import Failure
from clearhead.checker.source.class_text import keeps_something

_POSITIONS = r"pos(ition)?(_?(emb\w*|enc\w*))?$|pos_?emb|pos_?enc"
_CACHES = r"@\s*(functools\.|ft\.)?(lru_)?cache\b"
_SCORES = ("b h n n", "1 h n n", "h n n")  # shapes of a bias
_STATE = r"self\.\w*(cache|past|memory|mems?\b|state)"


def changed_inputs(case: Case, subject: Subject, inputs: Inputs) -> None:
    """Report a call that changes the caller's tensors, including positions or a bias of scores.

    Several layers may share such a bias.
    """
    if subject.axes in ("single", *STATES):
        return
    order = [p.name for p in case.info.forward]
    vectors = {name for name, role in subject.feed if role in ("x", "q", "k", "v", "kv")}
    trials = [("", subject)]
    for parameter in case.info.forward:
        name, small = parameter.name, parameter.name.lower()
        flag = isinstance(parameter.default, bool) or parameter.annotation == "bool"
        shapes: tuple[str, ...] = () if flag or "bias" not in small else _SCORES
        if parameter.has_default and parameter.default is None and re.search(_POSITIONS, small):
            shapes = (f"{'n b' if subject.axes == 'first' else 'b n'} {subject.d_in}",)
        others = tuple(pair for pair in subject.feed if pair[0] != name)
        trials += [
            (name, replace(subject, feed=(*others, (name, f"tensor {shape}")))) for shape in shapes
        ]
    for name, trial in trials:
        got = case.session.forward(*arguments_for(trial, handed(trial, inputs)))
        changed = () if isinstance(got, Failure) else got.changed
        names = [order[one] if isinstance(one, int) else one for one in changed]
        hit = [one for one in names if one in {*vectors, name}]
        if hit:
            given = f" with {name} given" if name else ""
            case.add("changes-its-input", f"After one call{given}, {hit[0]} has changed.")
            return


def kept_graph(case: Case, subject: Subject, inputs: Inputs, out: torch.Tensor) -> None:
    """Report a second training step that fails because the graph of the first was kept."""
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
