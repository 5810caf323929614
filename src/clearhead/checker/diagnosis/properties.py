"""Properties of every attention, for a class whose recorded pass does not show what it is."""

from torch import Tensor

from clearhead.checker.catalogue import finding
from clearhead.checker.diagnosis import learning, probes
from clearhead.checker.diagnosis.intent import is_causal
from clearhead.checker.harness.axis_orders import CHANNELS_FIRST, STATES
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.subject import (
    Inputs,
    Subject,
    arguments_for,
    handed,
    others,
)
from clearhead.checker.harness.weight_roles import role_of
from clearhead.checker.report import Report
from clearhead.checker.sandbox.submission import Failure
from clearhead.checker.source.class_text import used_by

_WEIGHS = r"(?i)softmax|\bexp_?\(|scaled_dot|multihead|attn_func"
_APART = 1e-3  # random-feature attention is not exact
_ALONE = "changing the first token changes no later output: no token sees another"
_LEAK = "changing one sequence changed the output of another"


def judge_properties(
    case: Case,
    subject: Subject,
    inputs: Inputs,
    out: Tensor,
    reason: str,
    *,
    attends: bool = False,
) -> Report:
    """Judge a class as wrong if a property of every attention fails, and as unsure otherwise.

    Args:
        case: The class.
        subject: How it is called.
        inputs: Its inputs.
        out: Its output.
        reason: Why its steps could not be judged.
        attends: Whether an attention inside it was read and is right, so that only what surrounds
            it is unknown.
    """
    unknown = _unknown_kind(case, subject, inputs, out)
    if unknown:
        return case.unsure(unknown)
    failed = [*_of_values(subject, inputs, out), *_of_tokens(case, subject, inputs, out)]
    failed += [] if attends else _of_order(case, subject, inputs, out)
    failed += _of_learning(case, subject, inputs, out)
    why = f" Its steps could not be judged: {reason}." if reason else ""
    if failed and subject.marks:  # the meaning of the marks is unknown
        why += f" Observed: {'; '.join(failed)}."
        failed = []
    if failed:
        told = "; ".join(failed)
        evidence = f"{told[0].upper()}{told[1:]}.{why}"
        id = _named(subject, out, failed)
        case.findings.insert(0, finding(id, evidence, None, "wrong"))
        return case.report("wrong")
    evidence = f"It has all tested properties of attention, but what it computes is unknown.{why}"
    return case.unsure(evidence)


def _named(subject: Subject, out: Tensor, failed: list[str]) -> str:
    """The mistake that the failed properties imply; "unexplained" if that is not certain."""
    if any(one.startswith(_LEAK) for one in failed) and out.shape[0] == subject.sizes.batch:
        return "attends-across-batch"
    idle = "".join(one for one in failed if "no gradient reaches" in one or "are never used" in one)
    return "values-not-mixed" if _ALONE in failed and idle else "unexplained"


def _unknown_kind(case: Case, subject: Subject, inputs: Inputs, out: Tensor) -> str:
    """Why this may be attention of a kind without known properties; "" if it is not."""
    rows = out.shape[1]
    bare = [s for n, s in subject.built.parameters.items() if not n.endswith(("weight", "bias"))]
    if rows != subject.sizes.tokens and any(rows in shape[:-1] for shape in bare):
        return "The rows of its output belong to learned queries, not to tokens."
    roles = {role_of(name) for name in subject.built.parameters}
    if subject.axes in CHANNELS_FIRST and not roles & {"q", "k", "qkv", "kv"}:
        return "It takes channels first and has no queries and keys: it may be a gate."
    guessed = 2 not in {case.usage.ranks.get(name) for name, _ in subject.feed}
    single = subject.axes == "single" and guessed
    if single and not probes.sees_others(case.session, subject, inputs, out):
        return "Called with a single sequence, no token sees another: it may want other inputs."
    last = probes.moved_by_last(case.session, subject, inputs, out)
    if subject.axes == "batch" and last == [0]:
        return "Only the first token attends to others: attention of a class token is not judged."
    parts = (case.text, *used_by(case.text))
    if subject.axes in STATES and not any(one.has(_WEIGHS) for one in parts):
        return "It has no softmax: it may compute scores only."
    if probes.only_weighs(case.session, subject, inputs, out):
        return "Another token changes a whole output row by one factor: tokens are not mixed."
    return ""


def _of_values(subject: Subject, inputs: Inputs, out: Tensor) -> list[str]:
    """Failed properties of the values and the shape of the output."""
    failed = []
    if not out.isfinite().all():
        rows = int((~out.isfinite()).any(-1).sum())
        failed.append(f"{rows} of {out.shape[0] * out.shape[1]} output rows are NaN or infinite")
    texts, tokens = inputs[0].shape[:2]
    pooled = out.shape[0] == texts and out.shape[1] < tokens - 1  # more than one token is lost
    if out.shape[:2] != (texts, tokens) and not pooled:
        shape = tuple(out.shape)
        failed.append(f"the output's shape is {shape} for inputs {tuple(inputs[0].shape)}")
    return failed


def _of_tokens(case: Case, subject: Subject, inputs: Inputs, out: Tensor) -> list[str]:
    """Failed properties of which sequences and tokens change which outputs."""
    session, failed = case.session, []
    leak = probes.batch_leak(session, subject, inputs, out)
    if leak > 1e-7:
        failed.append(f"{_LEAK} by {leak:.2g}")
    future = probes.future_leak(session, subject, inputs, out)
    if is_causal(case, subject) == "yes" and future.size > 1e-7:
        failed.append(
            f"changing token {future.changed} changed output {future.moved} by {future.size:.2g}, "
            "though this attention is meant to be causal"
        )
    return failed


def _of_order(case: Case, subject: Subject, inputs: Inputs, out: Tensor) -> list[str]:
    """Failed properties of plain attention: tokens see each other, whatever their order."""
    session, text, failed = case.session, case.text, []
    if out.shape[:2] == inputs[0].shape[:2] and not probes.sees_others(
        session, subject, inputs, out
    ):
        failed.append(_ALONE)
    roles = [role for _, role in subject.feed]
    given = any(role.startswith("tensor") or role in ("grid", "rows") for role in roles)
    positions = text.has(r"rope|rotary|[Pp]osition|alibi|rel_pos|relative|\bcos\b|\bfreqs")
    counted = text.has(r"arange|\btable|bias_table|enumerate")  # positions may matter
    positions |= any("Conv" in kind for kind in subject.built.modules.values() if kind != "Conv1D")
    positions |= text.uses("unfold( fold( Unfold( Fold(")  # neighbours, fewer of them at the edge
    gap = probes.same_tokens(session, subject, inputs)
    finite = bool(out.isfinite().all())  # else the gap has the same cause
    heads = subject.sizes.heads  # a layer from heads to heads mixes their weights
    mixes = heads > 1 and (heads, heads) in subject.built.parameters.values()
    if finite and not (positions or mixes or given or others(subject)) and gap > _APART:
        failed.append(
            f"with equal tokens, the output changes with their number (by {gap:.2g}), so the "
            "weights in a row do not sum to one"
        )
    ordered = positions or counted or given or bool(subject.polarity) or text.has("mask")
    ordered |= bool(others(subject))  # perhaps a table of positions
    ordered |= is_causal(case, subject) == "yes"
    if not ordered and probes.future_leak(session, subject, inputs, out).size > 1e-7:
        moved = probes.permutation_gap(session, subject, inputs, out)
        if moved > 1e-6:
            failed.append(
                f"permuted tokens do not give permuted outputs (they differ by {moved:.2g})"
            )
    return failed


def _of_learning(case: Case, subject: Subject, inputs: Inputs, out: Tensor) -> list[str]:
    """Failed properties of learning: no gradient, or features that are never used."""
    got = probes.backward(case.session, subject, inputs, out)
    if isinstance(got, Failure) or not out.isfinite().all():
        return []
    if learning.through_numpy(case, got.inputs):
        return []
    failed = []
    if _returns_several(case, subject, inputs, out):
        return []  # the others may have weights of their own
    still = [n for n, g in got.parameters.items() if g is None or float(g.abs().max()) < 1e-12]
    idle = [n for n in still if role_of(n) and "bias" not in n]
    idle = [n for n in idle if case.text.has(rf"\b{n.partition('.')[0]}\b")]  # else inherited
    if idle:
        failed.append(f"no gradient reaches {', '.join(idle[:4])}")
    if not learning.detached(case, subject, inputs, out):
        for name, rows in probes.idle_rows(case.session, subject, inputs, out).items():
            size = subject.built.parameters[name][0]
            failed.append(f"{rows} of the {size} outputs of {name} are never used")
    learning.out_of_reach(case, subject, inputs, out)
    return failed


def _returns_several(case: Case, subject: Subject, inputs: Inputs, out: Tensor) -> bool:
    """Whether there is more than one output of tokens, such as for text and image in parallel."""
    got = case.session.forward(*arguments_for(subject, handed(subject, inputs)))
    tensors = () if isinstance(got, Failure) else got.tensors
    alike = [t for t in tensors if t.ndim == 3 and t.shape[::2] == out.shape[::2]]
    return len(alike) > 1
