"""Correct attention of the form that a class has, for any length and with hidden keys.

The output of the class at other lengths, with padding or with a mask is compared with this. It is
the class's own recorded pass, with its attention weights replaced by those of correct attention.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Self

import torch
from torch import Tensor

from clearhead.checker.diagnosis.plain_form import PlainForm
from clearhead.checker.diagnosis.program import NotRunnable, Program, Values
from clearhead.checker.diagnosis.reading import HIDDEN, Core, Unreadable, closeness
from clearhead.checker.diagnosis.recorded_pass import Examined, recorded
from clearhead.checker.diagnosis.whole_attention import found_again, visible_pairs
from clearhead.checker.harness.axis_orders import ONE_TEXT, taken
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.subject import Inputs, Subject, each


@dataclass(frozen=True, eq=False)
class _Layer:
    """One attention of the recorded pass: where its tensors are, and its scale.

    Args:
        core: The attention.
        summed: Which of its two token axes is that of the keys.
        scale: The factor on the scores, one per head or one for all; None if the scores undergo
            more than that and are used as they are.
        biased: Whether something is added to visible scores.
        sink: Whether a row's weights sum to less than one, because a sink takes the rest.
    """

    core: Core
    summed: int
    scale: Tensor | None
    biased: bool
    sink: bool = False

    def changed(
        self, program: Program, values: Values, mask: str, visible: Tensor | None
    ) -> Values:
        """The weights of correct attention in another pass of the same class.

        Raises:
            Unreadable: If that pass makes different calls.
        """
        core, old = self.core, self.core.reading.program
        place = found_again(old, program, core.weights)
        if place != found_again(old, program, core.weights, from_end=True):
            raise Unreadable("it makes different calls at this length")
        read = {r: values[found_again(old, program, r)] for r in (core.scores, core.dots)}
        read[core.weights] = values[place]
        return {place: self.right_weights(read, mask, visible)}

    def right_weights(self, values: Values, mask: str, visible: Tensor | None) -> Tensor:
        """The weights of correct attention for the queries and keys as they are."""
        core = self.core
        first, second = core.known_dot_axes
        axes = _rows_first(core, self.summed)
        of_dots = (second, first) if self.summed == 0 else (first, second)
        scores = core.canonical(values[core.scores], axes).to(torch.float64)
        if self.scale is None:
            return self._restored(scores, scores, values, mask, visible)
        dots = core.canonical(values[core.dots], of_dots).to(torch.float64)
        if scores.shape[1:] != dots.shape[1:] or scores.shape[0] % dots.shape[0]:
            raise Unreadable("the scores change their shape before the softmax")
        dots = dots.repeat_interleave(scores.shape[0] // dots.shape[0], 0)
        if scores.shape[0] % len(self.scale):
            raise Unreadable("the number of heads changes")
        scale = self.scale.repeat(scores.shape[0] // len(self.scale))[:, None, None]
        right = scale * dots
        if self.biased:
            bias = scores - right
            right = right + bias.masked_fill(~(bias > HIDDEN), 0.0)
        return self._restored(right, scores, values, mask, visible)

    def _restored(
        self, right: Tensor, scores: Tensor, values: Values, mask: str, visible: Tensor | None
    ) -> Tensor:
        """The weights for these scores, in the shape of the class's own weights."""
        core = self.core
        axes = _rows_first(core, self.summed)
        keep = visible_pairs(mask, *right.shape[1:])
        if keep is not None:
            right = right.masked_fill(~keep, -torch.inf)
        if visible is not None:
            right = right.masked_fill(~self._per_group(visible, right), -torch.inf)
        weights = right.softmax(-1).nan_to_num(0.0)  # if nothing is visible, nothing is mixed
        own = core.canonical(values[core.weights], axes).to(torch.float64)
        if self.sink and visible is None:
            weights = weights * own.sum(-1, keepdim=True)
        elif self.sink:
            raise Unreadable("how much weight a sink takes beside hidden keys is not known")
        if keep is not None and self.scale is None and bool((scores[:, keep] < HIDDEN).any()):
            raise Unreadable("scores that should be visible are hidden")
        like = values[core.weights]
        return core.restored(weights.to(like.dtype), like, axes)

    def _per_group(self, visible: Tensor, scores: Tensor) -> Tensor:
        if visible.ndim == 2:
            return visible
        owners = self.core.texts(_rows_first(self.core, self.summed))
        if len(scores) == len(owners):
            return visible[owners, 0]
        raise Unreadable("the batch axis is not known")


@dataclass(frozen=True, eq=False)
class Reference:
    """The class's own recorded pass, with the weights of correct attention.

    Args:
        case: The class.
        subject: How it is called.
        mask: What is hidden: "none", "causal", "window5", "band5", or the name of another pattern.
        right: A recorded pass that was found to be right.
        layers: Its attentions.
    """

    case: Case
    subject: Subject
    mask: str
    right: Examined
    layers: tuple[_Layer, ...]

    @classmethod
    def of(cls, case: Case, subject: Subject, right: Examined) -> Self:
        """The reference from a pass that was read and found to be right.

        Raises:
            Unreadable: If its values do not determine what it computes on other inputs.
        """
        cores = () if right.whole is not None else right.reading.cores
        layers = tuple(_layer(core, right.runs, subject) for core in cores)
        return cls(case, subject, right.steps.mask or "none", right, layers)

    def with_mask(self, mask: str) -> Self:
        """The same form with another mask."""
        return replace(self, mask=mask)

    def output(
        self, inputs: Inputs, visible: Tensor | None = None, *, own_mask: bool = True
    ) -> Tensor | None:
        """The output of the class if its weights are those of correct attention.

        Args:
            inputs: The inputs of queries, keys and values, each (batch, tokens, d_in).
            visible: Further keys are hidden where this is False: (batch, 1, tokens, tokens) or
                (tokens, tokens).
            own_mask: Whether the form's own mask applies too.

        Returns:
            The output, (batch, tokens, d) in float64; None if it cannot be determined, because
            the class runs other code at these sizes than was read.
        """
        mask = self.mask if own_mask else "none"
        if mask == "other" or (self.subject.polarity and not own_mask):
            return None
        if mask != self.mask and any(layer.scale is None for layer in self.layers):
            return None  # its own mask cannot be removed from scores that are not linear
        texts = [inputs]
        if self.subject.axes in ONE_TEXT:
            rows = [itemgetter(slice(row, row + 1)) for row in range(len(inputs[0]))]
            texts = [each(inputs, row) for row in rows]
        try:
            outs = [self._one(text, mask, visible) for text in texts]
        except (Unreadable, NotRunnable, RuntimeError, TypeError, IndexError, KeyError):
            return None
        if self.subject.axes in ONE_TEXT:
            outs = [out.reshape(len(inputs[0][0]), -1) for out in outs]
            return torch.stack(outs).to(torch.float64)
        return taken(outs[0].to(torch.float64), self.subject.axes)

    def _one(self, inputs: Inputs, mask: str, visible: Tensor | None) -> Tensor:
        program, output, _ = recorded(self.case, self.subject, inputs)
        values = program.run()
        changed = self._changed(program, values, mask, visible)
        return program.again(values, changed).get(output, values[output])

    def _changed(
        self, program: Program, values: Values, mask: str, visible: Tensor | None
    ) -> Values:
        """The registers of correct attention in another pass of the class."""
        changed: Values = {}
        try:
            for layer in self.layers:
                changed |= layer.changed(program, values, mask, visible)
        except Unreadable:  # at this length, it is split into other pieces
            changed = {}
        if not changed:
            whole = self.right.as_whole
            if whole is None:
                raise Unreadable("it makes different calls at this length")
            changed = whole.changed(program, values, mask, visible)
        return changed


def _layer(core: Core, runs: list[Values], subject: Subject) -> _Layer:
    weight_axes = core.weight_axes(core.axes)
    summed, _ = core.mixes_along(weight_axes)
    if summed is None:
        raise Unreadable("how the weights meet the values could not be read")
    sums = core.canonical(runs[0][core.weights], _rows_first(core, summed)).sum(-1)
    sink = bool((sums < 1 - 1e-6).any())
    try:
        measured = core.scale(runs)
    except Unreadable:
        return _Layer(core, summed, None, False, sink)
    if measured is None:  # a cap, or several products
        return _Layer(core, summed, None, False, sink)
    factor, added = measured
    filled = (factor.abs() < 1e-12) & (added < -5)  # with a value that is not low enough
    hidden = (added < HIDDEN) | filled
    a = factor.masked_fill(hidden, torch.nan).flatten(1)
    usual = a.nanmedian(1).values
    if not usual.isfinite().all():
        raise Unreadable("a head sees nothing")
    near = 10 * closeness(runs[0][core.scores])
    if bool(((a - usual[:, None]).abs() > near * usual.abs()[:, None]).any()):
        raise Unreadable("scores of one head are scaled by different numbers")
    if float((usual - usual[0]).abs().max()) < near * float(usual[0].abs()):
        scale = usual[:1]
    else:
        batch = 1 if subject.axes in ONE_TEXT else subject.sizes.batch
        per_text = usual.reshape(batch, -1)
        if bool(((per_text - per_text[0]).abs() > near).any()):
            raise Unreadable("the scale depends on the input")
        scale = per_text[0]
    biased = bool((added.masked_fill(hidden, 0.0).abs() > near).any())
    return _Layer(core, summed, scale, biased, sink)


def _rows_first(core: Core, summed: int) -> tuple[int, int]:
    """The axes of queries and keys."""
    return core.axes[1 - summed], core.axes[summed]


AnyReference = Reference | PlainForm
