"""A recorded pass for the reader: each call with its line, its named axes and any remark."""

from __future__ import annotations

from contextlib import suppress

from torch import Tensor

from clearhead.checker.diagnosis.judgement import Judgement
from clearhead.checker.diagnosis.reading import Core, Reading, Unreadable
from clearhead.checker.report import Step

MOST = 200


def shown_steps(reading: Reading, verdict: Judgement) -> tuple[Step, ...]:
    """The steps of a recorded pass, in order.

    Args:
        reading: The pass.
        verdict: The judgement of it; its findings become remarks at their lines.
    """
    program = reading.program
    names = _Names(reading, verdict)
    last = {call.line: i for i, call in enumerate(program.calls)}
    remarks = {found.line: found.id for found in verdict.findings if found.line is not None}
    used = program.before(reading.output)
    found = []
    for index, call in enumerate(program.calls):
        if call.line is None or call.out[0] < 0 or call.out[0] not in reading.values:
            continue
        remark = ""
        if call.line in remarks and last[call.line] == index:
            remark = f"mistake here: {remarks[call.line]}"
        elif index not in used:
            remark = "not used" if reading.depends(call.out[0]) else ""
        shape = names.of(call.out[0])
        found.append(Step(call.line, "", call.name.strip("_"), shape, remark))
    return tuple(found[:MOST])


class _Names:
    """The names of the axes of a tensor."""

    def __init__(self, reading: Reading, verdict: Judgement) -> None:
        self._reading = reading
        source = reading.sources[0]
        shape = reading.values[source.register].shape
        self._sizes = {shape[axis]: "tokens" for axis in source.axes}
        if verdict.heads > 1:
            self._sizes[verdict.heads * verdict.head_dim] = "d_out"
            self._sizes[verdict.kv_heads] = "kv_heads"
            self._sizes[verdict.heads] = "heads"
        self._sizes[verdict.head_dim] = "head_dim"
        self._tokens: dict[int, int] = {}
        self._pairs: dict[int, tuple[int, int]] = {}
        with suppress(Unreadable):  # something is wrong before the scores
            for core in reading.cores:
                self._scores(core)

    def _scores(self, core: Core) -> None:
        program = self._reading.program
        try:
            first, second = core.dot_axes
            summed, rows = core.mixes_along(core.weight_axes(core.axes))
        except (Unreadable, IndexError, RuntimeError):  # it is computed in pieces
            return
        if first is None or second is None or summed is None:
            return
        if rows is not None:
            self._after(core, rows)
        pair = (second, first) if summed == 0 else (first, second)
        between = program.after(core.dots) - program.after(core.context) - {core.mixing}
        registers = [core.dots, *(out for i in between for out in program.calls[i].out)]
        count = self._reading.values[core.dots].numel()
        alike = [r for r in registers if self._numel(r) == count]
        after = {out for i in program.after(core.weights) for out in program.calls[i].out}
        self._follow(core.dots, pair, [r for r in alike if r not in after])
        self._follow(
            core.weights, self._pairs.get(core.weights, pair), [r for r in alike if r in after]
        )

    def _numel(self, register: int) -> int:
        value = self._reading.values.get(register)
        return 0 if value is None else value.numel()

    def _follow(self, start: int, pair: tuple[int, int], registers: list[int]) -> None:
        """Find the axes of queries and keys in registers that are made of one where they are known.

        A softmax mixes one of them: then they are assumed where they were.
        """
        found = (self._reading.follow(start, axis, *registers) for axis in pair)
        for register, queries, keys in zip(registers, *found, strict=True):
            both = {queries, keys} - {None}
            rank = self._reading.values[register].ndim
            if len(both) == 2 or rank == self._reading.values[start].ndim:
                self._pairs[register] = (queries, keys) if len(both) == 2 else pair

    def _after(self, core: Core, rows: int) -> None:
        """Find the token axis from the mixed values on."""
        program = self._reading.program
        self._tokens[core.context] = rows
        later = [program.calls[i].out[0] for i in sorted(program.after(core.context))]
        later = [register for register in later if register in self._reading.values]
        for register, axis in zip(
            later, self._reading.follow(core.context, rows, *later), strict=True
        ):
            if axis is not None:
                self._tokens[register] = axis

    def of(self, register: int) -> tuple[tuple[str, int], ...]:
        """The axes of a register, each with its name and its size."""
        tensor: Tensor = self._reading.values[register]
        names = [""] * tensor.ndim
        if register in self._reading.texts:
            text = self._reading.text_axis(register)
            if text is not None:
                names[text] = "batch"
        if register in self._pairs:
            queries, keys = self._pairs[register]
            names[queries], names[keys] = "queries", "keys"
        elif register in self._tokens:
            names[self._tokens[register]] = "tokens"
        elif self._reading.depends(register):
            tokens = self._reading.token_axis(register)
            if tokens is not None:
                names[tokens] = "tokens"
        lost = self._reading.depends(register)  # then no size identifies a token axis
        for axis, name in enumerate(names):
            known = name or self._sizes.get(tensor.shape[axis], "")
            names[axis] = "" if lost and not name and known == "tokens" else known
        return tuple(zip(names, tensor.shape, strict=True))
