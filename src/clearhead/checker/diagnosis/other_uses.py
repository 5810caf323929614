"""Other uses of the same class: filled-up texts, and the batch's axis.

The plain run has shown which form the class has. Here that form is held against what the class
gives when it is used as a model uses it.
"""

import re
from dataclasses import replace

import torch
from torch import Tensor

from clearhead.checker.diagnosis import probes
from clearhead.checker.diagnosis.reference import AnyReference
from clearhead.checker.harness.axis_orders import HEADS_READY, taken
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.comparison import difference, percent
from clearhead.checker.harness.subject import Subject, arguments_for, call, handed, ids_for, pick
from clearhead.checker.sandbox.submission import Failure
from clearhead.checker.source.class_text import Text, uses_sdpa

Inputs = probes.Inputs

_BATCH = r"b|bs|bsz|batch\w*|n_?batch\w*|num_batch\w*"
_TOKENS = r"t|l|s|seq\w*|len\w*|time\w*|tok\w*|length|\w+_len|n_tok\w*|num_tok\w*|sequence\w*"


def order_said(source: str) -> str:
    """Which axis a source says comes first: "batch", "tokens", "both" or "".

    Examples:
        >>> order_said("B, T, C = x.shape"), order_said("# (seq, batch, d)"), order_said("y = x")
        ('batch', 'tokens', '')
    """
    between = r"\s*,\s*"
    end = rf"{between}[\w*/ ]+(\)|\]|=)"
    batch = rf"(?i)[(\[\s](({_BATCH}){between}\w+|n{between}({_TOKENS})){end}"
    tokens = rf"(?i)[(\[\s]({_TOKENS}|n){between}({_BATCH}){end}"
    batch += r"|batch[ -]first|batch_first\s*=\s*True"
    tokens += r"|(seq\w*|tokens?|time)[ -]first"
    patterns = {"batch": batch, "tokens": tokens}
    found = [name for name, pattern in patterns.items() if re.search(pattern, f" {source}")]
    return found[0] if len(found) == 1 else "both" if found else ""


def batch_axis(case: Case, subject: Subject, inputs: Inputs) -> None:
    """The first axis is that of the tokens: does the source mean it so?"""
    if subject.axes != "first":
        return
    said = order_said(case.text.source)
    if "tokens" in (said, said or order_said(case.text.file)):
        return
    plain = replace(subject, axes="batch")
    out = call(case.session, plain, inputs)
    if isinstance(out, Failure):
        return
    leak = probes.batch_leak(case.session, plain, inputs, out)
    evidence = (
        f"With an input (batch, tokens, d), changing sequence 0 changed the output of sequence 1 "
        f"by {leak:.2g}, and no token saw another one of its own sequence."
    )
    if said == "batch":
        case.add("attends-across-batch", f"{evidence} The source says that the batch comes first.")
    else:
        question = "If the input is meant to be (tokens, batch, d), it is right."
        case.add("attends-across-batch", f"{evidence} {question}", severity="edge")


_MASK = re.compile(r"mask|pad|keep|valid|real")
_KEYS_MASK = r"(context|memory|key|kv|src|source|enc\w*|cond)_(\w+_)?mask"
_NO_MASK = (
    r"cache|past|state|pos|layer|return|need|output|use|train|context|memory$|bias|scale|head"
)


def padding(
    case: Case, subject: Subject, inputs: Inputs, out: Tensor, reference: AnyReference
) -> set[str]:
    """A (batch, tokens) argument that marks the padding, or the real tokens: is it hidden?

    Any argument may be such a mask that runs with one and then gives another output.

    Returns:
        The arguments that are such a mask.
    """
    understood: set[str] = set()
    if subject.axes not in ("batch", "first") or not _hides_known(reference):
        return understood
    if subject.ids:
        _padding_in_ids(case, subject, inputs, reference)
        return understood
    fed = {name for name, role in subject.feed if role not in ("mask", "marks")}
    must = {name for name, role in subject.feed if role == "marks"}
    of_keys = [p.name for p in case.info.forward if re.fullmatch(_KEYS_MASK, p.name)]
    for parameter in case.info.forward:
        name = parameter.name.lower()
        named = _MASK.search(name)
        usable = parameter.name in must or (parameter.has_default and parameter.default is None)
        if parameter.name in fed or re.search(_NO_MASK, name) or not (usable or named):
            continue
        if re.match(r"q(uery)?_|.*_q$", name) or (subject.polarity and "mask" in name):
            continue
        if subject.separate and name == "mask" and of_keys:
            continue  # it marks the queries
        if _padding_of(case, subject, inputs, out, reference, parameter.name):
            understood.add(parameter.name)
    return understood


def _hides_known(reference: AnyReference) -> bool:
    """Whether it is known what the form itself hides: nothing, the future, or all but a window."""
    return reference.mask in ("none", "causal") or reference.mask.startswith("window")


def _padding_of(
    case: Case,
    subject: Subject,
    inputs: Inputs,
    out: Tensor,
    reference: AnyReference,
    name: str,
) -> bool:
    """Whether the argument is a mask of tokens, which is judged then."""
    batch, tokens = inputs[0].shape[:2]
    real = torch.ones(batch, tokens, dtype=torch.bool)
    hidden = [tokens - 2, tokens - 1] if reference.mask == "none" else [1, 3]
    real[-1, hidden] = False  # where it is causal, no one sees padding at the end anyway
    visible = real[:, None, None, :].expand(batch, 1, out.shape[1], tokens)
    right = reference.output(inputs, visible)
    if right is None and reference.mask == "none":
        right = _without_last(case, subject, inputs, out)
    if right is None or right.shape != out.shape:
        return False
    rows = real if out.shape[:2] == real.shape else torch.ones(out.shape[:2], dtype=torch.bool)
    answers = [with_mask(case, subject, inputs, name, marks) for marks in (real, ~real)]
    runs = [got for got in answers if got is not None and got.shape == out.shape]
    if len(runs) < 2 or all(difference(got, out) < 1e-12 for got in runs):
        return False
    keeps, hides = runs
    if difference(hides[rows], right[rows]) < 1e-5:
        if _said_real(case.text, name):
            case.add(
                "padding-inverted",
                f"The source says that {name} marks the real tokens; when it does, the output "
                "is what you get when only the padding is seen.",
            )
        return True
    if difference(keeps[rows], right[rows]) < 1e-5:
        if _marks_padding(case.text, name):
            case.add(
                "padding-inverted",
                f"With {name} True at two padding tokens, the output is what you get when only "
                "the padding is seen; with True at the real tokens, it is right.",
            )
        return True
    idle = all(difference(got, out) < 1e-5 for got in runs)  # a number added to a whole row
    for got in runs if rows is real else ():
        if difference(got[real], out[real]) > 1e-5:
            continue
        if difference(got[~real], out[~real]) < 1e-5 and not (idle and _MASK.search(name.lower())):
            continue
        marks = real if got is keeps else ~real
        turned = with_mask(case, subject, inputs, name, marks, keys_first=True)
        if turned is not None and difference(turned[real], right[real]) < 1e-5:
            return True  # its scores are (keys, queries), and so are its masks
        moved = _seen_padding(case, subject, inputs, name, marks, real)
        if moved > 1e-3:
            zeros = bool((got[~real] == 0).all())
            only = "no output is" if idle else "only the outputs at the padding itself are"
            evidence = (
                f"With {name} given, changing two padding tokens changed the output of a real one "
                f"by {moved:.2g}; {only} changed by {name}."
            )
            case.add("padding-on-queries", evidence, severity="edge" if zeros else "")
            return True
    if _hides_in_others(case, subject, inputs, out, name, runs):
        return True
    return _MASK.search(name) is not None and _not_hidden(case, subject, inputs, out, name, real)


def _without_last(case: Case, subject: Subject, inputs: Inputs, out: Tensor) -> Tensor | None:
    """The output in which the last two keys of the last text are not there."""
    cut = {id(x): x[:, :-2].contiguous() for x in inputs}
    q, k, v = (cut[id(x)] for x in inputs)
    got = call(case.session, subject, (inputs[0] if subject.separate else q, k, v))
    if isinstance(got, Failure) or got.shape[0] != out.shape[0] or got.shape[2:] != out.shape[2:]:
        return None
    right = out.clone()
    right[-1, : got.shape[1]] = got[-1]
    return right


def _not_hidden(
    case: Case, subject: Subject, inputs: Inputs, out: Tensor, name: str, real: Tensor
) -> bool:
    """Whether padding is still seen by real tokens, though marking it changes the output.

    If all tokens are real, a mask of tokens changes nothing: that tells which of its two values
    marks them. Where neither value changes anything, it is something that is added to scores.
    """
    if any(found.severity == "wrong" for found in case.findings):
        return False  # which may be the reason
    calm = []
    for marks in (real, ~real):
        every = torch.full_like(real, bool(marks[0, 0]))  # the first token is real
        got = with_mask(case, subject, inputs, name, every)
        if got is not None and got.shape == out.shape and difference(got, out) < 1e-5:
            calm.append(marks)
    if len(calm) != 1:
        return False
    moved: list[float] = []
    for part in {id(x): x for x in inputs}.values():  # the marks may be those of either input
        other = probes.changed((part, part, part), -1, slice(None))[0]
        other = torch.where(real[..., None], part, other)
        q, k, v = (other if x is part else x for x in inputs)
        plain = call(case.session, subject, (q, k, v))
        if isinstance(plain, Failure) or difference(plain[real], out[real]) < 1e-3:
            continue  # no other token sees this input
        before, after = (
            with_mask(case, subject, each, name, *calm) for each in (inputs, (q, k, v))
        )
        if before is not None and after is not None and before.shape == after.shape:
            moved.append(float((before - after)[real].abs().max()))
    if not moved or not min(moved) > 1e-3:
        return False
    evidence = (
        f"With {name} given, changing two padding tokens changed the output of a real one "
        f"by {min(moved):.2g}."
    )
    case.add("padding-not-hidden", evidence)
    return True


def _hides_in_others(
    case: Case, subject: Subject, inputs: Inputs, out: Tensor, name: str, runs: list[Tensor]
) -> bool:
    """Whether the padding of the last text hides tokens of the first, which has none."""
    for got, nothing in zip(runs, (torch.ones, torch.zeros), strict=True):
        marks = nothing(inputs[0].shape[:2], dtype=torch.bool)
        calm = with_mask(case, subject, inputs, name, marks)
        if calm is None or calm.shape != out.shape or difference(calm, out) > 1e-5:
            continue  # these marks mean something else
        moved = difference(got[:-1], out[:-1])
        if moved > 1e-3:
            evidence = (
                f"With {name} given, the padding of the last sequence changed the output "
                f"of another one, which has none, by {percent(moved)}."
            )
            case.add("padding-in-other-texts", evidence)
            return True
    return False


def _padding_in_ids(case: Case, subject: Subject, inputs: Inputs, reference: AnyReference) -> None:
    """Token ids with padding among them: is it hidden, or is only the padding seen?"""
    told = [v for n, v in subject.built.plain.items() if "pad" in n.lower() and type(v) is int]
    if not told and not case.text.has(r"padding_idx\s*=\s*0|[!=]=\s*0"):
        return
    padding = told[0] if told else 0
    x = inputs[0].clone()
    batch, tokens = x.shape[:2]
    real = torch.ones(batch, tokens, dtype=torch.bool)
    real[:, [1, tokens - 1]] = False
    x[~real] = x[-1, -1].clone()
    ids = ids_for(case.session, subject, x, padding)
    if isinstance(ids, Failure):
        return
    ids[~real] = padding
    positional, keywords = arguments_for(subject, (ids, ids, ids), None)
    output = case.session.forward(positional, keywords)
    chosen = None if isinstance(output, Failure) else pick(output, x.shape)
    if isinstance(output, Failure) or chosen is None:
        return
    got = output.tensors[chosen].to(torch.float64)
    visible = real[:, None, None, :].expand(batch, 1, tokens, tokens)
    right, plain = reference.output((x, x, x), visible), reference.output((x, x, x))
    inverted = reference.output((x, x, x), ~visible, own_mask=False)
    if right is None or plain is None or inverted is None or got.shape != right.shape:
        return
    if difference(got[real], right[real]) < 1e-5 or difference(got[real], plain[real]) < 1e-5:
        return
    if difference(got[real], inverted[real]) < 1e-5:
        case.add(
            "sdpa-mask-polarity" if uses_sdpa(case.text) else "padding-inverted",
            f"With two tokens of each sequence replaced by the padding id {padding}, the output is "
            "what you get when only the padding is seen.",
        )


def with_mask(
    case: Case,
    subject: Subject,
    inputs: Inputs,
    name: str,
    marks: Tensor,
    *,
    keys_first: bool = False,
) -> Tensor | None:
    """The output when one argument marks tokens: as (batch, tokens), or with more axes.

    Args:
        case: The class.
        subject: How it is called.
        inputs: Its inputs.
        name: The argument.
        marks: The marked tokens, (batch, tokens).
        keys_first: Mark the keys as in scores of (keys, queries).
    """
    q, k, v = handed(subject, inputs)
    marks = marks[:1] if subject.axes in HEADS_READY else marks  # what is a batch here are heads
    positional, keywords = arguments_for(subject, (q, k, v), None)
    names = [parameter.name for parameter in case.info.forward]
    place = names.index(name)
    shaped = [marks[:, None, :, None]] if keys_first else [marks, marks[:, None, None, :]]
    if subject.axes == "first":
        shaped.append(marks.T.contiguous())
    for shape in shaped:
        for dtype in (torch.bool, torch.int64, subject.dtype):
            if place < len(positional):
                positional[place] = shape.to(dtype)
            else:
                keywords[name] = shape.to(dtype)
            output = case.session.forward(positional, keywords)
            if isinstance(output, Failure):
                continue
            chosen = pick(output, q.shape)
            if chosen is not None:
                return taken(output.tensors[chosen].to(torch.float64), subject.axes)
    return None


def _seen_padding(
    case: Case, subject: Subject, inputs: Inputs, name: str, marks: Tensor, real: Tensor
) -> float:
    """How much the padding changes what comes out at real tokens."""
    others = inputs
    for token in (~real[-1]).nonzero().flatten().tolist():
        others = probes.changed(others, -1, token)
    before, after = (with_mask(case, subject, each, name, marks) for each in (inputs, others))
    if before is None or after is None or before.shape != after.shape:
        return 0.0
    return float((before - after)[real].abs().max())


_REAL = (
    r"(1|True|ones?)\s*(=|:|means?|for|is|are|where|->|marks?)+\s*(there is )?(the |a )?"
    r"(real|valid|keep|kept|token|attend|visible|not pad|may|non-?pad)|"
    r"0\s*(=|for|means?)\s*pad"
)
_HIDDEN = (
    r"(?i)(1|True|ones?)\s*(=|:|means?|for|is|are|where|at|on|->|marks?)+\W*"
    r"(pad|ignor|hid|mask|block)"
)


def _marks_padding(text: Text, name: str) -> bool:
    """Whether an argument's name says that True marks the padding, and nothing in the source else.

    What the source says of the argument counts before its name, also in words that are not known.
    """
    if "pad" not in name.lower() or re.search(_REAL, text.source):
        return False
    told = [line for line in _said_of(text, name) if {"1", "True"} & {*re.findall(r"\w+", line)}]
    return not told or any(re.search(_HIDDEN, line) for line in told)


def _said_real(text: Text, name: str) -> bool:
    """Whether the source says so of this very argument: `mask: (B, S), 1 = token`."""
    told = _said_of(text, name)
    real = [line for line in told if re.search(_REAL, line)]
    return bool(real) and not any(re.search(_HIDDEN, line) for line in told)


def _said_of(text: Text, name: str) -> list[str]:
    """The lines of comments and docstrings that begin with an argument's name."""
    own = rf"(\W*|.*[.;] ){re.escape(name)}\b(?!\s*=)"
    lines = text.source.splitlines()
    return [
        " ".join(lines[place : place + (3 if line.rstrip().endswith(":") else 1)])
        for place, line in enumerate(lines)
        if re.match(own, line)
    ]
