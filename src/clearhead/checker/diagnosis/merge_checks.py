"""Whether the output at each token comes from that token and includes all heads."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from clearhead.checker.diagnosis.attention_step import AttentionStep
from clearhead.checker.diagnosis.judgement import Judgement
from clearhead.checker.diagnosis.reading import RESHAPES, Reading, changed_at, differs

_CUTS_OFF = {"relu", "relu_", "relu6", "threshold", "clamp", "clamp_min"}
_OVER_TOKENS = {"group_norm", "instance_norm", "batch_norm"}
_NORMS = {"layer_norm", "rms_norm", "group_norm", "batch_norm", "rsqrt"}


class MergeCheck(AttentionStep):
    """The path from the mixed values to the output."""

    def merge(self, rows: int | None) -> bool:
        """Whether the output at each token comes from that token's row and includes all heads."""
        reading, core, verdict = self.reading, self.core, self.verdict
        output = reading.values[reading.output]
        if rows is None:
            self._merge_by_shape()
            return False
        context = core.context
        end = self._token_axis_of_output()
        if context == reading.output:
            return True
        found = self._follow_to_output(context, rows)
        if found is not None and (end is None or found == end):
            return True
        index = self._lost_after(context, rows)
        if index is None:
            self._lose()
            return False
        call = self.program.calls[index]
        before = reading.values[reading.places(index)[0]]
        after = reading.values[call.out[0]]
        shapes = f"{tuple(before.shape)} -> {tuple(after.shape)}"
        if call.name in RESHAPES:
            evidence = (
                f"{call.name} {shapes}: the output at one token is assembled from rows of several "
                "tokens. Move the token axis in front of the head axis first."
            )
            verdict.add("merge-without-transpose", evidence, call.line)
        elif (
            call.name in ("cat", "concat", "concatenate")
            and end is not None
            and (output.shape[end] != reading.size[0])
        ):
            evidence = f"{call.name} gives {tuple(after.shape)}: the heads became extra tokens."
            verdict.add("concat-on-wrong-axis", evidence, call.line)
        else:
            self._lose()
        return False

    def _lose(self) -> None:
        self.verdict.lost = True
        self.verdict.doubts.append("the token axis is lost after the values are mixed")

    def _merge_by_shape(self) -> None:
        """After a wrong split, report a merge of (batch, heads, tokens, head_dim) as it is."""
        reading, core = self.reading, self.core
        for index in sorted(self.program.after(core.context)):
            call = self.program.calls[index]
            if call.name in ("transpose", "permute", "swapaxes", "swapdims", "movedim", "einsum"):
                return
            if call.name in RESHAPES:
                before = reading.values[reading.places(index)[0]]
                after = reading.values[call.out[0]]
                if after.ndim < before.ndim and before.ndim == 4:
                    evidence = (
                        f"{call.name} {tuple(before.shape)} -> {tuple(after.shape)} without moving "
                        "the token axis in front of the head axis first."
                    )
                    self.verdict.add("merge-without-transpose", evidence, call.line)
                return

    def _token_axis_of_output(self) -> int | None:
        source = self.reading.sources[0]
        output = self.reading.values[self.reading.output]
        if len(source.axes) == 2:
            return source.axes[0]
        if output.ndim != self.reading.values[source.register].ndim:
            return None
        return source.axes[0]

    def _follow_to_output(self, context: int, rows: int) -> int | None:
        """The axis of the rows in the output; the first of two axes for an image."""
        reading = self.reading
        end = self._end()
        (found,) = reading.follow(context, rows, end)
        axes = reading.sources[0].axes
        if found is not None or len(axes) == 1:
            return found
        base, output = reading.values[context], reading.values[end]
        if output.ndim <= max(axes):
            return None
        for index in range(base.shape[rows]):
            new = reading.program.again(reading.values, {context: changed_at(base, (rows,), index)})
            moved = differs(new[end], output).movedim(axes, (0, 1)).flatten(0, 1)
            places = moved.flatten(1).any(1).nonzero().flatten().tolist()
            if places != [index]:
                return None
        return axes[0]

    def _end(self) -> int:
        """The output, or the input of a norm over all tokens that follows the attention."""
        program, reading = self.program, self.reading
        after = program.after(self.core.context) & program.before(reading.output)
        norms = [i for i in sorted(after) if program.calls[i].name in _OVER_TOKENS]
        return reading.places(norms[-1])[0] if norms else reading.output

    def _lost_after(self, register: int, axis: int) -> int | None:
        """The first call after a register that loses this axis."""
        reading, program = self.reading, self.program
        path = sorted(program.after(register) & program.before(reading.output))
        outs = [program.calls[i].out[0] for i in path]
        for index, found in zip(path, reading.follow(register, axis, *outs), strict=True):
            if found is None:
                return index
        return path[-1] if path else None


def judge_information(
    reading: Reading, contexts: list[tuple[int, int]], verdict: Judgement, batch: int
) -> None:
    """Check that every feature of every head reaches the output.

    Args:
        reading: The pass.
        contexts: The mixed values of each attention, with the axis of their rows.
        verdict: The findings so far.
        batch: The number of sequences.
    """
    program, output = reading.program, reading.values[reading.output]
    end = reading.sources[0].axes[0]
    columns: list[Tensor] = []
    for context, rows in contexts:
        values, texts = reading.values[context], reading.text_axis(context)
        if context == reading.output or output.ndim <= end or not values.isfinite().all():
            return
        axes, rest = ((rows,), (0,)) if texts is None else ((texts, rows), (0, 1))
        if texts is not None and values.shape[texts] != batch:
            return
        width = math.prod(values.movedim(axes, rest).shape[len(axes) :])
        if width > 256:
            return
        size = float(values.abs().mean()) + 0.1
        for number in range(width):
            moved = values.clone()
            view = moved.movedim(axes, rest)[(0,) * len(axes)]
            view[np.unravel_index(number, view.shape)] += 1e-4 * size
            new = program.again(reading.values, {context: moved})
            change = new.get(reading.output, output) - output
            columns.append(change.select(end, 0).reshape(-1).to(torch.float64))
    singular = torch.linalg.svdvals(torch.stack(columns))
    rank = int((singular > 1e-7 * singular[0].clamp_min(1e-30)).sum())
    produced = output.numel() // max(batch * reading.size[0], 1)
    after = program.after(contexts[0][0]) & program.before(reading.output)
    normed = any(program.calls[i].name in _NORMS for i in after)
    verdict.projected = any(r in program.parameters for i in after for r in program.sources[i])
    most = min(len(columns), produced) if verdict.projected else len(columns)
    if rank >= most - 2 * normed:
        return
    heads = max(verdict.heads, 1)
    evidence = (
        f"The {heads} heads give {len(columns)} numbers per token, but only {rank} of them reach "
        "the output independently."
    )
    mixed = reading.values[reading.cores[0].mixed.values]
    if heads > 1 and mixed.numel() * heads == reading.values[contexts[0][0]].numel():
        return  # heads that share their values may be averaged, to keep the weights interpretable
    if len(reading.cores) == heads > 1 == len({core.mixed.values for core in reading.cores}):
        return  # the same, with each head computed separately
    if any(program.calls[i].name in _CUTS_OFF for i in after):
        return  # negative values are cut off
    if heads > 1 and rank <= len(columns) // heads:
        still = any(float(column.abs().max()) < 1e-12 for column in columns)
        if not still or len(contexts) == 1:  # a gate may switch heads off
            verdict.add("one-head-only" if still else "heads-summed", evidence, None)
    elif len(contexts) == 1:
        verdict.doubts.append(evidence)
