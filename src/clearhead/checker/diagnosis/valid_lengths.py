"""Lengths that are passed to forward: what lies beyond a text's length must not be seen.

A batch with lengths must give each text what it gets alone, without its padding. This needs no
form to compare with: the class is compared with itself.
"""

import re
from dataclasses import replace

import torch
from torch import Tensor

from clearhead.checker.diagnosis import probes
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.comparison import difference
from clearhead.checker.harness.subject import Inputs, Subject, call, each, renew
from clearhead.checker.sandbox.submission import Failure, Parameter
from clearhead.checker.source.class_text import keeps_something

_LENGTHS = re.compile(r"^(\w*_)?(valid_?lens?|valid_?lengths?|lengths|lens|seq_?lens)$")
_SAME, _SEEN = 1e-6, 1e-3


def valid_lengths(case: Case, subject: Subject, inputs: Inputs, out: Tensor) -> None:
    """Pass lengths to a class that takes them, if it does."""
    if subject.axes not in ("batch", "first") or len(out) < 2:
        return
    tokens = inputs[0].shape[1]
    lengths = torch.full([len(out)], tokens)
    lengths[-1] = short = tokens - 2
    found = (p.name for p in case.info.forward if _takes_lengths(case, subject, p, inputs, out))
    name = next(found, "")
    if name and _kept(case, subject, inputs, out, name, lengths):
        return
    got = _with_lengths(case, subject, inputs, name, lengths) if name else None
    if got is None or got.shape != out.shape:
        return
    given = f"With {name} = {lengths.tolist()} for {tokens} tokens"
    apart = float((got[:-1] - out[:-1]).abs().max())
    if apart > _SEEN:
        evidence = f"{given}, the sequence of {tokens} tokens, which has no padding, changed"
        case.add("padding-in-other-texts", f"{evidence} by {apart:.2g}.")
    alone = _alone(case, subject, inputs, short)
    rows = short if alone is not None and alone.shape[1] == short else tokens
    if alone is None or float((got[-1:, :rows] - alone).abs().max()) < _SAME:
        return
    others = probes.changed(inputs, -1, slice(short, None))
    if subject.separate:
        others = (inputs[0], *others[1:])  # the queries have no padding
    after = _with_lengths(case, subject, others, name, lengths)
    moved = 0.0 if after is None else float((after - got)[-1, :rows].abs().max())
    if moved > _SEEN:
        evidence = f"{given}, changing tokens beyond the length changed the output of a real token"
        case.add("padding-not-hidden", f"{evidence} by {moved:.2g}.")


def _takes_lengths(
    case: Case, subject: Subject, parameter: Parameter, inputs: Inputs, out: Tensor
) -> bool:
    """Whether an argument is the lengths: by its name, or since full lengths change nothing."""
    name, tokens = parameter.name, inputs[0].shape[1]
    if _LENGTHS.match(name.lower()):
        return True
    fed = {name for name, _ in subject.feed}
    if name in fed or not parameter.has_default or parameter.default is not None:
        return False
    whole, half = (torch.full([len(out)], n) for n in (tokens, tokens - 2))
    gaps = []
    for lengths in (whole, half):
        if keeps_something(case.text) and not renew(case.session, subject):
            return False
        got = _with_lengths(case, subject, inputs, name, lengths)
        if got is None or got.shape != out.shape:
            return False
        gaps.append(difference(got, out))
    return gaps[0] < _SAME and gaps[1] > _SEEN


def _kept(
    case: Case, subject: Subject, inputs: Inputs, out: Tensor, name: str, lengths: Tensor
) -> bool:
    """Whether the lengths of one call still have an effect in the next."""
    if not keeps_something(case.text) or not renew(case.session, subject):
        return False
    first = _with_lengths(case, subject, inputs, name, lengths)
    after = call(case.session, subject, inputs)
    renew(case.session, subject)
    if first is None or isinstance(after, Failure) or difference(after, out) < _SAME:
        return False
    evidence = (
        f"After a call with {name} = {lengths.tolist()}, the same texts without {name} give "
        f"another output than a new object, which differs by {difference(after, out):.2g} of its "
        "size."
    )
    case.add("depends-on-earlier-call", evidence)
    return True


def _alone(case: Case, subject: Subject, inputs: Inputs, short: int) -> Tensor | None:
    """The output of the last text without its padding."""
    q, k, v = each(inputs, lambda x: x[-1:, :short].contiguous())
    q = inputs[0][-1:] if subject.separate else q
    sizes = replace(subject.sizes, batch=1)
    got = call(case.session, replace(subject, sizes=sizes), (q, k, v))
    return None if isinstance(got, Failure) else got


def _with_lengths(
    case: Case, subject: Subject, inputs: Inputs, name: str, lengths: Tensor
) -> Tensor | None:
    got = call(case.session, subject, inputs, given={name: lengths})
    return None if isinstance(got, Failure) else got
