"""Padding: tokens that are marked as padding or lie beyond a sequence's length must not be seen.

A token mask is compared with correct attention of the class's form. Lengths need no form: each
sequence must give the same output as alone, without its padding.
"""

import re
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clearhead.checker.diagnosis import probes
from clearhead.checker.diagnosis.lengths import LEAST, PATIENCE, longest, of_one_length
from clearhead.checker.diagnosis.reference import AnyReference
from clearhead.checker.harness.axis_orders import HEADS_READY
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.comparison import difference, percent
from clearhead.checker.harness.subject import Inputs, Subject, call, each, inputs_for, renew
from clearhead.checker.sandbox.submission import Parameter
from clearhead.checker.source.class_text import Text, keeps_something, used_by
from clearhead.checker.source.stated_arguments import stated_marks

_MASK = re.compile(r"mask|pad|keep|valid|real")
_KEYS_MASK = r"(context|memory|key|kv|src|source|enc\w*|cond)_(\w+_)?mask"
_NO_MASK = (
    r"cache|past|state|pos|layer|return|need|output|use|train|context|memory$|bias|scale|head"
)
_LENGTHS = re.compile(r"^(\w*_)?(valid_?lens?|valid_?lengths?|lengths|lens|seq_?lens)$")
# Code that processes the keys in pieces: if a whole piece is padding, a running maximum is -inf,
# and -inf minus -inf is NaN.
_PIECES = r"for .*range\([^)]*,[^)]*,|\.split\(|chunk|block|tile"
# The source says that padding is at the end, and nowhere else.
_RIGHT_ONLY = r"(?is)\A(?!.*\bleft\b).*(right[- ]pad|pad\w* (only )?(on|at|to) the (right|end))"
_SHORT = 9  # tokens: no piece is this small
_SAME, _SEEN = 1e-6, 1e-3


@dataclass(frozen=True, eq=False)
class PaddingCheck:
    """A check of one class with padding.

    Args:
        case: The class.
        subject: How it is called.
        inputs: The inputs of the plain run.
        out: The output of the plain run.
        reference: Correct attention of the same form.
    """

    case: Case
    subject: Subject
    inputs: Inputs
    out: Tensor
    reference: AnyReference

    def judge(self) -> set[str]:
        """Check every argument that may be a token mask or lengths.

        Returns:
            The arguments that are token masks.
        """
        known = {name for name in self._may_be_masks() if self._is_mask(name)}
        self._long(known)
        self._lengths()
        return known

    def _given(self, name: str, value: Tensor, inputs: Inputs | None = None) -> Tensor | None:
        """The output with one additional argument; None if it does not run."""
        given = self.inputs if inputs is None else inputs
        got = call(self.case.session, self.subject, given, given={name: value})
        return got if isinstance(got, Tensor) else None

    # Token masks, (batch, tokens).

    def _may_be_masks(self) -> list[str]:
        """The arguments that may be a token mask, by their names and defaults."""
        subject, mask = self.subject, self.reference.mask
        if subject.axes not in ("batch", "first"):
            return []
        if mask not in ("none", "causal") and not mask.startswith("window"):
            return []  # what the form itself hides is unknown
        fed = {name for name, role in subject.feed if role not in ("mask", "marks")}
        must = {name for name, role in subject.feed if role == "marks"}
        of_keys = [p.name for p in self.case.info.forward if re.fullmatch(_KEYS_MASK, p.name)]
        found = []
        for parameter in self.case.info.forward:
            name = parameter.name.lower()
            usable = parameter.name in must or (parameter.has_default and parameter.default is None)
            if parameter.name in fed or re.search(_NO_MASK, name):
                continue
            if re.match(r"q(uery)?_|.*_q$", name) or (subject.polarity and "mask" in name):
                continue
            if subject.separate and name == "mask" and of_keys:
                continue  # it marks the queries
            found += [parameter.name] if usable or _MASK.search(name) else []
        return found

    def _marked(
        self,
        name: str,
        marks: Tensor,
        inputs: Inputs | None = None,
        *,
        keys_first: bool = False,
    ) -> Tensor | None:
        """The output when one argument marks tokens, as (batch, tokens) or with more axes.

        Args:
            name: The argument.
            marks: The marked tokens, (batch, tokens).
            inputs: Inputs other than those of the plain run.
            keys_first: Mark the keys as for scores of shape (keys, queries).
        """
        axes = self.subject.axes
        marks = marks[:1] if axes in HEADS_READY else marks  # the batch axis holds heads
        shaped = [marks[:, None, :, None]] if keys_first else [marks, marks[:, None, None, :]]
        shaped += [marks.T.contiguous()] if axes == "first" else []
        dtypes = (torch.bool, torch.int64, self.subject.dtype)
        answers = (self._given(name, one.to(dtype), inputs) for one in shaped for dtype in dtypes)
        return next((got for got in answers if got is not None), None)

    def _is_mask(self, name: str) -> bool:
        """Whether the argument is a token mask; if so, it is judged."""
        case, out = self.case, self.out
        batch, tokens = self.inputs[0].shape[:2]
        real = torch.ones(batch, tokens, dtype=torch.bool)
        hidden = [tokens - 2, tokens - 1] if self.reference.mask == "none" else [1, 3]
        real[-1, hidden] = False  # a causal mask hides padding at the end anyway
        visible = real[:, None, None, :].expand(batch, 1, out.shape[1], tokens)
        right = self.reference.output(self.inputs, visible)
        if right is None and self.reference.mask == "none":
            right = self._without_last()
        if right is None or right.shape != out.shape:
            return False
        rows = real if out.shape[:2] == real.shape else torch.ones(out.shape[:2], dtype=torch.bool)
        answers = [self._marked(name, marks) for marks in (real, ~real)]
        runs = [got for got in answers if got is not None and got.shape == out.shape]
        if len(runs) < 2 or all(difference(got, out) < 1e-12 for got in runs):
            return False
        keeps, hides = runs
        known = any(f.id in ("mask-inverted", "sdpa-mask-polarity") for f in case.findings)
        if difference(hides[rows], right[rows]) < 1e-5:
            if not known and stated_marks(case.text.source, name) == "keep":
                case.add(
                    "padding-inverted",
                    f"The source says that {name} marks the real tokens; when it does, the output "
                    "is what you get when only the padding is seen.",
                )
            return True
        if difference(keeps[rows], right[rows]) < 1e-5:
            severity = None if known else _if_padding_is_marked(case.text, name)
            if severity is not None:
                case.add(
                    "padding-inverted",
                    f"With {name} True at two padding tokens, the output is what you get when only "
                    "the padding is seen; with True at the real tokens, it is right.",
                    severity=severity,
                )
            return True
        idle = all(difference(got, out) < 1e-5 for got in runs)  # a constant added to a whole row
        for got, marks in zip(runs, (real, ~real), strict=True) if rows is real else ():
            if difference(got[real], out[real]) > 1e-5:
                continue
            still = difference(got[~real], out[~real]) < 1e-5
            if still and not (idle and _MASK.search(name.lower())):
                continue
            turned = self._marked(name, marks, keys_first=True)
            if turned is not None and difference(turned[real], right[real]) < 1e-5:
                return True  # its scores are (keys, queries), and so are its masks
            others = self.inputs
            for token in (~real[-1]).nonzero().flatten().tolist():
                others = probes.changed(others, -1, token)
            moved = self._moved(name, marks, real, others)
            if moved > _SEEN:
                zeros = bool((got[~real] == 0).all())
                only = "no output is" if idle else "only the outputs at the padding itself are"
                evidence = (
                    f"With {name} given, changing two padding tokens changed the output of a real "
                    f"one by {moved:.2g}; {only} changed by {name}."
                )
                case.add("padding-on-queries", evidence, severity="edge" if zeros else "")
                return True
        if self._hides_in_others(name, runs):
            return True
        return _MASK.search(name) is not None and self._not_hidden(name, real)

    def _without_last(self) -> Tensor | None:
        """The output if the last two keys of the last sequence are removed."""
        q, k, v = each(self.inputs, lambda x: x[:, :-2].contiguous())
        q = self.inputs[0] if self.subject.separate else q
        got, right = call(self.case.session, self.subject, (q, k, v)), self.out.clone()
        if not isinstance(got, Tensor) or got.shape[::2] != right.shape[::2]:
            return None
        right[-1, : got.shape[1]] = got[-1]
        return right

    def _hides_in_others(self, name: str, runs: list[Tensor]) -> bool:
        """Whether the padding of the last sequence hides tokens of the others, which have none."""
        for got, value in zip(runs, (True, False), strict=True):
            calm = self._marked(name, torch.full(self.inputs[0].shape[:2], value))
            if calm is None or difference(calm, self.out) > 1e-5:
                continue  # these marks mean something else
            moved = difference(got[:-1], self.out[:-1])
            if moved > _SEEN:
                evidence = (
                    f"With {name} given, the padding of the last sequence changed the output "
                    f"of another one, which has none, by {percent(moved)}."
                )
                self.case.add("padding-in-other-texts", evidence)
                return True
        return False

    def _not_hidden(self, name: str, real: Tensor) -> bool:
        """Whether real tokens still see padding, though marking it changes the output.

        If all tokens are real, a token mask changes nothing, which reveals which of its two
        values marks them. If neither value changes anything, it is added to the scores.
        """
        if self.case.wrong:
            return False  # that may be the reason
        calm = []
        for marks in (real, ~real):
            got = self._marked(name, torch.full_like(real, bool(marks[0, 0])))  # all are real
            calm += [marks] if got is not None and difference(got, self.out) < 1e-5 else []
        moved = []
        for part in {id(x): x for x in self.inputs}.values():  # the marks may be for either input
            other = probes.changed((part, part, part), -1, slice(None))[0]
            other = torch.where(real[..., None], part, other)
            q, k, v = (other if x is part else x for x in self.inputs)
            plain = call(self.case.session, self.subject, (q, k, v))
            seen = isinstance(plain, Tensor) and difference(plain[real], self.out[real]) >= _SEEN
            if seen and len(calm) == 1:  # else no other token sees this input
                moved.append(self._moved(name, calm[0], real, (q, k, v)))
        if not moved or min(moved) <= _SEEN:
            return False
        evidence = (
            f"With {name} given, changing two padding tokens changed the output of a real one "
            f"by {min(moved):.2g}."
        )
        self.case.add("padding-not-hidden", evidence)
        return True

    def _moved(self, name: str, marks: Tensor, real: Tensor, others: Inputs) -> float:
        """How much other inputs change the outputs of real tokens."""
        before, after = self._marked(name, marks), self._marked(name, marks, others)
        if before is None or after is None or before.shape != after.shape:
            return 0.0
        return float((before - after)[real].abs().max())

    # Sequences that begin with a lot of padding.

    def _long(self, known: set[str]) -> None:
        """Check that real tokens do not give NaN after padding that is longer than a piece."""
        case, subject = self.case, self.subject
        if subject.axes not in ("batch", "first", *HEADS_READY) or of_one_length(subject):
            return
        pieces = any(part.has(_PIECES) for part in (case.text, *used_by(case.text)))
        if not pieces or self.reference.mask not in ("none", "causal"):
            return
        optional = {p.name for p in case.info.forward if p.has_default and p.default is None}
        began = time.monotonic()
        call(case.session, subject, inputs_for(subject, min(67, longest(case, subject))))
        if (time.monotonic() - began) * (LEAST / 67) ** 2 > PATIENCE:
            return
        for name in sorted(known | {name for name in optional if "pad" in name.lower()}):
            fitting = (hides for hides in (True, False) if self._lost(name, _SHORT, hides) == 0)
            tokens = min(longest(case, subject), LEAST)
            lost = next((self._lost(name, tokens, hides) for hides in fitting), None)
            if lost:
                evidence = (
                    f"With {name} given, a sequence of {tokens} tokens that begins with "
                    f"{tokens - 5} padding tokens has {lost} real tokens whose output is "
                    f"NaN; with {_SHORT - 5} padding tokens out of {_SHORT}, all is right."
                )
                only = re.search(_RIGHT_ONLY, case.text.source)
                case.add("padding-gives-nan", evidence, severity="edge" if only else "")

    def _lost(self, name: str, tokens: int, hides: bool) -> int | None:
        """How many real tokens give NaN; None if the marks mean something else or it does not run.

        Args:
            name: The argument that takes the marks.
            tokens: The length of the sequence; its last five tokens are real.
            hides: Whether True marks the padding.
        """
        inputs = inputs_for(self.subject, tokens)
        real = torch.ones(inputs[0].shape[:2], dtype=torch.bool)
        real[:, :-5] = False
        got = self._marked(name, ~real if hides else real, inputs)
        visible = real[:, None, None, :].expand(len(real), 1, tokens, tokens)
        right = None if got is None else self.reference.output(inputs, visible)
        if got is None or right is None or right.shape != got.shape:
            return None
        fine: Tensor = got[real].isfinite().all(-1)
        if fine.any() and difference(got[real][fine], right[real][fine]) > 1e-4:
            return None
        return int((~fine).sum())

    # Lengths, (batch,).

    def _lengths(self) -> None:
        """Check the class with lengths, if it takes them."""
        case, subject, inputs, out = self.case, self.subject, self.inputs, self.out
        if subject.axes not in ("batch", "first") or len(out) < 2:
            return
        tokens = inputs[0].shape[1]
        lengths = torch.full([len(out)], tokens)
        lengths[-1] = short = tokens - 2
        name = next((p.name for p in case.info.forward if self._takes_lengths(p)), "")
        if not name or self._kept(name, lengths):
            return
        got = self._given(name, lengths)
        if got is None or got.shape != out.shape:
            return
        given = f"With {name} = {lengths.tolist()} for {tokens} tokens"
        apart = float((got[:-1] - out[:-1]).abs().max())
        if apart > _SEEN:
            evidence = f"{given}, the sequence of {tokens} tokens, which has no padding, changed"
            case.add("padding-in-other-texts", f"{evidence} by {apart:.2g}.")
        alone = self._alone(short)
        rows = short if alone is not None and alone.shape[1] == short else tokens
        if alone is None or float((got[-1:, :rows] - alone).abs().max()) < _SAME:
            return
        others = probes.changed(inputs, -1, slice(short, None))
        if subject.separate:
            others = (inputs[0], *others[1:])  # the queries have no padding
        after = self._given(name, lengths, others)
        moved = 0.0 if after is None else float((after - got)[-1, :rows].abs().max())
        if moved > _SEEN:
            evidence = f"{given}, changing tokens beyond the length changed the output of a real"
            case.add("padding-not-hidden", f"{evidence} token by {moved:.2g}.")

    def _takes_lengths(self, parameter: Parameter) -> bool:
        """Whether an argument is lengths: by its name, or because full lengths change nothing."""
        case, subject, out, name = self.case, self.subject, self.out, parameter.name
        if _LENGTHS.match(name.lower()):
            return True
        fed = {name for name, _ in subject.feed}
        if name in fed or not parameter.has_default or parameter.default is not None:
            return False
        tokens = self.inputs[0].shape[1]
        gaps = []
        for length in (tokens, tokens - 2):
            if keeps_something(case.text) and not renew(case.session, subject):
                return False
            got = self._given(name, torch.full([len(out)], length))
            if got is None or got.shape != out.shape:
                return False
            gaps.append(difference(got, out))
        return gaps[0] < _SAME and gaps[1] > _SEEN

    def _kept(self, name: str, lengths: Tensor) -> bool:
        """Whether the lengths of one call still affect the next."""
        case, subject = self.case, self.subject
        if not keeps_something(case.text) or not renew(case.session, subject):
            return False
        first, after = self._given(name, lengths), call(case.session, subject, self.inputs)
        renew(case.session, subject)
        if first is None or not isinstance(after, Tensor) or difference(after, self.out) < _SAME:
            return False
        evidence = (
            f"After a call with {name} = {lengths.tolist()}, the same input without {name} gives "
            f"an output that differs by {percent(difference(after, self.out))} from that of a new "
            "object."
        )
        case.add("depends-on-earlier-call", evidence)
        return True

    def _alone(self, short: int) -> Tensor | None:
        """The output of the last sequence without its padding."""
        q, k, v = each(self.inputs, lambda x: x[-1:, :short].contiguous())
        q = self.inputs[0][-1:] if self.subject.separate else q
        one = replace(self.subject, sizes=replace(self.subject.sizes, batch=1))
        got = call(self.case.session, one, (q, k, v))
        return got if isinstance(got, Tensor) else None


_REAL = r"(?i)\b(1|true|ones?)\b.{0,30}\b(real|valid|keep|tokens?|not pad)"


def _if_padding_is_marked(text: Text, name: str) -> str | None:
    """How severe it is that True does not mark the padding; None if nothing says that it should.

    The source may say so, or the name: PyTorch's own is clear, others are used for both meanings.
    """
    stated = stated_marks(text.source, name)
    if stated == "hide":
        return ""
    alone = "pad" in name.lower() and not stated and not re.search(_REAL, text.source)
    return ("" if re.search(r"padding|is_pad", name.lower()) else "edge") if alone else None
