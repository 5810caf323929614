"""What happens to the products of queries and keys, above all their scale."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from clearhead.checker.diagnosis.attention_step import AttentionStep
from clearhead.checker.diagnosis.reading import HIDDEN, Reading, Unreadable, fit

_SCALES = {
    "mul", "div", "mul_", "div_", "__imul__", "__idiv__", "__itruediv__", "true_divide", "multiply",
}  # fmt: skip
_ROUNDS = {"floor_divide", "__floordiv__", "floor", "round", "trunc", "int", "long"}
_UNIT = {"normalize", "norm", "vector_norm", "rsqrt"}


class ScoreCheck(AttentionStep):
    """The scale of the scores, and what else happens to them."""

    def scale(self) -> tuple[Tensor | None, Tensor | None]:
        """Measure a and b in a * q.k + b and judge a; return both, None where not measurable."""
        core, verdict = self.core, self.verdict
        if any(factor_of(self.reading, register)[2] for register in core.operands):
            self.unit_lengths()
        dots = torch.stack([v[core.dots] for v in self.runs])
        scores = torch.stack([v[core.scores] for v in self.runs])
        if bool((scores > 1e6).any()):
            number = f"{float(scores.max()):+.3g}"
            evidence = f"Masked entries get {number} instead of -inf, and so all of the weight."
            verdict.add("mask-fill-not-inf", evidence, self._mask_line())
            verdict.mask = "lifted"
            return None, None
        fitted = fit(list(dots), list(scores))
        if fitted is not None:
            a, b, linear = *fitted, True
        else:  # heads that share keys, or other axes
            a, b, linear = dots[0], dots[0], False
            try:
                measured = core.scale(self.runs)
            except Unreadable as reason:
                if dots.shape != scores.shape:
                    verdict.doubts.append(str(reason))
                    return None, None
            else:
                if measured is not None:
                    a, b, linear = *measured, True
        names = {self.program.calls[i].name for i in self._between()}
        if linear and core.additive:
            return self.added(a, b)
        if not linear:
            found = self.sums() or (self.capped() if "tanh" in names else None)
            if found is None and not verdict.findings:
                found = self.with_positions()
            if found is not None:
                return found
            if verdict.findings:
                return None, None
            if names & _ROUNDS:
                evidence = "The scores are rounded to whole numbers before the softmax."
                verdict.add("unexplained", evidence, self._line(self._between(), _ROUNDS))
            else:
                verdict.doubts.append("the scores pass through a function that is not known")
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
        if fitted is not None:  # what is added, without the error in each entry of a
            exact = (scores.to(torch.float64) - usual * dots.to(torch.float64)).mean(0)
            scaled = seen & ((a - usual).abs() <= 10 * self.close * abs(usual))
            b = torch.where(scaled & exact.isfinite(), exact, b)
        return a, b

    def added(self, a: Tensor, b: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Judge additive attention: any function of a pair is fine, if the query has an effect."""
        core, base = self.core, self.reading.values
        self.verdict.notes.append("Additive attention: a small network scores each pair.")
        summed, _ = core.mixes_along(core.weight_axes(core.axes))
        if summed is None:
            raise Unreadable("how the weights meet the values could not be read")
        queries = core.operands[1 - summed]
        for source in self.reading.sources[:-1]:  # the decoder's state, before it is repeated
            if queries in self.program.again(base, {source.register: base[source.register] + 1}):
                queries = source.register
        noise = torch.randn(base[queries].shape, generator=torch.Generator().manual_seed(11))
        new = self.program.again(base, {queries: noise.to(base[queries].dtype)})
        moved = new.get(core.weights, base[core.weights]) - base[core.weights]
        if float(moved.abs().nan_to_num(0.0).max()) < self.close:
            evidence = (
                "Other queries give the same weights: what a query adds is the same for all keys, "
                "and the softmax cancels it. Is a tanh missing?"
            )
            self.verdict.add("unexplained", evidence, core.line)
            return None, None
        return a, b

    def capped(self) -> tuple[Tensor, Tensor] | None:
        """The a and b without the cap, for scores that are capped as c * tanh(scores / c)."""
        core, program = self.core, self.program
        (index,) = [i for i in self._between() if program.calls[i].name == "tanh"][:1]
        before, after = self.reading.places(index)[0], program.calls[index].out[0]
        if self.reading.values[before].shape != self.reading.values[core.dots].shape:
            return None
        inner = fit([v[core.dots] for v in self.runs], [v[before] for v in self.runs])
        masked = self.reading.values[core.scores][inner[1] < HIDDEN] if inner else Tensor()
        if masked.numel() and float(masked.max()) > HIDDEN:
            least = float(masked.min())
            evidence = f"The cap comes after the mask: masked entries get the score {least:.3g}."
            self.verdict.add("mask-fill-not-inf", evidence, program.calls[index].line)
            return None
        outer = fit([v[after] for v in self.runs], [v[core.scores] for v in self.runs])
        if inner is None or outer is None:
            return None
        (m, _), (n, b) = inner, outer
        a = m * n
        usual = float(a[(b > HIDDEN) & a.isfinite()].median())
        cap = float(n[n.isfinite() & (b > HIDDEN)].median())
        self.verdict.notes.append(f"The scores are capped at {cap:.4g} by a tanh.")
        inside = float(m[(b > HIDDEN) & m.isfinite()].median())
        right = core.head_dim**-0.5
        if abs(inside / right - 1) < 1e-4:
            return a, b  # c * tanh(scaled scores), as in pointer networks
        maker = program.maker.get(before)
        inverse = 1.0 if maker is None else _factor(self.reading, maker)
        free = min(abs(cap - 1), abs(cap * inverse - 1)) < 1e-4 or self.expected.arguments
        if abs(usual - 1) > 1e-4 and abs(usual / right - 1) > 1e-4 and not free:
            self.verdict.doubts.append("the scores are capped in an unknown way")
            return a, b
        self.judge_scale(usual)
        return a, b

    def sums(self) -> tuple[Tensor, Tensor] | None:
        """The a and b for scores that are a sum of several products, as in latent attention."""
        core, verdict = self.core, self.verdict
        if len(core.products) < 2:
            return None
        dots = [core.dots_of(index) for index in core.products]
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
        verdict.notes.append(f"The scores are the sum of {len(dots)} products.")
        verdict.products = len(dots)
        self.judge_scale(usual)
        return a, b

    def with_positions(self) -> tuple[Tensor, Tensor] | None:
        """The a and b for scores a * q.k + r, where r combines positions with queries or keys.

        Queries and keys are changed, each alone and both together: the part that changes only with
        both is a * q.k, whatever else is added.
        """
        core, reading = self.core, self.reading
        if None in core.dot_axes or core.operands[0] == core.operands[1]:
            return None
        base = reading.values
        crossed: list[tuple[Tensor, Tensor]] = []
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            q, k = (
                base[r] + torch.randn(base[r].shape, generator=generator).to(base[r].dtype)
                for r in core.operands
            )
            one, other = core.operands
            passes = [base] + [
                {**base, **self.program.again(base, changed)}
                for changed in ({one: q, other: k}, {one: q}, {other: k})
            ]
            exact = [[t.to(torch.float64) for t in core.pairs(values)] for values in passes]
            dots, scores = zip(*exact, strict=True)
            if dots[0].shape != scores[0].shape:
                return None
            crossed.append(
                (
                    dots[0] + dots[1] - dots[2] - dots[3],
                    scores[0] + scores[1] - scores[2] - scores[3],
                )
            )
        own = core.pairs(base)[1].to(torch.float64)
        hidden = own < HIDDEN
        a = sum((x * y for x, y in crossed), torch.zeros_like(own))
        a = a / sum((x * x for x, _ in crossed), torch.zeros_like(own))
        usual = float(a[~hidden].median())
        rest = max(float((y - usual * x)[~hidden].abs().max()) for x, y in crossed)
        if not rest < 100 * self.close or abs(usual) < 1e-9:
            return None
        if not self._by_distance(usual, hidden):
            self.verdict.doubts.append("a position term that depends on more than the distance")
            return None
        self.verdict.notes.append("A relative position term is added to the scores.")
        self.judge_scale(usual, learned=False)
        zero = torch.zeros_like(own).masked_fill(hidden, -torch.inf)
        return torch.full_like(own, usual), zero

    def _by_distance(self, a: float, hidden: Tensor) -> bool:
        """Whether, with equal tokens, what is added to a * q.k depends only on the distance."""
        core, reading = self.core, self.reading
        equal = {}
        for source in reading.sources:
            x = reading.values[source.register]
            for axis in source.axes:
                x = x.narrow(axis, 0, 1).expand_as(reading.values[source.register])
            equal[source.register] = x.contiguous()
        dots, scores = core.pairs({**reading.values, **self.program.again(reading.values, equal)})
        added = scores - a * dots
        size = float(added[~hidden].abs().max()) + 1.0
        for offset in range(1 - added.shape[-2], added.shape[-1]):
            line = added.diagonal(offset, -2, -1)
            seen = ~hidden.diagonal(offset, -2, -1)
            for row, fine in zip(line, seen, strict=True):
                if fine.any() and float((row[fine] - row[fine][0]).abs().max()) > 1e-5 * size:
                    return False
        return True

    def judge_scale(self, a: float, *, learned: bool = True) -> None:
        """Check that a, together with the factors on queries and keys, is 1 / sqrt(head_dim).

        Args:
            a: The factor on the products.
            learned: Whether a parameter that affects the scores may be the scale, or a bias.
        """
        verdict, core = self.verdict, self.core
        (fq, line_q, unit_q), (fk, line_k, unit_k) = (
            factor_of(self.reading, register) for register in core.operands
        )
        if unit_q or unit_k or (learned and self._learned(self._between_scaling())):
            return
        told = self.expected.unscaled
        biased = learned and self._learned(self._between())
        if abs(a * fq * fk - 1) < 1e-4 and told and not biased:
            evidence = "The scale is 1, and the source says that this is intended."
            verdict.add("missing-scale", evidence, core.line, "edge")
            return
        if abs(a * fq * fk - 1) < 1e-4 and biased:
            said = "the source says so" if told else "this may be intended"
            evidence = f"The scale is 1. With a learned position bias, as in T5, {said}."
            verdict.add("missing-scale", evidence, core.line, "edge")
            verdict.question |= not told
            return
        total, width = a * fq * fk, core.head_dim
        verdict.scale = total
        right = width**-0.5
        if abs(total / right - 1) < 1e-4:
            return
        if any(
            abs(total / n - 1) < 1e-4 for m in self.expected.arguments for n in (m, 1 / m, m**-0.5)
        ):
            verdict.notes.append("The scale is an argument, and the value passed is used.")
            return
        line = self._line(self._between_scaling()) or line_q or line_k or core.line
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
            verdict.add("scale-by-d-out", evidence + f" {total:.3g} is 1 / √{whole}, the square "
                        "root of all heads' width.", line)  # fmt: skip
        elif abs(total * math.sqrt(self._input_width()) - 1) < 1e-4:
            whole = self._input_width()
            id = "scale-by-d-out" if len(self.reading.cores) > 1 else "wrong-scale"
            verdict.add(id, evidence + f" {total:.3g} is 1 / √{whole}, the square root of the "
                        "input's width.", line)  # fmt: skip
        else:
            verdict.add("wrong-scale", evidence, line)

    def _input_width(self) -> int:
        """The number of features of a token in the input."""
        source = self.reading.sources[0]
        tensor = self.reading.values[source.register]
        texts = 1 if source.batch is None else tensor.shape[source.batch]
        return tensor.numel() // (texts * self.reading.size[0])

    def unit_lengths(self) -> None:
        """Check that normalised queries and keys have norm 1 along the axis that is summed."""
        for register in self.core.operands:
            axis = self.reading.token_axis(register)
            tensor = self.reading.values[register]
            wide = [
                a for a in range(tensor.ndim) if tensor.shape[a] == self.core.head_dim and a != axis
            ]
            if any(self._unit_along(register, a) for a in wide or [tensor.ndim - 1]):
                continue
            others = [
                a for a in range(tensor.ndim) if a not in wide and self._unit_along(register, a)
            ]
            if others:
                evidence = (
                    f"Vectors have norm 1 along axis {others[0]} of {tuple(tensor.shape)}, but "
                    f"the products sum over axis {wide[0] if wide else -1}, the width of a head."
                )
                line = self._line(self.program.before(register), _UNIT, last=True)
                self.verdict.add("norm-over-wrong-axis", evidence, line)
            elif not self._learned(self.program.before(register)):
                self.verdict.doubts.append("queries or keys are normalised in an unusual way")
            return

    def _unit_along(self, register: int, axis: int) -> bool:
        """Whether vectors along an axis have the same norm, up to a learned gain per feature."""
        tensors = torch.stack([values[register] for values in self.runs]).to(torch.float64)
        squares = tensors.movedim(axis + 1, -1).flatten(0, -2) ** 2
        if tensors.shape[axis + 1] < 2 or not squares.isfinite().all():
            return False
        lengths = squares.sum(-1).sqrt()
        if float((lengths / lengths.mean() - 1).abs().max()) < 1e-3:
            return True
        if len(squares) < 2 * squares.shape[-1]:
            return False  # too few to determine the gains
        gains = torch.linalg.lstsq(squares, torch.ones(len(squares), 1, dtype=torch.float64))
        rest = squares @ gains.solution - 1
        return float(rest.abs().max()) < 1e-3

    def _between_scaling(self) -> set[int]:
        return {i for i in self._between() if self.program.calls[i].name in _SCALES}


def factor_of(reading: Reading, register: int) -> tuple[float, int | None, bool]:
    """The factor on queries or keys, its line, and whether they are normalised."""
    product, line, unit = 1.0, None, False
    program = reading.program
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
        factor = _factor(reading, index)
        if factor != 1.0:
            product, line = product * factor, call.line
        if len(sources) > 1 and call.name in (*_SCALES, "div"):
            before = {program.calls[i].name for r in sources[1:] for i in program.before(r)}
            unit |= bool(before & {*_UNIT, "sum", "mean", "pow", "square"})
        current = sources[0] if sources else None
    return product, line, unit


def _factor(reading: Reading, index: int) -> float:
    """The constant that a call multiplies one register by; 1.0 if it does not."""
    call = reading.program.calls[index]
    places = reading.places(index)
    data = [r for r in places if reading.depends(r)]
    if call.name not in _SCALES or len(data) != 1:
        return 1.0
    numbers = [float(v) for v in call.args if isinstance(v, int | float) and type(v) is not bool]
    others = [r for r in places if r != data[0]]
    if not numbers and len(others) == 1 and not reading.learned(others[0]):
        tensor = reading.values[others[0]]
        numbers = tensor.reshape(-1).tolist() if tensor.numel() == 1 else []
    return 1.0 if not numbers else 1 / numbers[0] if "div" in call.name else numbers[0]
