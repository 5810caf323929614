"""The softmax, and what happens to its weights before they are multiplied with the values."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from clearhead.checker.diagnosis.attention_step import AttentionStep, cleared
from clearhead.checker.diagnosis.judgement import Expectation, Judgement
from clearhead.checker.diagnosis.program import Values
from clearhead.checker.diagnosis.reading import RESHAPES, Core, Reading, Unreadable
from clearhead.checker.harness.weight_roles import role_of

_SINK = "Each head has a sink: weight may go there instead of to a token."


class WeightCheck(AttentionStep):
    """The weights of each row."""

    def softmax(self, keys: int, queries: int) -> bool:
        """Whether the weights of a row sum to one along the keys."""
        call = self.program.calls[self.core.softmax]
        dim = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else None)
        scores = self.reading.values[self.core.scores]
        weights = self.reading.values[self.core.weights]
        if call.name in ("softmax", "log_softmax") and isinstance(dim, int):
            own = self.reading.values[self.reading.places(self.core.softmax)[0]].ndim
            axis: int | None = dim % own + scores.ndim - own  # batch and queries may be one axis
        else:
            sums = self.reading._sums_to_one
            finite = weights.nan_to_num(0.0)
            axis = next((i for i in (keys, *range(weights.ndim)) if sums(finite, i)), None)
        if axis == keys:
            cut = call.out[0] != self.core.weights  # those of the sink are removed
            if cut and bool((weights.nan_to_num(0.0).sum(keys) < 1 - 1e-6).any()):
                self.verdict.notes.append(_SINK)
            return True
        if axis is None:
            if not self.verdict.findings:  # else there may be no value to tell it by
                self.verdict.doubts.append("the axis of the softmax could not be determined")
            return False
        text = self.reading.text_axis(self.core.scores)
        if axis == queries and self._mixes_queries(keys):
            evidence = (
                f"The softmax runs over axis {axis} of {tuple(scores.shape)}, and the values are "
                f"summed along axis {keys}, the queries."
            )
            self.verdict.add(
                "weights-transposed", evidence, self.program.calls[self.core.mixing].line
            )
            return False
        id = (
            "softmax-over-queries" if axis == queries
            else "softmax-over-batch" if axis == text
            else "softmax-over-heads"
        )  # fmt: skip
        names = {"softmax-over-queries": "queries", "softmax-over-batch": "batch"}
        evidence = (
            f"The softmax runs over the {names.get(id, 'heads')}, axis {axis} of "
            f"{tuple(scores.shape)}; the keys are axis {keys}."
        )
        self.verdict.add(id, evidence, call.line)
        return False

    def by_shape(self) -> None:
        """Judge the softmax if the token axis was lost: values must be summed along its axis."""
        core, scores = self.core, self.reading.values[self.core.scores]
        call = self.program.calls[core.softmax]
        dim = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else None)
        pair = (scores.ndim - 2, scores.ndim - 1)
        kept = [self.reading.follow(core.weights, axis, core.context)[0] for axis in pair]
        if not isinstance(dim, int) or kept.count(None) != 1 or scores.ndim < 3:
            return
        keys, queries = pair[kept.index(None)], pair[1 - kept.index(None)]
        same = self.reading.follow(core.weights, keys, core.mixed.weights) == [keys]
        if same and dim % scores.ndim == queries:
            evidence = f"The softmax runs over axis {queries}, and the values meet axis {keys}."
            self.verdict.add("softmax-over-queries", evidence, call.line)

    def over_everything(self) -> bool:
        """Whether one softmax runs over all pairs of tokens."""
        call = self.program.calls[self.core.softmax]
        scores = self.reading.values[self.core.scores]
        dim = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else None)
        pairs = self.reading.size[0] * self.reading.size[-1]
        if call.name != "softmax" or not isinstance(dim, int) or scores.shape[dim] % pairs:
            return False
        evidence = (
            f"The softmax runs over {scores.shape[dim]} entries, not over the keys of each row."
        )
        self.verdict.add("softmax-over-everything", evidence, call.line)
        return True

    def without_softmax(self, order: tuple[int, int]) -> None:
        """Report what is used in place of a softmax."""
        core, program = self.core, self.program
        weights = torch.stack([core.canonical(v[core.mixed.weights], order) for v in self.runs])
        sums = weights.sum(-1)
        self.verdict.head_dim = core.head_dim
        if not bool(sums.isfinite().all()):
            raise Unreadable("the weights are NaN or infinite")
        if bool((sums - 1).abs().max() < 1e-4):
            if bool((weights < -1e-4).any()):
                evidence = "The weights of a row sum to 1, but some of them are negative."
                self.verdict.add("no-softmax", evidence, core.line)
                return
            raise Unreadable("the weights of a row sum to one, but are no softmax")
        one_more = weights.log() - torch.log1p(-sums)[..., None]  # the scores, if one more is 0
        dots = torch.stack([core.canonical(v[core.dots], order) for v in self.runs])
        ratio = one_more / dots if dots.shape == weights.shape else sums
        if ratio is not sums and bool(((ratio - ratio.median()).abs() < 1e-3).all()):
            evidence = "Each softmax has one more score, of 0. If that is intended, it is right."
            self.verdict.add("unsure", evidence, core.line, "edge")
            self.verdict.question = True
            return
        between = sorted(program.after(core.dots) & program.before(core.mixed.weights))
        named = {program.calls[i].name: program.calls[i] for i in between}
        evidence = (
            f"The weights of a row sum to {float(sums.min()):.3g} to {float(sums.max()):.3g} "
            "instead of 1."
        )
        divided = named.get("div") or named.get("true_divide") or named.get("__itruediv__")
        if "exp" in named and "sum" in named and divided is not None:
            total = weights.sum((-1, -2))
            if bool((total - 1).abs().max() < 1e-4) or bool(
                (weights.sum((1, 2, 3)) - 1).abs().max() < 1e-4
            ):
                self.verdict.add("softmax-over-everything", evidence, divided.line)
            else:
                self.verdict.add("softmax-no-keepdim", evidence, divided.line)
            return
        self.verdict.add("no-softmax", evidence, core.line)

    def _mixes_queries(self, keys: int) -> bool:
        """Whether the axis that the values are summed along belongs to the queries."""
        axes = self.core.axes
        place = axes.index(keys)
        names = self.program.parameters
        roles = []
        for register in self.core.operands:
            roles.append({role_of(names[r]) for r in self.reading.learned(register)} & {"q", "k"})
        if roles[place] and roles[place] != roles[1 - place]:
            return roles[place] == {"q"}
        return place == 0  # queries @ keys, as it is usually written

    def weights(
        self, order: tuple[int, int], scores_order: tuple[int, int], over_keys: bool
    ) -> None:
        """Judge what happens to the weights between the softmax and the values."""
        core, verdict = self.core, self.verdict
        start = torch.stack([core.canonical(v[core.weights], scores_order) for v in self.runs])
        end = torch.stack([core.canonical(v[core.mixed.weights], order) for v in self.runs])
        between = self.program.after(core.weights) & self.program.before(core.mixed.weights)
        names = {self.program.calls[i].name for i in between}
        if core.softmax in between or names & {"softmax", "log_softmax"}:
            line = self._line(between, ("softmax", "log_softmax"))
            verdict.add("softmax-twice", "A softmax is applied to the output of a softmax.", line)
            return
        if start.shape != end.shape:
            verdict.doubts.append("the weights change their shape before they meet the values")
            return
        if not over_keys or torch.equal(start, end):
            return
        fine = start.isfinite() & end.isfinite() & (start > 1e-9)
        ratio = (end / start)[fine]
        line = self._line(between)
        if not ratio.numel():
            return
        kept = ratio[ratio.abs() > 1e-9]
        constant = kept.numel() and float((kept - kept.median()).abs().max()) < 1e-6
        cut = bool((ratio.abs() < 1e-9).any())
        rows = end.sum(-1)
        sums_to_one = bool((rows[rows.isfinite()] - 1).abs().max() < 1e-4)
        if sums_to_one:
            return
        if not constant:
            if self._to_sink(start, end):
                verdict.notes.append(_SINK)
                return
            verdict.doubts.append("the weights pass through a function that is not known")
            return
        gain = float(kept.median())
        if cut:
            evidence = (
                "Weights are set to zero after the softmax, and the rows are not divided by what "
                f"is left: the smallest sum is {cleared(rows.min()):.2g}."
            )
            verdict.add("mask-after-softmax", evidence, line)
        if abs(gain - 1) > 1e-6:
            root = core.head_dim**-0.5
            evidence = f"The weights are multiplied by {gain:.4g} after the softmax."
            after = abs(gain / root - 1) < 1e-4 or abs(gain * math.sqrt(self._width()) - 1) < 1e-4
            rate = self.expected.dropout
            twice = 0 < rate < 1 and abs(gain * (1 - rate) - 1) < 1e-4
            down = 0 < rate < 1 and abs(gain - (1 - rate)) < 1e-6
            id = (
                "dropout-rescaled-twice"
                if twice
                else "dropout-scaled-down"
                if down
                else "wrong-gain"
            )
            verdict.add("scale-after-softmax" if after else id, evidence, line)

    def _to_sink(self, start: Tensor, end: Tensor) -> bool:
        """Whether each row of weights is multiplied by one learned factor, less than one."""
        learned = self.reading.learned
        if learned(self.core.mixed.weights) <= learned(self.core.weights):
            return False
        share = end.sum(-1, keepdim=True)
        inside = bool(((share > 0) & (share < 1)).all())
        return inside and float((end - start * share).abs().max()) < self.close

    def groups(self) -> None:
        """Check that keys and values, if shared, are shared by the same heads."""
        reading, core = self.reading, self.core
        shared = []
        for register in (core.operands[0], core.operands[1], core.mixed.values):
            axis = reading.token_axis(register)
            if axis is None:
                return
            tensor = reading.values[register]
            heads = [
                a
                for a in range(tensor.ndim)
                if tensor.shape[a] == self.verdict.heads
                and a not in (axis, reading.text_axis(register))
            ]
            if len(heads) != 1 or self.verdict.heads == 1:
                return
            rows = tensor.movedim(heads[0], 0).flatten(1)
            shared.append((rows[:, None] == rows[None]).all(-1))
        queries, keys, values = shared
        some = [m for m in (keys, values) if int(m.sum()) > len(m)]
        if len(some) == 2 and not torch.equal(keys, values):
            evidence = "Two heads that share their keys do not share their values."
            self.verdict.add("kv-heads-do-not-match", evidence, None)
        elif len(some) == 1 and int(queries.sum()) == len(queries):
            what = "values" if some[0] is values else "keys"
            other = "keys" if what == "values" else "values"
            evidence = f"Some heads share their {what}, but none shares its {other}."
            self.verdict.doubts.append(evidence)


def judge_without_softmax(
    reading: Reading, runs: list[Values], verdict: Judgement, expected: Expectation
) -> None:
    """Judge attention in which products of two tokens mix the values without a softmax.

    Raises:
        Unreadable: If it is not attention of this kind.
    """
    for index, call in enumerate(reading.program.calls):
        if not reading.is_product(index):
            continue
        core = Core(reading, index, call.out[0], call.out[0])
        try:
            axes = core.weight_axes(core.axes)
            summed, _ = core.mixes_along(axes)
        except Unreadable:
            continue
        if summed is not None:
            step = WeightCheck(reading, core, runs, verdict, expected)
            step.without_softmax((axes[1 - summed], axes[summed]))
            return
    _judge_one_token(reading, verdict)


def _judge_one_token(reading: Reading, verdict: Judgement) -> None:
    """Report a softmax of products within one token: it compares heads, not tokens."""
    program = reading.program
    for index, call in enumerate(program.calls):
        if call.name != "softmax" or not reading.depends(call.out[0]):
            continue
        before = sorted(program.before(call.out[0]))
        products = [
            i
            for i in before
            if program.calls[i].name in ("matmul", "bmm", "einsum", "__matmul__")
            and sum(reading.depends(r) for r in reading.places(i)) == 2
        ]
        splits = [program.calls[i] for i in before if program.calls[i].name in RESHAPES]
        if products and splits and index in program.before(reading.output):
            evidence = "The scores compare the heads of one token with each other, not tokens."
            verdict.add("split-without-transpose", evidence, splits[-1].line)
            return
    raise Unreadable("no softmax over scores was found")
