"""Each step of an attention that was read, held against what it should be given the step before.

So a mistake is found at its own line and with its own numbers, and several mistakes in one class
are several findings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from clearhead.checker.diagnosis.program import Values
from clearhead.checker.diagnosis.reading import (
    HIDDEN,
    Core,
    Reading,
    Unreadable,
    changed_at,
    closeness,
    differs,
    fit,
)
from clearhead.checker.harness.weight_roles import role_of

_RESHAPES = {"view", "reshape", "view_as", "reshape_as", "flatten", "unflatten"}
_SCALES = {
    "mul",
    "div",
    "mul_",
    "div_",
    "__imul__",
    "__idiv__",
    "__itruediv__",
    "true_divide",
    "multiply",
}
_ROUNDS = {"floor_divide", "__floordiv__", "floor", "round", "trunc", "int", "long"}
_SINK = "Each head has a sink: weights may go there instead of to a token."
_UNIT = {"normalize", "norm", "vector_norm", "rsqrt"}


@dataclass(frozen=True)
class Expectation:
    """What is known of a class beside its recorded pass.

    Args:
        causal: Whether it is meant to be causal: "yes", "no" or "maybe".
        given_mask: Whether a causal mask was passed in.
        batch: How many texts the inputs hold.
        arguments: Numbers that it was built with, of which one may be its scale.
        dropout: The dropout that it was built with.
        window: Height and width, where the tokens are the pixels of a window.
        unscaled: Whether its source says that the scores have no scale, on purpose.
    """

    causal: str
    given_mask: bool
    batch: int
    arguments: tuple[float, ...] = ()
    dropout: float = 0.0
    window: tuple[int, ...] | None = None
    unscaled: bool = False


@dataclass(frozen=True)
class StepFinding:
    """A step that is not as it should be: the mistake's id, the evidence, the line."""

    id: str
    evidence: str
    line: int | None
    severity: str = ""


@dataclass
class Judgement:
    """What reading a class step by step has shown.

    Args:
        findings: The steps that are wrong.
        notes: What is unusual and right.
        doubts: What could not be judged. A class with doubts is not called correct by its reading.
        heads: How many heads there are.
        head_dim: The width of a head.
        mask: "none", "causal", "window5" for the last five tokens, or "other".
        question: Whether a finding may be on purpose, so that there is no verdict.
    """

    findings: list[StepFinding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    heads: int = 0
    head_dim: int = 0
    mask: str = ""
    question: bool = False

    @property
    def right(self) -> bool:
        """Whether every step is right, or right in most situations."""
        return not self.doubts and all(found.severity == "edge" for found in self.findings)

    @property
    def wrong(self) -> bool:
        """Whether mistakes were found, and there is no doubt of them."""
        return not self.doubts and not self.right

    def add(self, id: str, evidence: str, line: int | None, severity: str = "") -> None:
        """Note a finding, once."""
        if all(found.id != id for found in self.findings):
            self.findings.append(StepFinding(id, evidence, line, severity))


def judge(reading: Reading, runs: list[Values], expected: Expectation) -> Judgement:
    """Hold every step of every attention in a program against what it should be.

    Args:
        reading: The program.
        runs: Every register for at least six other random inputs.
        expected: What is known of the class.
    """
    verdict = Judgement()
    cores = reading.cores
    if any(core.dots in reading.tokenwise for core in cores):
        raise Unreadable("the scores depend on one token each")
    for core in cores:
        _Steps(reading, core, runs, verdict, expected).judge()
    unused_weights(reading, verdict)
    applied_twice(reading, verdict)
    beside(reading, verdict)
    whole_output(reading, verdict)
    if len(cores) > 1:
        verdict.heads = len(cores) * max(verdict.heads, 1)
    if any(found.id == "scale-after-softmax" for found in verdict.findings):
        verdict.findings = [found for found in verdict.findings if found.id != "missing-scale"]
    return verdict


class _Steps:
    """The steps of one attention."""

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
        self.mixed_by: float | None = None  # what a learned matrix of the heads is multiplied by

    def judge(self) -> None:
        """All steps, in the order of the code."""
        core, verdict = self.core, self.verdict
        verdict.head_dim = core.head_dim
        found = [self.operand(register) for register in (*core.all_operands, core.mixed[3])]
        whole = all(found)
        before = len(verdict.findings)
        self.two_inputs()
        self.summed_letters()
        if len(verdict.findings) > before:
            return
        a, b = self.scale()
        if not whole:
            self.merge(None)
            return
        axes = core.axes
        weight_axes = core.weight_axes(axes)
        summed, rows = core.mixes_along(weight_axes)
        if summed is None:
            verdict.doubts.append("how the weights meet the values could not be read")
            return
        keys = axes[summed]
        queries = axes[1 - summed]
        groups = core.canonical(self.reading.values[core.scores], axes).shape[0]
        verdict.heads = max(groups // max(self.batch, 1), 1)
        self.groups()
        over_keys = self.softmax(keys, queries)
        if over_keys and self._has_sink(keys):
            verdict.notes.append(
                "Each head has a sink, to which weights may go instead of a token."
            )
        order = (weight_axes[1 - summed], weight_axes[summed])
        self.weights(order, (queries, keys), over_keys)
        if a is not None and b is not None:
            self.mask(a, b, summed)
        self.merge(rows)

    # Which tokens a row holds.

    def operand(self, register: int) -> bool:
        """Whether queries, keys or values have an axis of tokens; else where it was lost."""
        reading = self.reading
        if reading.token_axis(register) is not None:
            return True
        index = self._lost(register)
        if index is None or not self._scrambled(register):
            self.verdict.doubts.append("no axis of the queries, keys or values is the tokens")
            return False
        call = self.program.calls[index]
        before = reading.values[reading.places(index)[0]]
        after = reading.values[call.out[0]]
        shapes = f"{tuple(before.shape)} -> {tuple(after.shape)}"
        if call.name not in _RESHAPES:
            self.verdict.doubts.append("the tokens' axis is lost")
            return False
        evidence = (
            f"{call.name} {shapes}: in the result no axis is the tokens any more. Numbers of one "
            "token stand in several rows, and a row's index is not its token."
        )
        viewed = after.ndim == before.ndim
        id = "keys-viewed-not-transposed" if viewed else "split-without-transpose"
        if viewed and after.shape[0] > before.shape[0] and after.shape[0] % self.batch == 0:
            id = "heads-folded-into-batch"
        self.verdict.add(id, evidence, call.line)
        return False

    def _lost(self, register: int) -> int | None:
        """The first call on the way to a register after which no axis is the tokens."""
        reading = self.reading
        for index in sorted(self.program.before(register)):
            out = self.program.calls[index].out[0]
            sources = [r for r in reading.places(index) if reading.depends(r)]
            if not sources or out not in reading.tokens or not reading.depends(out):
                continue
            had = all(reading.token_axis(r) is not None for r in sources)
            if had and reading.token_axis(out) is None:
                return index
        return None

    def _scrambled(self, register: int) -> bool:
        """Whether a group holds a token twice, or a row holds several tokens."""
        moves = self.reading.tokens[register]
        if moves.ndim < 3:
            return True
        for features in (-1, -2):  # keys may stand as columns
            rows = moves.any(features)
            if int(rows.sum(0).max()) > 1:
                continue
            tokens = rows.float().argmax(0)  # the token of each row
            flat = tokens.reshape(-1, tokens.shape[-1]).tolist()
            return any(not self._all_alike(row, len(moves)) for row in flat)
        return True

    @staticmethod
    def _all_alike(row: list[int], tokens: int) -> bool:
        """Whether each token is there once, or all of them are there equally often."""
        counts = {token: row.count(token) for token in row}
        if all(count == 1 for count in counts.values()):
            return True
        return len(counts) == tokens and len(set(counts.values())) == 1

    def summed_letters(self) -> None:
        """A letter of an einsum that only one side has and the result has not is summed alone."""
        for index in (self.core.product, self.core.mixing):
            call = self.program.calls[index]
            if call.name != "einsum" or not isinstance(call.args[0], str):
                continue
            left, arrow, right = call.args[0].replace(" ", "").partition("->")
            letters = left.split(",")
            if not arrow or len(letters) != 2 or "." in left:
                continue
            shapes = [self.reading.values[r].shape for r in self.reading.places(index)[:2]]
            sides = ((letters[0], letters[1], shapes[0]), (letters[1], letters[0], shapes[1]))
            alone = [
                [c for c in mine if c not in other + right and shape[mine.index(c)] > 1]
                for mine, other, shape in sides
            ]
            if not any(alone):
                continue
            evidence = (
                f'einsum "{call.args[0]}" sums over {", ".join(alone[0] + alone[1])} on one side '
                "alone, before the two sides meet."
            )
            mixed = index == self.core.mixing and not all(alone)
            self.verdict.add("values-not-mixed" if mixed else "unexplained", evidence, call.line)

    def two_inputs(self) -> None:
        """In cross-attention, the values come from where the keys come from."""
        if len(self.reading.sources) != 2:
            return
        keys = [self._inputs_of(register) for register in self.core.operands]
        values = self._inputs_of(self.core.mixed[3])
        if keys[0] != keys[1] and values == keys[0] and len(values) == 1:
            evidence = (
                "The keys come from the second input, and the values from the queries' input."
            )
            if next(iter(values)) == 0:
                self.verdict.add("unexplained", evidence, self._made(self.core.mixed[3]))

    def _inputs_of(self, register: int) -> set[int]:
        """Which inputs a register depends on."""
        found: set[int] = set()
        first = 0
        moves = self.reading.tokens.get(register)
        for number, count in enumerate(self.reading.size):
            if moves is not None and bool(moves[first : first + count].any()):
                found.add(number)
            first += count
        return found

    def _made(self, register: int) -> int | None:
        """The line that projects a register."""
        calls = [self.program.calls[i] for i in sorted(self.program.before(register))]
        return next((call.line for call in calls if call.name == "linear"), None)

    # Scores.

    def scale(self) -> tuple[Tensor | None, Tensor | None]:
        """Measure a and b in a * q.k + b; judge a. What is measured, where it can be."""
        core, verdict = self.core, self.verdict
        if any(self.factor(register)[2] for register in core.operands):
            self.unit_lengths()
        dots = torch.stack([v[core.dots] for v in self.runs])
        scores = torch.stack([v[core.scores] for v in self.runs])
        if dots.shape != scores.shape:
            try:
                measured = core.scale(self.runs)
            except Unreadable as reason:
                verdict.doubts.append(str(reason))
                return None, None
            a, b, linear = measured.a, measured.b, measured.linear
        else:
            fitted = fit(list(dots), list(scores))
            linear = fitted is not None
            a, b = fitted or (dots[0], dots[0])
        names = {self.program.calls[i].name for i in self._between()}
        if not linear:
            found = self.sums() or (self.capped() if "tanh" in names else self.mixed_heads())
            if found is not None:
                return found
            if verdict.findings:
                return None, None
            if names & _ROUNDS:
                evidence = "The scores are rounded to whole numbers before the softmax."
                lines = [self.program.calls[i] for i in sorted(self._between())]
                line = next(call.line for call in lines if call.name in _ROUNDS)
                verdict.add("unexplained", evidence, line)
            elif {"log_softmax", "softmax"} & names:
                verdict.add(
                    "softmax-twice",
                    "A softmax runs on what is a softmax already.",
                    self.program.calls[core.softmax].line,
                )
            else:
                verdict.doubts.append("the scores pass a function that is not known")
            return None, None
        seen = (b > HIDDEN) & a.isfinite()
        plain = a[seen & (a.abs() > 1e-12)]
        if not plain.numel():
            verdict.doubts.append("the scores do not reach the softmax")
            return a, b
        usual = float(plain.median())
        if (plain - usual).abs().max() > 10 * self.close * abs(usual):
            if self._learned(self._between()):
                verdict.notes.append("The scale is learned.")
            else:
                verdict.doubts.append("scores are scaled by different numbers")
            return a, b
        self.judge_scale(usual)
        if dots.shape == scores.shape:  # what is added, without the error of each quotient
            exact = (scores.to(torch.float64) - usual * dots.to(torch.float64)).mean(0)
            b = torch.where(seen & exact.isfinite(), exact, b)
        return a, b

    def capped(self) -> tuple[Tensor, Tensor] | None:
        """Scores c * tanh(scores / c): a and b without the cap, if they have one."""
        core, program = self.core, self.program
        (index,) = [i for i in self._between() if program.calls[i].name == "tanh"][:1]
        before, after = self.reading.places(index)[0], program.calls[index].out[0]
        if self.reading.values[before].shape != self.reading.values[core.dots].shape:
            return None
        inner = fit([v[core.dots] for v in self.runs], [v[before] for v in self.runs])
        outer = fit([v[after] for v in self.runs], [v[core.scores] for v in self.runs])
        if inner is None or outer is None:
            return None
        (m, hidden), (n, b) = inner, outer
        if bool((hidden < HIDDEN).any()):
            evidence = "Hidden scores pass the cap, which makes them finite: they keep a weight."
            self.verdict.add("mask-fill-not-inf", evidence, program.calls[index].line)
            return None
        a = m * n
        usual = float(a[(b > HIDDEN) & a.isfinite()].median())
        cap = float(n[n.isfinite() & (b > HIDDEN)].median())
        self.verdict.notes.append(f"Scores are held below {cap:.4g} by a tanh.")
        inside = float(m[(b > HIDDEN) & m.isfinite()].median())
        right = core.head_dim**-0.5
        if abs(inside / right - 1) < 1e-4:
            return a, b  # c * tanh(scaled scores), as in pointer networks
        if abs(usual - 1) > 1e-4 and abs(usual / right - 1) > 1e-4 and not self.expected.arguments:
            self.verdict.doubts.append("a cap on the scores of another kind")
            return a, b
        self.judge_scale(usual)
        return a, b

    def sums(self) -> tuple[Tensor, Tensor] | None:
        """Scores that are a sum of several products, as in latent attention: a and b of all."""
        core, verdict = self.core, self.verdict
        if len(core.products) < 2:
            return None
        dots = [core.all_dots(index) for index in core.products]
        scores = [v[core.scores] for v in self.runs]
        try:
            shape = scores[0].shape
            parts = [[v[one].expand(shape) for one in dots] for v in self.runs]
        except RuntimeError:
            return None
        columns = [
            torch.stack([*part, torch.ones(shape, dtype=part[0].dtype)], -1) for part in parts
        ]
        x = torch.stack(columns, -2).to(torch.float64)  # (*shape, runs, products + 1)
        y = torch.stack(scores, -1).to(torch.float64)
        hidden = (y < HIDDEN).all(-1)
        y = y.masked_fill(hidden[..., None], 0.0)
        found = torch.linalg.pinv(x) @ y[..., None]
        rest = float((x @ found - y[..., None]).abs().max())
        a, b = found[..., 0, 0], found[..., -1, 0].masked_fill(hidden, -torch.inf)
        factors = found[..., :-1, 0][~hidden]
        if rest > 1e-6 or not factors.numel():
            return None
        usual = float(factors[:, 0].median())
        if float((factors - usual).abs().max()) > 1e-5 * abs(usual):
            return None
        verdict.notes.append(f"Scores are the sum of {len(dots)} products.")
        self.judge_scale(usual)
        return a, b

    def mixed_heads(self) -> tuple[Tensor, Tensor] | None:
        """Scores whose heads are mixed by a learned matrix: a and b as if they were not."""
        core = self.core
        if not self._learned(self._between()):
            return None
        try:
            first, second = core.dot_axes
            assert first is not None
            assert second is not None
            before = [core.canonical(v[core.dots], (first, second)) for v in self.runs]
            after = [core.canonical(v[core.scores], core.axes) for v in self.runs]
        except (Unreadable, RuntimeError, AssertionError):
            return None
        if not self._talk(before, after):
            return None
        if self.mixed_by is not None:
            self.judge_scale(self.mixed_by, learned=False)
        scores = self.reading.values[core.scores].to(torch.float64)
        hidden = scores < HIDDEN
        return torch.ones_like(scores), torch.zeros_like(scores).masked_fill(hidden, -torch.inf)

    def _talk(self, before: list[Tensor], after: list[Tensor]) -> bool:
        """Whether one matrix mixes the heads of every pair of tokens; (groups, queries, keys)."""
        heads = len(before[0]) // max(self.batch, 1)
        if heads < 2 or before[0].shape != after[0].shape or len(before[0]) % heads:
            return False

        def rows(tensors: list[Tensor]) -> Tensor:
            joined = torch.stack(tensors).to(torch.float64)
            split = joined.reshape(-1, heads, *joined.shape[2:])
            return split.movedim(1, -1).flatten(0, -2)

        x, y = rows(before), rows(after)
        seen = ~(y < HIDDEN).all(-1)
        x, y = x[seen], y[seen]
        x = torch.cat([x, torch.ones_like(x[:, :1])], -1)
        matrix = torch.linalg.pinv(x) @ y
        if float((x @ matrix - y).abs().max()) > 1e-6:
            return False
        self.verdict.notes.append("Heads are mixed: talking heads.")
        for weight in self.program.weights.values():
            if weight.numel() == heads * heads:
                square = weight.reshape(heads, heads).to(torch.float64)
                for one in (square, square.T):
                    ratio = matrix[:-1] / one
                    if float((ratio - ratio.mean()).abs().max()) < 1e-6:
                        self.mixed_by = float(ratio.mean())
        return True

    def _between(self) -> set[int]:
        """The calls from the product of queries and keys to the softmax."""
        return self.program.after(self.core.dots) & self.program.before(self.core.scores)

    def _learned(self, calls: set[int]) -> bool:
        """Whether a parameter takes part in these calls, or in what they read beside the scores."""
        names = self.program.parameters
        core = self.core
        for index in calls:
            for register in self.reading.places(index):
                if register in names or (
                    register != core.dots
                    and not self.reading.depends(register)
                    and any(
                        r in names
                        for i in self.program.before(register)
                        for r in self.reading.places(i)
                    )
                ):
                    return True
        return False

    def factor(self, register: int) -> tuple[float, int | None, bool]:
        """What queries or keys were multiplied by, in which line, and whether they are normed."""
        product, line, unit = 1.0, None, False
        reading, program = self.reading, self.program
        current: int | None = register
        while current is not None:
            index = program.maker.get(current)
            if index is None:
                break
            call = program.calls[index]
            places = reading.places(index)
            sources = [r for r in places if reading.depends(r)]
            if call.name in ("linear", "matmul", "einsum", "bmm", "conv1d", "conv2d", "mm"):
                break
            if call.name in ("layer_norm", "rms_norm", "group_norm"):
                break
            unit |= call.name in _UNIT
            if call.name in _SCALES and len(sources) == 1:
                number = self._number(index, places, sources[0])
                if number is not None:
                    product *= 1 / number if "div" in call.name else number
                    line = call.line
            if len(sources) > 1 and call.name in (*_SCALES, "div"):
                before = {program.calls[i].name for r in sources[1:] for i in program.before(r)}
                unit |= bool(before & {*_UNIT, "sum", "mean", "pow", "square"})
            current = sources[0] if sources else None
        return product, line, unit

    def _number(self, index: int, places: list[int], data: int) -> float | None:
        """The number that a call multiplies or divides by, if it is one and not learned."""
        call = self.program.calls[index]
        for value in call.args:
            if isinstance(value, int | float) and not isinstance(value, bool):
                return float(value)
        others = [r for r in places if r != data]
        if len(others) != 1 or self._is_learned(others[0]):
            return None
        tensor = self.reading.values[others[0]]
        return float(tensor.reshape(-1)[0]) if tensor.numel() == 1 else None

    def _is_learned(self, register: int) -> bool:
        names = self.program.parameters
        return register in names or any(
            r in names for i in self.program.before(register) for r in self.reading.places(i)
        )

    def judge_scale(self, a: float, *, learned: bool = True) -> None:
        """Whether a, with what queries and keys were multiplied by, is 1 / sqrt(head_dim).

        Args:
            a: What the products are multiplied by.
            learned: Whether a parameter among the scores may be the scale, or a bias.
        """
        verdict, core = self.verdict, self.core
        (fq, line_q, unit_q), (fk, line_k, unit_k) = map(self.factor, core.operands)
        if unit_q or unit_k or (learned and self._learned(self._between_scaling())):
            return
        told = self.expected.unscaled
        biased = learned and self._learned(self._between())
        if abs(a * fq * fk - 1) < 1e-4 and told and not biased:
            evidence = "The scale is 1, and the source says that this is on purpose."
            verdict.add("missing-scale", evidence, core.line, "edge")
            return
        if abs(a * fq * fk - 1) < 1e-4 and biased:
            said = "the source says so" if told else "this may be on purpose"
            evidence = f"The scale is 1. With a learned bias of positions, as in T5, {said}."
            verdict.add("missing-scale", evidence, core.line, "edge")
            verdict.question |= not told
            return
        total, width = a * fq * fk, core.head_dim
        right = width**-0.5
        if abs(total / right - 1) < 1e-4:
            return
        if any(
            abs(total / n - 1) < 1e-4 for m in self.expected.arguments for n in (m, 1 / m, m**-0.5)
        ):
            verdict.notes.append("The scale is an argument, and what was given is used.")
            return
        line = self._scale_line() or line_q or line_k or core.line
        heads = max(self.reading.values[core.operands[0]].shape[-1] and self._width() // width, 1)
        evidence = f"The scale is {total:.3g} instead of {right:.3g}, 1 / √head_dim = 1 / √{width}."
        if abs(total - 1) < 1e-4:
            verdict.add("missing-scale", evidence, line)
        elif abs(total * width - 1) < 1e-4:
            verdict.add("scale-twice", evidence + f" {total:.3g} is 1 / {width}.", line)
        elif abs(total / width**0.5 - 1) < 1e-4:
            verdict.add("scale-multiplied", evidence, line)
        elif heads > 1 and abs(total * math.sqrt(width * heads) - 1) < 1e-4:
            whole = width * heads
            verdict.add("scale-by-d-out", evidence + f" {total:.3g} is 1 / √{whole}, the root of "
                        "all heads' width.", line)  # fmt: skip
        else:
            verdict.add("wrong-scale", evidence, line)

    def unit_lengths(self) -> None:
        """Normalised queries and keys have one length, along the axis that is summed."""
        for register in self.core.operands:
            axis = self.reading.token_axis(register)
            tensor = self.reading.values[register]
            wide = [
                a for a in range(tensor.ndim) if tensor.shape[a] == self.core.head_dim and a != axis
            ]
            if any(self._unit_along(tensor, a) for a in wide):
                continue
            others = [
                a for a in range(tensor.ndim) if a not in wide and self._unit_along(tensor, a)
            ]
            if others:
                evidence = (
                    f"Vectors have length one along axis {others[0]} of {tuple(tensor.shape)}, and "
                    f"the products sum over axis {wide[0] if wide else -1}, the width of a head."
                )
                self.verdict.add("norm-over-wrong-axis", evidence, self._norm_line(register))
            else:
                self.verdict.doubts.append("queries or keys are normed in an unusual way")
            return

    @staticmethod
    def _unit_along(tensor: Tensor, axis: int) -> bool:
        lengths = tensor.norm(dim=axis)
        return tensor.shape[axis] > 1 and float((lengths / lengths.mean() - 1).abs().max()) < 1e-3

    def _norm_line(self, register: int) -> int | None:
        calls = [self.program.calls[i] for i in sorted(self.program.before(register))]
        return next((call.line for call in reversed(calls) if call.name in _UNIT), None)

    def _width(self) -> int:
        """The width of all heads of the queries together."""
        tensor = self.reading.values[self.core.operands[0]]
        axis = self.reading.token_axis(self.core.operands[0])
        tokens = tensor.shape[axis] if axis is not None else 1
        return tensor.numel() // max(tokens * self.batch, 1)

    def _between_scaling(self) -> set[int]:
        return {i for i in self._between() if self.program.calls[i].name in _SCALES}

    def _scale_line(self) -> int | None:
        lines = [self.program.calls[i].line for i in sorted(self._between_scaling())]
        return next((line for line in lines if line is not None), None)

    # Mask.

    def mask(self, a: Tensor, b: Tensor, summed: int) -> None:
        """Which pairs are hidden, and by what."""
        core, verdict = self.core, self.verdict
        axes = (core.axes[1 - summed], core.axes[summed])
        if a.shape == self.reading.values[core.scores].shape:
            a, b = core.canonical(a, axes), core.canonical(b, axes)
        elif summed == 0:
            a, b = a.transpose(-1, -2), b.transpose(-1, -2)
        rows, columns = b.shape[-2:]
        learned = self._learned(self._between())
        weights = self._used_weights(summed)
        hidden = (b < HIDDEN) | b.isnan()
        zero = (weights == 0).all(0) if weights is not None else hidden
        gone = zero | hidden if zero.shape == hidden.shape else hidden
        plain = a.masked_fill(hidden | (a.abs() <= 1e-12), torch.nan)
        usual = plain.flatten(1).nanmedian(1).values[:, None, None].nan_to_num(0.0)
        near = 10 * self.close
        odd = ~hidden & ((b.abs() > near) | ((a - usual).abs() > near * usual.abs()))
        if rows != columns:
            verdict.mask = "none" if not gone.any() else "other"
            if gone.any() and not self.expected.given_mask:
                verdict.doubts.append("a mask between texts of different lengths")
            return
        future = torch.ones(rows, columns, dtype=torch.bool).triu(1)
        if not (gone == gone[:1]).all():
            verdict.mask = "other"
            verdict.doubts.append("different heads or texts hide different tokens")
            return
        pattern = gone[0]
        oddly = odd.all(0) if odd.ndim == 3 else odd
        line = self._mask_line()
        if odd.any() and learned:
            self.learned_bias(b)
        elif odd.any():
            self.odd_scores(oddly, odd, a, b, future, line)
            if verdict.findings or verdict.doubts:
                return
        self.pattern(pattern, future, line)

    def _used_weights(self, summed: int) -> Tensor | None:
        core = self.core
        axes = core.weight_axes(core.axes)
        order = (axes[1 - summed], axes[summed])
        try:
            return torch.stack([core.canonical(v[core.mixed[1]], order) for v in self.runs])
        except RuntimeError:
            return None

    def odd_scores(
        self, oddly: Tensor, odd: Tensor, a: Tensor, b: Tensor, future: Tensor, line: int | None
    ) -> None:
        """Scores that something is added to, which is neither a mask nor learned."""
        verdict = self.verdict
        if (
            torch.equal(oddly, future)
            or torch.equal(oddly, future.T)
            or torch.equal(oddly, ~future)
        ):
            fill = sorted(set(b[..., oddly].flatten().tolist()))
            zeroed = float(a[..., oddly].abs().max()) < 1e-12
            if zeroed or fill[-1] - fill[0] < 1e-9:
                number = fill[0]
                how = f"the score {number:.3g}" if zeroed else f"{number:.3g} added"
                evidence = f"Cells of the mask get {how} instead of -inf, so they keep a weight."
                added = not zeroed and abs(abs(number) - 1) < 1e-9
                verdict.add(
                    "mask-added-not-filled" if added else "mask-fill-not-inf", evidence, line
                )
                return
        if self._of_distance(b):
            verdict.notes.append("A bias of relative positions is added to the scores.")
            last = b[..., -1, :].masked_fill(b[..., -1, :] < HIDDEN, 0.0)
            if bool((last.diff(dim=-1) < -1e-6).all(-1).any()):
                verdict.doubts.append("the bias grows with the distance, and ALiBi's falls")
            return
        verdict.doubts.append("a bias that could not be judged is added to the scores")

    def learned_bias(self, b: Tensor) -> None:
        """A bias of distances, of offsets in a window, or for each pair: else it is not judged."""
        verdict, window = self.verdict, self.expected.window
        values = by_offset(b, *window) if window is not None and len(window) == 2 else None
        if values is not None:
            verdict.notes.append("A bias of offsets in two directions is added to the scores.")
            self._whole_table(values)
        elif window is None and self._of_distance(b):
            verdict.notes.append("A bias of relative positions is added to the scores.")
        elif self._pair_table(b.shape[-1]):
            verdict.notes.append("A bias for each pair of positions is added to the scores.")
        else:
            verdict.doubts.append("a learned bias that depends on more than the distance")

    def _pair_table(self, tokens: int) -> bool:
        """Whether a parameter has a number for each pair of tokens."""
        widths = {self.reading.values[r].shape[-1] for r in self.core.operands}
        names = self.program.parameters
        beside = {
            r
            for i in self._between()
            for place in self.reading.places(i)
            for r in (
                place,
                *(p for k in self.program.before(place) for p in self.program.sources[k]),
            )
            if r in names and not self.reading.depends(place)
        }
        shapes = [self.program.weights[names[r]].shape for r in beside]
        return any(
            len(shape) >= 2 and min(shape[-2:]) >= tokens and not set(shape[-2:]) & widths
            for shape in shapes
        )

    def _whole_table(self, values: Tensor) -> None:
        """Where the table has a position for each offset, different offsets get different ones."""
        count = values.shape[1]
        whole = any(count in weight.shape for weight in self.program.weights.values())
        distinct = len({tuple(column) for column in values.mul(1e5).round().T.tolist()})
        if whole and distinct < count:
            evidence = (
                f"The table of the bias has {count} positions, one for each offset of two pixels; "
                f"only {distinct} of them are used, so that different offsets share a bias. Is the "
                "index (rows) * (2 * width - 1) + columns?"
            )
            self.verdict.add("unexplained", evidence, self._bias_line())

    def _bias_line(self) -> int | None:
        """The line that looks the bias up."""
        for i in sorted(self.program.before(self.core.scores), reverse=True):
            call = self.program.calls[i]
            if call.name in ("__getitem__", "embedding", "index_select", "gather") and any(
                r in self.program.parameters for r in self.program.sources[i]
            ):
                return call.line
        return self._mask_line()

    @staticmethod
    def _of_distance(b: Tensor) -> bool:
        """Whether a bias depends on the distance between query and key alone."""
        size = b.shape[-1]
        seen = b > HIDDEN
        for offset in range(-size + 1, size):
            line, fine = b.diagonal(offset, -2, -1), seen.diagonal(offset, -2, -1)
            if fine.all() and bool(((line - line[..., :1]).abs() > 1e-5).any()):
                return False
        return True

    def pattern(self, hidden: Tensor, future: Tensor, line: int | None) -> None:
        """Whether what is hidden is the future, where it should be."""
        verdict = self.verdict
        past = ~future
        self_ = torch.eye(len(hidden), dtype=torch.bool)
        if not hidden.any():
            verdict.mask = "none"
            if self.expected.causal == "yes":
                self.unmasked()
            return
        if torch.equal(hidden, future):
            verdict.mask = "causal"
            return
        evidence_of = {
            "mask-off-by-one": "Token i may attend to token i + 1.",
            "mask-hides-self": "Token i may attend to the tokens before it, but not to itself.",
            "mask-inverted": "Token i may attend to later tokens and not to earlier ones.",
            "mask-hides-others": "Each token may attend to itself alone.",
        }
        patterns = {
            "mask-off-by-one": future.triu(2),
            "mask-hides-self": future | self_,
            "mask-inverted": past,
            "mask-hides-others": ~self_,
        }
        for id, expected in patterns.items():
            same = torch.equal(hidden, expected)
            if id == "mask-inverted":
                same |= torch.equal(hidden, past & ~self_) or torch.equal(hidden, past.tril(-1))
            if same:
                fused = {self.program.calls[self.core.softmax].line}
                if id == "mask-inverted" and self._fused() and fused:
                    id = "sdpa-mask-polarity"
                    verdict.add(id, evidence_of["mask-inverted"], line)
                else:
                    drawn = line if id == "mask-inverted" else self._drawn()
                    verdict.add(id, evidence_of[id], drawn)
                return
        leak = (~hidden & future).any()
        widths = {int((~row[: i + 1]).sum()) for i, row in enumerate(hidden)}
        banded = (
            not leak
            and len(widths) > 1
            and all(
                torch.equal(~hidden[i, : i + 1], torch.arange(i + 1) > i - max(widths))
                for i in range(len(hidden))
            )
        )
        if banded:
            verdict.mask = f"window{max(widths)}"
            verdict.notes.append(f"Each token attends to the last {max(widths)} tokens.")
            return
        verdict.mask = "other"
        verdict.doubts.append("a mask of an unusual form")

    def _fused(self) -> bool:
        calls = self.program.calls
        return calls[self.core.softmax].line == calls[self.core.mixing].line == self.core.line

    def _mask_line(self) -> int | None:
        """The line that hides scores."""
        masks = {"masked_fill", "masked_fill_", "where", "__setitem__", "add", "add_", "__iadd__"}
        for i in sorted(self._between(), reverse=True):
            if self.program.calls[i].name in masks:
                return self.program.calls[i].line
        return None

    def _drawn(self) -> int | None:
        """The line that draws the mask, if that happens in the forward pass."""
        shapes = {"tril", "triu", "tril_", "triu_"}
        for i in sorted(self.program.before(self.core.scores), reverse=True):
            if self.program.calls[i].name in shapes:
                return self.program.calls[i].line
        return None

    def unmasked(self) -> None:
        """Nothing is hidden, and the class is meant to be causal."""
        program = self.program
        hides = {"masked_fill", "where", "tril", "triu", "add", "mul"}
        for index in sorted(program.after(self.core.dots)):
            call = program.calls[index]
            unused = not program.users.get(call.out[0]) and call.out[0] != self.reading.output
            if call.name in hides and unused and call.out[0] not in program.recording.outputs:
                evidence = f"The result of {call.name} is never used, so nothing is hidden."
                self.verdict.add("mask-result-dropped", evidence, call.line)
                return
        evidence = "No score is hidden: every token attends to the tokens after it."
        self.verdict.add("no-causal-mask", evidence, self.core.line)

    # Weights.

    def softmax(self, keys: int, queries: int) -> bool:
        """Whether the weights of a row sum to one along the keys."""
        call = self.program.calls[self.core.softmax]
        dim = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else None)
        scores = self.reading.values[self.core.scores]
        weights = self.reading.values[self.core.weights]
        if call.name in ("softmax", "log_softmax") and isinstance(dim, int):
            axis: int | None = dim % scores.ndim
        else:
            sums = self.reading._sums_to_one
            finite = weights.nan_to_num(0.0)
            axis = next((i for i in (keys, *range(weights.ndim)) if sums(finite, i)), None)
        if axis == keys:
            return True
        if axis is None:
            self.verdict.doubts.append("the axis of the softmax could not be told")
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

    def _has_sink(self, keys: int) -> bool:
        sums = self.reading.values[self.core.weights].nan_to_num(0.0).sum(keys)
        cut = self.program.calls[self.core.softmax].out[0] != self.core.weights
        return cut and bool((sums < 1 - 1e-6).any())

    def _mixes_queries(self, keys: int) -> bool:
        """Whether the axis that the values are summed along belongs to the queries."""
        axes = self.core.axes
        place = axes.index(keys)
        names = self.program.parameters
        roles = []
        for register in self.core.operands:
            calls = self.program.before(register)
            used = {role_of(names[r]) for i in calls for r in self.reading.places(i) if r in names}
            roles.append(used & {"q", "k"})
        if roles[place] and roles[place] != roles[1 - place]:
            return roles[place] == {"q"}
        return place == 0  # queries @ keys, as most people write it

    def weights(
        self, order: tuple[int, int], scores_order: tuple[int, int], over_keys: bool
    ) -> None:
        """What happens to the weights between the softmax and the values."""
        core, verdict = self.core, self.verdict
        start = torch.stack([core.canonical(v[core.weights], scores_order) for v in self.runs])
        end = torch.stack([core.canonical(v[core.mixed[1]], order) for v in self.runs])
        between = self.program.after(core.weights) & self.program.before(core.mixed[1])
        names = {self.program.calls[i].name for i in between}
        if core.softmax in between or names & {"softmax", "log_softmax"}:
            line = next(
                self.program.calls[i].line
                for i in sorted(between)
                if self.program.calls[i].name in ("softmax", "log_softmax")
            )
            verdict.add("softmax-twice", "A softmax runs on weights that are a softmax.", line)
            return
        if start.shape != end.shape:
            verdict.doubts.append("the weights change their shape before they meet the values")
            return
        if not over_keys or torch.equal(start, end):
            return
        fine = start.isfinite() & end.isfinite() & (start > 1e-9)
        ratio = (end / start)[fine]
        line = self._lines(between)
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
            if self._learned(between) and self._talk(list(start), list(end)):
                return
            if self._to_sink(start, end):
                verdict.notes.append(_SINK)
                return
            verdict.doubts.append("the weights pass a function that is not known")
            return
        gain = float(kept.median())
        if cut:
            evidence = (
                "Weights are set to zero after the softmax, and the rows are not divided by what "
                f"is left: they sum to {float(rows.min()):.2g} at the least."
            )
            verdict.add("mask-after-softmax", evidence, line)
        if abs(gain - 1) > 1e-6:
            root = core.head_dim**-0.5
            evidence = f"The weights are multiplied by {gain:.4g} after the softmax."
            after = abs(gain / root - 1) < 1e-4 or abs(gain * math.sqrt(self._width()) - 1) < 1e-4
            rate = self.expected.dropout
            twice = 0 < rate < 1 and abs(gain * (1 - rate) - 1) < 1e-4
            id = "dropout-rescaled-twice" if twice else "wrong-gain"
            verdict.add("scale-after-softmax" if after else id, evidence, line)

    def _to_sink(self, start: Tensor, end: Tensor) -> bool:
        """Whether each row of weights was multiplied by one number, less than one, and learned."""
        reading, program = self.reading, self.program
        read = [
            {r for i in program.before(stage) for r in reading.places(i) if r in program.parameters}
            for stage in (self.core.weights, self.core.mixed[1])
        ]
        if not read[1] - read[0]:
            return False
        share = end.sum(-1, keepdim=True)
        inside = bool(((share > 0) & (share < 1)).all())
        return inside and float((end - start * share).abs().max()) < self.close

    def _lines(self, calls: set[int]) -> int | None:
        found = [self.program.calls[i].line for i in sorted(calls)]
        return next((line for line in found if line is not None), None)

    # Heads.

    def groups(self) -> None:
        """Keys and values that several heads share must be shared by the same heads."""
        reading, core = self.reading, self.core
        shared = []
        for register in (core.operands[0], core.operands[1], core.mixed[3]):
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

    # Merge.

    def merge(self, rows: int | None) -> None:
        """Whether what comes out at a token comes from that token's row, with all heads in it."""
        reading, core, verdict = self.reading, self.core, self.verdict
        output = reading.values[reading.output]
        if rows is None:
            self._merge_by_shape()
            return
        context = core.context
        end = self._token_axis_of_output()
        if context == reading.output:
            return
        found = self._follow_to_output(context, rows)
        if found is not None and (end is None or found == end):
            self.information(context, rows, found)
            return
        index = self._lost_after(context, rows)
        if index is None:
            verdict.doubts.append("the tokens' axis is lost after the values are mixed")
            return
        call = self.program.calls[index]
        before = reading.values[reading.places(index)[0]]
        after = reading.values[call.out[0]]
        shapes = f"{tuple(before.shape)} -> {tuple(after.shape)}"
        if call.name in _RESHAPES:
            evidence = (
                f"{call.name} {shapes}: what comes out at one token is put together from rows of "
                "several tokens. The tokens' axis must stand before the heads' axis first."
            )
            verdict.add("merge-without-transpose", evidence, call.line)
        elif (
            call.name in ("cat", "concat", "concatenate")
            and end is not None
            and (output.shape[end] != reading.size[0])
        ):
            evidence = f"{call.name} gives {tuple(after.shape)}: the heads became more tokens."
            verdict.add("concat-on-wrong-axis", evidence, call.line)
        else:
            verdict.doubts.append("the tokens' axis is lost after the values are mixed")

    def _merge_by_shape(self) -> None:
        """After a wrong split: a merge that takes (batch, heads, tokens, head_dim) as it stands."""
        reading, core = self.reading, self.core
        for index in sorted(self.program.after(core.context)):
            call = self.program.calls[index]
            if call.name in ("transpose", "permute", "swapaxes", "swapdims", "movedim", "einsum"):
                return
            if call.name in _RESHAPES:
                before = reading.values[reading.places(index)[0]]
                after = reading.values[call.out[0]]
                if after.ndim < before.ndim and before.ndim == 4:
                    evidence = (
                        f"{call.name} {tuple(before.shape)} -> {tuple(after.shape)} without moving "
                        "the tokens' axis before the heads' axis first."
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
        """The axis of the rows in the output; the first of two axes for a picture."""
        reading = self.reading
        (found,) = reading.follow(context, rows, reading.output)
        axes = reading.sources[0].axes
        if found is not None or len(axes) == 1:
            return found
        base, output = reading.values[context], reading.values[reading.output]
        if output.ndim <= max(axes):
            return None
        for index in range(base.shape[rows]):
            new = reading.program.again(reading.values, {context: changed_at(base, (rows,), index)})
            moved = differs(new[reading.output], output).movedim(axes, (0, 1)).flatten(0, 1)
            places = moved.flatten(1).any(1).nonzero().flatten().tolist()
            if places != [index]:
                return None
        return axes[0]

    def _lost_after(self, register: int, axis: int) -> int | None:
        """The first call after a register in which this axis is no axis any more."""
        reading, program = self.reading, self.program
        path = sorted(program.after(register) & program.before(reading.output))
        outs = [program.calls[i].out[0] for i in path]
        for index, found in zip(path, reading.follow(register, axis, *outs), strict=True):
            if found is None:
                return index
        return path[-1] if path else None

    def information(self, context: int, rows: int, end: int) -> None:
        """Whether every number of every head reaches the output."""
        reading = self.reading
        values, output = reading.values[context], reading.values[reading.output]
        first = values.select(rows, 0)
        texts = reading.text_axis(context)
        if len(reading.cores) > 1 or texts is None or values.shape[texts] != self.batch:
            return
        shape = values.movedim((texts, rows), (0, 1)).shape
        width = math.prod(shape[2:])
        if width > 256 or not values.isfinite().all():
            return
        columns = []
        size = float(first.abs().mean()) + 0.1
        for number in range(width):
            moved = values.clone()
            view = moved.movedim((texts, rows), (0, 1))[0, 0]
            place = torch.unravel_index(torch.tensor(number), view.shape)
            view[tuple(place)] += 1e-4 * size
            new = reading.program.again(reading.values, {context: moved})
            if reading.output not in new:
                columns.append(torch.zeros(1, dtype=torch.float64))
                continue
            change = (new[reading.output] - output).select(end, 0)
            columns.append(change.reshape(-1).to(torch.float64))
        if len({len(column) for column in columns}) != 1:
            return
        matrix = torch.stack(columns)
        singular = torch.linalg.svdvals(matrix)
        rank = int((singular > 1e-7 * singular[0].clamp_min(1e-30)).sum())
        produced = output.numel() // max(self.batch * reading.size[0], 1)
        if rank >= min(width, produced):
            return
        heads = max(self.verdict.heads, 1)
        evidence = (
            f"The {heads} heads give {width} numbers per token, but only {rank} of them reach the "
            "output independently."
        )
        if heads > 1 and rank <= width // heads:
            still = [c for c in columns if float(c.abs().max()) < 1e-12]
            self.verdict.add("one-head-only" if still else "heads-summed", evidence, None)
        else:
            self.verdict.doubts.append(evidence)


def unused_weights(reading: Reading, verdict: Judgement) -> None:
    """Projections that are built, and take no part in the output."""
    program = reading.program
    before = program.before(reading.output)
    used = {r for i in before for r in reading.places(i)}
    names = program.parameters
    registers = {name: register for register, name in names.items()}
    unused = [
        name
        for name, register in registers.items()
        if register not in used and program.weights[name].ndim > 1 and "bias" not in name
    ]
    for name in unused:
        role = role_of(name)
        if role == "o":
            evidence = f"{name} takes no part in the output."
            verdict.add("out-proj-unused", evidence, None)
        elif role in ("q", "k", "v"):
            _name_missing(reading, verdict, name, role)
        else:
            verdict.notes.append(f"{name} takes no part in the output.")


def applied_twice(reading: Reading, verdict: Judgement) -> None:
    """A projection that is applied to its own result."""
    program = reading.program
    for register, name in program.parameters.items():
        if program.weights[name].ndim < 2 or role_of(name) not in ("q", "k", "v", "o"):
            continue
        calls = [i for i in program.users.get(register, ()) if program.calls[i].name == "linear"]
        for one in calls:
            later = program.after(program.calls[one].out[0])
            again = [i for i in calls if i in later and i in program.before(reading.output)]
            if again:
                evidence = f"{name} is applied again to what it gave before."
                verdict.add("unexplained", evidence, program.calls[again[0]].line)
                return


def whole_output(reading: Reading, verdict: Judgement) -> None:
    """No text may change another one, and where the future is hidden, no later token an output."""
    output, source = reading.output, reading.sources[0]
    if source.batch is not None and output in reading.texts:
        moves = reading.texts[output]
        if moves.ndim > source.batch + 1 and moves.shape[source.batch + 1] == len(moves):
            by = moves.movedim(source.batch + 1, 1).flatten(2).any(-1)
            if bool((by & ~torch.eye(len(moves), dtype=torch.bool)).any()):
                verdict.doubts.append("one text changes the output of another")
    if not verdict.mask.startswith(("causal", "window")) or len(source.axes) != 1:
        return
    moves, axis = reading.tokens[output][: reading.size[0]], source.axes[0]
    if moves.ndim > axis + 1 and moves.shape[axis + 1] == len(moves):
        by = moves.movedim(axis + 1, 1).flatten(2).any(-1)  # (token, output)
        if bool(by.tril(-1).any()):
            verdict.doubts.append("a later token changes an earlier output")


def beside(reading: Reading, verdict: Judgement) -> None:
    """What goes past the attention, a gate or a residual: it must reach its own token alone."""
    if verdict.findings or verdict.doubts:
        return
    program, output = reading.program, reading.values[reading.output]
    frozen = {core.context: reading.values[core.context] for core in reading.cores}
    axes = reading.sources[0].axes
    if reading.output in frozen or output.ndim <= max(axes):
        return
    source = reading.sources[0]
    for token in range(reading.size[0]):
        x = changed_at(reading.values[source.register], source.axes, token)
        new = program.again(reading.values, {source.register: x, **frozen})
        if reading.output not in new:
            return
        moved = differs(new[reading.output], output).movedim(axes, tuple(range(len(axes))))
        rows = moved.flatten(0, len(axes) - 1).flatten(1).any(1).nonzero().flatten().tolist()
        if any(row != token for row in rows):
            break
    else:
        return
    for index in sorted(program.before(reading.output)):
        call = program.calls[index]
        sources = [r for r in reading.places(index) if reading.depends(r)]
        out = call.out[0]
        if call.name in _RESHAPES and sources and reading.depends(out):
            had = reading.token_axis(sources[0]) is not None
            if had and out in reading.tokenwise and reading.token_axis(out) is None:
                shapes = f"{tuple(reading.values[sources[0]].shape)} -> "
                shapes += f"{tuple(reading.values[out].shape)}"
                evidence = f"{call.name} {shapes}: in the result no axis is the tokens any more."
                verdict.add("split-without-transpose", evidence, call.line)
                return
    verdict.doubts.append("something beside the attention mixes tokens")


def _name_missing(reading: Reading, verdict: Judgement, name: str, role: str) -> None:
    """Which weights were used in the place of those that were not."""
    program = reading.program
    core = reading.cores[0]
    names = program.parameters
    places = {"q": core.operands[0], "k": core.operands[1], "v": core.mixed[3]}
    register = places[role]
    calls = program.before(register)
    roles = {
        role_of(names[r])
        for i in calls
        for r in reading.places(i)
        if r in names and role_of(names[r]) in ("q", "k", "v")
    }
    if role in roles:
        verdict.notes.append(f"{name} takes no part in the output.")
        return
    lines = [program.calls[i].line for i in sorted(calls) if program.calls[i].name == "linear"]
    line = next((one for one in lines if one is not None), None)
    evidence = f"{name} takes no part in the output."
    known = {
        ("k", "q"): "key-from-query-weights",
        ("v", "k"): "value-from-keys",
        ("q", "k"): "query-from-key-weights",
        ("q", "v"): "query-from-value-weights",
        ("k", "v"): "key-from-value-weights",
        ("v", "q"): "value-from-queries",
    }
    whole = {"q": "query", "k": "key", "v": "value"}
    if len(roles) == 1:
        verdict.add(known[role, roles.pop()], evidence, line)
    elif not roles:
        verdict.add(f"{whole[role]}-not-projected", evidence, line)
    else:
        verdict.add("unexplained", evidence, line)


def by_offset(bias: Tensor, height: int, width: int) -> Tensor | None:
    """The bias of each offset (rows, columns) in a window of pixels, (groups, offsets).

    None if the bias depends on anything else. A number for each row changes no weight.
    """
    pixels = torch.arange(height * width)
    if bias.shape[1:] != (len(pixels), len(pixels)) or not bias.isfinite().all():
        return None
    rows, columns = pixels // width, pixels % width
    down = rows[:, None] - rows + height - 1
    across = columns[:, None] - columns + width - 1
    offset = (down * (2 * width - 1) + across).flatten()
    count, cells = (2 * height - 1) * (2 * width - 1), len(offset)
    table = torch.zeros(cells, count + len(pixels), dtype=bias.dtype)
    table[torch.arange(cells), offset] = 1.0
    table[torch.arange(cells), count + torch.arange(cells) // len(pixels)] = -1.0
    wanted = bias.flatten(1).T  # (cells, groups)
    found: Tensor = torch.linalg.pinv(table) @ wanted
    return found[:count].T if float((table @ found - wanted).abs().max()) < 1e-5 else None


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two outputs are equal up to rounding."""
    return one.shape == other.shape and not bool(differs(one, other).any())
