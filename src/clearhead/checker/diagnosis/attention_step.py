"""Base of the step checks: the recorded pass, one attention in it, and further runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Self

from torch import Tensor

from clearhead.checker.diagnosis.judgement import Expectation, Judgement
from clearhead.checker.diagnosis.program import Values
from clearhead.checker.diagnosis.reading import Core, Reading, closeness


def cleared(number: Tensor) -> float:
    """The value rounded to nine decimals, so that rounding errors near zero and -0.0 become 0.0."""
    return round(float(number), 9) + 0.0


_HIDES = {"masked_fill", "masked_fill_", "where", "__setitem__", "add", "add_", "__iadd__"}


class AttentionStep:
    """One attention in a program.

    Args:
        reading: The program.
        core: The attention.
        runs: The values of every register, for other random inputs.
        verdict: The findings so far; the checks add to it.
        expected: What is known about the class.
    """

    def __init__(
        self,
        reading: Reading,
        core: Core,
        runs: list[Values],
        verdict: Judgement,
        expected: Expectation,
    ) -> None:
        self.reading, self.core, self.runs, self.verdict = reading, core, runs, verdict
        self.expected, self.batch = expected, expected.batch
        self.program = reading.program
        self.close = closeness(reading.values[core.scores])

    @classmethod
    def of(cls, step: AttentionStep) -> Self:
        """Create a check of the same attention."""
        return cls(step.reading, step.core, step.runs, step.verdict, step.expected)

    def _between(self) -> set[int]:
        """The calls from the product of queries and keys to the softmax."""
        return self.program.after(self.core.dots) & self.program.before(self.core.scores)

    def _learned(self, calls: set[int]) -> bool:
        """Whether these calls read a parameter, or input-independent values computed from one."""
        reading = self.reading
        read = {register for index in calls for register in self.program.sources[index]}
        beside = (r for r in read if r != self.core.dots and not reading.depends(r))
        return any(reading.learned(register) for register in beside)

    def _width(self) -> int:
        """The total width of all query heads."""
        tensor = self.reading.values[self.core.operands[0]]
        axis = self.reading.token_axis(self.core.operands[0])
        every = self.reading.size[0]  # also where heads that were split wrongly have lost the axis
        lost = every if tensor.numel() % (every * self.batch) == 0 else 1
        tokens = tensor.shape[axis] if axis is not None else lost
        return tensor.numel() // max(tokens * self.batch, 1)

    def _line(
        self, calls: Iterable[int], names: Collection[str] = (), *, last: bool = False
    ) -> int | None:
        """The line of the first (or last) of these calls, optionally only those so named."""
        found = [self.program.calls[i] for i in sorted(calls, reverse=last)]
        lines = (call.line for call in found if not names or call.name in names)
        return next((line for line in lines if line is not None), None)

    def _mask_line(self) -> int | None:
        """The line of the call that hides scores."""
        return self._line(self._between(), _HIDES, last=True)
