"""Finding the switches that give exactly what the submitted class gives.

First the forms that are right, then one mistake, then two, then three. What reproduces the output
to 1e-5 is the diagnosis; the fewest mistakes win, and a look at the source may only choose among
explanations that reproduce the output equally.
"""

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clearhead.checker.diagnosis.mistake_switches import ALONE, OPTIONS, Option
from clearhead.checker.diagnosis.simulator import Program, Switches, difference
from clearhead.checker.diagnosis.weight_layouts import Candidate

TOLERANCE = 1e-5
_GRID = 31  # points when a number is fitted


_RANK = {option: place for place, option in enumerate(OPTIONS)}
_SWAPS = {
    "query-key-swapped",
    "key-value-swapped",
    "query-value-swapped",
    "projections-in-other-order",
}


@dataclass(frozen=True)
class Explanation:
    """Switches that reproduce an output.

    Args:
        program: With which weights.
        candidate: Where those weights were found.
        base: The right form nearest to it.
        switches: The switches.
        ids: The mistakes, none if it is right.
        error: What is left of a difference, relative.
        rank: How unusual it is; smaller is more usual.
    """

    program: Program
    candidate: Candidate
    base: Switches
    switches: Switches
    ids: tuple[str, ...]
    error: float
    rank: float = 0.0


def right_forms(
    program: Program, masks: Sequence[str], *, unscaled: bool, turns: Sequence[str] = ("none",)
) -> Iterator[Switches]:
    """Every form that is right: two head layouts, the masks allowed, what stands around."""
    w = program.weights
    around = ["nothing"]
    width = w.v.shape[1] if w.o is None else w.o.shape[1]
    if width == program.inputs[0].shape[-1]:
        around.append("residual")
    if w.norm is not None and len(w.norm.weight) == program.inputs[0].shape[-1]:
        around += ["norm-before", "norm-after", "residual-norm-after", "norm-before-residual"]
        around += ["residual-normed"]
        if program.inputs[1] is not program.inputs[0]:
            around += ["norm-before-queries", "norm-before-queries-residual"]
    layouts = [("heads", "heads")]
    if w.heads > 1:
        layouts.append(("strided", "interleaved"))
    for turn, kind, (split, merge), mask in itertools.product(turns, around, layouts, masks):
        form = Switches(split=split, merge=merge, mask=mask, around=kind, turn=turn)
        yield form
        if unscaled:
            yield form._replace(scale="none")


def _options_for(program: Program, base: Switches, candidate: Candidate) -> list[Option]:
    chosen = []
    for option in OPTIONS:
        change = dict(option.change)
        if any(getattr(base, name) == value for name, value in change.items()):
            continue
        if base.mask == "none" and ("mask" in change or "fill" in change):
            continue
        turn = str(change.get("turn", base.turn))
        if base.turn == "none" and turn != "none":
            continue
        if turn != "none" and not turn.startswith(base.turn):
            continue
        if change.get("split") == "token-heads" and base.mask != "none":
            continue
        if base.mask.startswith("given") and "mask" in change:
            continue
        if program.weights.heads == 1 and (
            "split" in change or "merge" in change or change.get("softmax") == "heads"
        ):
            continue
        if "group" in change and program.weights.kv_heads in (0, 1, program.weights.heads):
            continue
        if not candidate.named and option.id in _SWAPS:
            continue
        if program.weights.o is None and change.get("out") == "unused":
            continue
        if program.weights.p == 0 and "gain" in change:
            continue
        if base.split == "strided" and "split" in change and change["split"] != "heads":
            continue
        chosen.append(option)
    return chosen


def _is_usual(candidate: Candidate, base: Switches) -> bool:
    """The forms to try first: others need time, and are seldom."""
    plain = base.around == "nothing" and base.split == "heads"
    return (
        plain and candidate.weights.label in _USUAL_LABELS and candidate.order in ("", "qkv", "kv")
    )


_USUAL_LABELS = ("by name", "by number", "by shape", "no weights", "fused, one after the other",
                 "one after the other", "fused, one a head")  # fmt: skip


def _cost(candidate: Candidate) -> int:
    return int(candidate.named and candidate.order not in ("", "qkv", "kv"))


_ORDER_IDS = {"kqv": "query-key-swapped"}


class Search:
    """The search for what reproduces one output.

    Args:
        target: The submission's output.
        programs: The candidates for the weights, each with its inputs.
        masks: The masks that a right form may have.
        unscaled: Whether leaving out the scale is right too (a class without weights).
        turns: The rotary positions that a right form may have: "none", "half", "pairs".
        hints: What the source makes likely: id -> a bonus.
        seconds: How long to look, in processor time, so that a busy machine changes nothing.
    """

    def __init__(
        self,
        target: Tensor,
        programs: Sequence[tuple[Candidate, Program]],
        masks: Sequence[str],
        *,
        unscaled: bool = False,
        turns: Sequence[str] = ("none",),
        hints: Mapping[str, float] | None = None,
        seconds: float = 1.5,
    ) -> None:
        self.target = target
        self.programs = programs
        self.hints = hints or {}
        self._wides: dict[int, Program] = {}
        # One number is compared first: most attempts fail there already.
        finite = target.isfinite().nonzero()
        self._probe = (
            tuple(finite[len(finite) // 2].tolist()) if len(finite) else (0,) * target.ndim
        )
        self._expected = float(target[self._probe])
        self._small = (
            10 * TOLERANCE * float(target[target.isfinite()].abs().max()) if len(finite) else 0.0
        )
        self.seconds = seconds
        self.deadline = time.process_time() + seconds
        self.bases = [
            (candidate, program, list(right_forms(program, masks, unscaled=unscaled, turns=turns)))
            for candidate, program in programs
        ]

    def best(self) -> Explanation | None:
        """The explanation with the fewest mistakes, the likeliest of those; None if none fits."""
        self.deadline = time.process_time() + self.seconds
        for size in range(4):
            for usual in (True, False):
                found = list(self._level(size, usual))
                if not found and size in (1, 2):
                    found = list(self._fitted(size, usual))
                if found:
                    return min(found, key=lambda e: (e.rank, e.error))
                if time.process_time() > self.deadline:
                    return None
        return None

    def is_right(self) -> bool:
        """Whether a right form reproduces the output."""
        return any(True for _ in self._level(0, True))

    def one(self) -> Iterator[Explanation]:
        """Explanations with one mistake at most, fewest first."""
        self.deadline = time.process_time() + self.seconds
        for size in (0, 1):
            for usual in (True, False):
                found = list(self._level(size, usual))
                if size and not found:
                    found = list(self._fitted(size, usual))
                yield from sorted(found, key=lambda e: (e.rank, e.error))

    def closest(self) -> tuple[float, Switches | None]:
        """How near the right forms come."""
        nearest: tuple[float, Switches | None] = (math.inf, None)
        for _, program, forms in self.bases:
            for form in forms:
                try:
                    got = program.run(form)
                except RuntimeError:  # as above
                    continue
                error = math.inf if got is None else difference(got, self.target)
                if error < nearest[0]:
                    nearest = error, form
        return nearest

    def _level(self, size: int, usual: bool) -> Iterator[Explanation]:
        for candidate, program, forms in self.bases:
            count = size - _cost(candidate)
            if count < 0:
                continue
            for base in forms:
                if _is_usual(candidate, base) != usual and size > 0:
                    continue
                options = _options_for(program, base, candidate) if count else []
                if count >= 2:
                    options = [option for option in options if option not in ALONE]
                if count >= 3:
                    options = options[:34]
                for combination in itertools.combinations(options, count):
                    if count > 1 and _clash(combination):
                        continue
                    switches = base
                    for option in combination:
                        switches = option.applied(switches)
                    found = self._try(candidate, program, base, switches, combination)
                    if found is not None:
                        yield found
                        if count >= 3:
                            return
                    elif time.process_time() > self.deadline:
                        return

    def _try(
        self,
        candidate: Candidate,
        program: Program,
        base: Switches,
        switches: Switches,
        combination: Sequence[Option],
    ) -> Explanation | None:
        try:
            got = program.run(switches)
        except RuntimeError:  # shapes of this submission that do not fit this form
            return None
        if got is None or got.shape != self.target.shape:
            return None
        first = float(got[self._probe])
        if abs(first - self._expected) > self._small:  # False where one is NaN
            return None
        error = difference(got, self.target)
        if error > TOLERANCE:
            return None
        ids = [id for option in combination for id in option.id.split("+")]
        if _cost(candidate):
            ids.append(_ORDER_IDS.get(candidate.order, "projections-in-other-order"))
        rank = sum(_RANK[option] / 100 - self.hints.get(option.id, 0.0) for option in combination)
        return Explanation(program, candidate, base, switches, tuple(ids), error, rank)

    def _fitted(self, size: int, usual: bool) -> Iterator[Explanation]:
        """One number fitted (the scale, the fill, the gain), beside other mistakes."""
        for candidate, program, forms in self.bases:
            if _cost(candidate):
                continue
            for base in forms:
                if _is_usual(candidate, base) != usual:
                    continue
                others: list[tuple[Option, ...]] = [()]
                if size == 2:
                    others = [(o,) for o in _options_for(program, base, candidate)[:34]]
                for combination in others:
                    if time.process_time() > self.deadline:
                        return
                    switches = base
                    for option in combination:
                        switches = option.applied(switches)
                    touched = {name for option in combination for name in option.touches()}
                    yield from self._fits(candidate, program, base, switches, combination, touched)

    def _fits(
        self,
        candidate: Candidate,
        program: Program,
        base: Switches,
        switches: Switches,
        combination: tuple[Option, ...],
        touched: set[str],
    ) -> Iterator[Explanation]:
        fits: list[tuple[str, Switches | None]] = []
        if "gain" not in touched:
            fits.append(("wrong-gain", self._fit_gain(program, switches)))
        if "scale" not in touched and switches.softmax in ("keys", "queries"):
            fits.append(("wrong-scale", self._fit(program, switches, "scale", log=True)))
        if (
            switches.mask != "none"
            and "fill" not in touched
            and switches.softmax in ("keys", "queries")
        ):
            fits.append(("mask-fill-not-inf", self._fit(program, switches, "fill", log=False)))
        for id, fitted in fits:
            if fitted is None:
                continue
            if id == "wrong-scale" and abs(float(fitted.scale) / program.factor(base) - 1) < 1e-3:
                continue  # a little off somewhere else: no one writes such a scale
            if id == "mask-fill-not-inf" and float(fitted.fill) < -5:
                id = "mask-fill-too-small"
            found = self._try(candidate, program, base, fitted, combination)
            if found is not None:
                yield replace(found, ids=(*found.ids, id), rank=found.rank + 1.0)

    def _fit_gain(self, program: Program, switches: Switches) -> Switches | None:
        none, one = program.run(switches._replace(gain=0.0)), program.run(switches)
        if none is None or one is None or one.shape != self.target.shape:
            return None
        along = one - none
        gain = float(((self.target - none) * along).sum() / (along * along).sum())
        return None if not math.isfinite(gain) else switches._replace(gain=gain)

    def _fit(self, program: Program, switches: Switches, name: str, log: bool) -> Switches | None:
        """The scale or fill that comes nearest: a grid, made finer around its best point."""
        wide = self._wide(program)
        right = program.head_dim**-0.5
        low, high = (-5.0, 5.0) if log else (-25.0, 12.0)
        marked = Option("", ((name, "values"),)).applied(switches)
        batch = len(self.target)
        for step in range(8):
            grid = torch.linspace(low, high, _GRID, dtype=torch.float64)
            numbers = right * grid.exp() if log else grid
            wide.forget()
            wide.values = numbers.repeat_interleave(batch)[:, None, None, None]
            got = wide.run(marked)
            if got is None or got.shape[1:] != self.target.shape[1:]:
                return None
            gaps = (got.reshape(_GRID, *self.target.shape) - self.target).flatten(1).norm(dim=1)
            best = int(gaps.nan_to_num(math.inf).argmin())
            if not gaps[best] < (0.35 if step == 0 else 0.1) * self.target.norm():
                return None
            low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, _GRID - 1)])
        return Option("", ((name, float(numbers[best])),)).applied(switches)

    def _wide(self, program: Program) -> Program:
        """The program with its inputs once for every point of the grid."""
        key = id(program)
        if key not in self._wides:
            q, k, v = (t.repeat(_GRID, 1, 1) for t in program.inputs)
            inputs = (q, q, q) if program.inputs[0] is program.inputs[1] else (q, k, v)
            self._wides[key] = Program(program.weights, inputs, program.given)
        return self._wides[key]


def _clash(combination: Sequence[Option]) -> bool:
    seen: set[str] = set()
    for option in combination:
        touched = option.touches()
        if touched & seen:
            return True
        seen |= touched
    return False
