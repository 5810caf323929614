"""Attention that pools: all tokens of a sequence become one vector, a weighted mean.

A score may be any function of its token, so no step is compared. But if the output is a weighted
mean whose weights depend on one token each, the outputs for pairs of tokens determine all weights,
and with them the output for any sequence. Each output feature may belong to a head of its own.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.checker.diagnosis import probes
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.comparison import difference, percent
from clearhead.checker.harness.subject import Inputs, Subject, call
from clearhead.checker.report import Form, Report
from clearhead.checker.source.class_text import dropped_mask

POOLS = "it pools the tokens"
_TOKENS = 5  # the number of tokens used
_REAL = 3  # real tokens, where the others are padding
_SAME = 1e-6
_NEIGHBOURS = re.compile(r"LSTM|GRU|RNN|Conv\dd|Multihead|Transformer|Embedding")
_NO_MASK = "The mask was not checked: no usual meaning of it explains the output."
_MEAN = "a mean of all tokens whose weights depend on one token each, and sum to one"


@dataclass(frozen=True)
class _Pooled:
    """A class that pools.

    Args:
        case: The class.
        subject: How it is called.
        inputs: The inputs of the plain run.
    """

    case: Case
    subject: Subject
    inputs: Inputs

    def of(self, tokens: Sequence[int], given: dict[str, object] | None = None) -> Tensor | None:
        """The output for some tokens of each sequence, (batch, width)."""
        x = self.inputs[0][:, list(tokens)].contiguous()
        got = call(self.case.session, self.subject, (x, x, x), given=given)
        return got[:, 0] if isinstance(got, Tensor) else None

    def weights(self) -> tuple[Tensor, Tensor] | None:
        """The token weights, relative to that of the first, and the output for each token alone.

        None if the class computes something else.
        """
        alone = [self.of([token, token]) for token in range(_TOKENS)]
        pairs = [self.of([0, token]) for token in range(1, _TOKENS)]
        found = [one for one in (*alone, *pairs) if one is not None and one.isfinite().all()]
        if len(found) < len(alone) + len(pairs):
            return None
        values, means = torch.stack(found[:_TOKENS]), torch.stack(found[_TOKENS:])
        others = (values[0] - means) / (means - values[1:])
        weights = torch.cat([torch.ones_like(values[:1]), others])
        return (weights, values) if bool((weights > 0).all()) and weights.isfinite().all() else None


def judge_pooling(case: Case, subject: Subject, inputs: Inputs, out: Tensor) -> Report:
    """Judge a class that gives one vector for each sequence.

    Args:
        case: The class.
        subject: How it is called.
        inputs: Its inputs.
        out: Its output, (batch, 1, width).
    """
    pooled = _Pooled(case, subject, inputs)
    case.form = Form(causal="no", extra=(POOLS,))
    leak = probes.batch_leak(case.session, subject, inputs, out)
    if leak > _SAME:
        evidence = f"Changing sequence 0 changed the output of another one by {leak:.2g}."
        id = "softmax-over-batch" if case.text.uses("softmax( Softmax(") else "attends-across-batch"
        case.add(id, evidence)
        return case.report()
    if any(map(_NEIGHBOURS.search, subject.built.modules.values())):
        return case.unsure(f"{POOLS.capitalize()}, and other layers let tokens see each other.")
    if _summed(pooled):
        return case.report()
    found = pooled.weights()
    whole, picked = pooled.of(range(_TOKENS)), pooled.of([3, 1, 4])
    if found is None or whole is None or picked is None:
        return case.unsure(f"{POOLS.capitalize()}, but its output is not {_MEAN}.")
    weights, values = found
    gaps = [
        difference(got, _mean(weights[rows], values[rows]))
        for got, rows in ((whole, [*range(_TOKENS)]), (picked, [3, 1, 4]))
    ]
    if max(gaps) > _SAME:
        says = f"{POOLS.capitalize()}, but its output is not {_MEAN}"
        return case.unsure(f"{says}: it differs from one by {percent(max(gaps))}.")
    if float((weights - 1).abs().max()) < _SAME:
        case.add("unexplained", "Every token has the same weight, whatever it holds.")
        return case.report()
    _masks(pooled, weights, values)
    case.tested = f"tested as pooling: {_MEAN}"
    return case.report()


def _mean(weights: Tensor, values: Tensor) -> Tensor:
    """The weighted mean of (tokens, batch, width)."""
    return (weights * values).sum(0) / weights.sum(0)


def _summed(pooled: _Pooled) -> bool:
    """Whether equal tokens are summed despite a softmax, which then runs over another axis."""
    two, three = pooled.of([0, 0]), pooled.of([0, 0, 0])
    if two is None or three is None or not pooled.case.text.uses("softmax( Softmax("):
        return False
    if difference(three, two * 1.5) > _SAME or difference(three, two) < _SAME:
        return False
    evidence = (
        "With three equal tokens, the output is 1.5 times that with two: the weights of the tokens "
        "do not sum to one, so the softmax does not run over the tokens."
    )
    pooled.case.add("softmax-over-queries", evidence)
    return True


def _masks(pooled: _Pooled, weights: Tensor, values: Tensor) -> None:
    """Check that arguments that mark padding also hide it."""
    case = pooled.case
    fed = {name for name, role in pooled.subject.feed if role == "x"}
    names = [p.name for p in case.info.forward if re.search(r"mask|pad", p.name.lower())]
    texts = len(pooled.inputs[0])
    real = (torch.arange(_TOKENS) < _REAL).expand(texts, -1)
    right = _mean(weights[:_REAL], values[:_REAL])
    not_one = (weights[:_REAL] * values[:_REAL]).sum(0) / weights.sum(0)
    everything = _mean(weights, values)
    for name in [n for n in names if n not in fed]:
        dtypes = (torch.bool, torch.int64, pooled.subject.dtype)
        marks = [one.to(dtype) for one in (real, ~real) for dtype in dtypes]
        marks += [one[..., None] for one in marks]
        answers = [pooled.of(range(_TOKENS), {name: one.contiguous()}) for one in marks]
        runs = [one for one in answers if one is not None and one.shape == right.shape]
        if not runs or any(difference(one, right) < _SAME for one in runs):
            continue
        if all(difference(one, everything) < _SAME for one in runs):
            line = dropped_mask(case.text)
            id = "mask-ignored" if line is None else "mask-result-dropped"
            case.add(id, f"{name} changes nothing.", line)
        elif any(difference(one, not_one) < _SAME for one in runs):
            evidence = "Hidden tokens lose their weight after the softmax, so the rest sums to less"
            case.add("mask-after-softmax", f"With {name} given: {evidence} than one.")
        else:
            case.notes.append(_NO_MASK)
