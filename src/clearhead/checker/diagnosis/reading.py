"""Read the attention in a program: scores, scale, mask, softmax, weights, values, merge.

    scores = queries @ keys,  weights = softmax(a * scores + b),  context = weights @ values

Variable names are not used. A token of the input is changed, and what moves shows which axis of a
tensor is the token axis; the first tensor with entries that depend on two tokens holds the scores;
a and b are measured for every pair of tokens. So a step is identified by what it does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.checker.diagnosis.program import Program, Values, function_of, registers_in, revived

HIDDEN = -1e3  # a score lower than the others by this much gets no weight


_LIKE = {"type_as", "view_as", "reshape_as", "expand_as", "to"}
RESHAPES = {"view", "reshape", "view_as", "reshape_as", "flatten", "unflatten"}
_CONVERTS = {"to", "float", "double", "type", "type_as"}


class Unreadable(ValueError):
    """The program has no attention that can be read, with the reason."""


class Stacked(Unreadable):
    """One attention reads the output of another, so that neither represents the whole class."""


@dataclass(frozen=True)
class Source:
    """An input that holds tokens.

    Args:
        register: Its register.
        batch: The batch axis; None for a single sequence without one.
        axes: The token axis; two axes for the pixels of an image.
    """

    register: int
    batch: int | None
    axes: tuple[int, ...]


def changed_at(x: Tensor, axes: tuple[int, ...], index: int) -> Tensor:
    """The same tensor with other values at one index along these axes, taken as one."""
    new = x.clone()  # with the same strides, so that a later view works
    if new.stride() != x.stride() and 0 in x.stride():
        new = x.contiguous().clone()
    first = new.movedim(axes, tuple(range(len(axes))))
    part = first[index] if len(axes) == 1 else first[divmod(index, first.shape[1])]
    noise = torch.randn(part.shape, generator=torch.Generator().manual_seed(17))
    size_of = x.abs().nan_to_num(0.0, 0.0, 0.0).mean().clamp_min(0.1)
    part.add_((noise.to(x.dtype) + 0.5) * size_of)
    return new


def differs(one: Tensor, other: Tensor) -> Tensor:
    """Where two tensors differ by more than rounding; NaN equals NaN."""
    if one.shape != other.shape:
        raise Unreadable("a shape depends on the values of the input")
    unequal = (one != other) & ~((one != one) & (other != other))
    if not one.is_floating_point():
        return unequal
    large = torch.maximum(one.abs(), other.abs())
    usual = large[large < 1e6]  # without masked scores
    size = large + (usual.mean() if usual.numel() else 0.0)
    return unequal & ~((one - other).abs() <= 1e4 * torch.finfo(one.dtype).eps * size)


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal up to rounding."""
    return one.shape == other.shape and not bool(differs(one, other).any())


def axis_of(moves: Tensor, skip: tuple[int, ...] = ()) -> int | None:
    """The axis along which entry i moves only with change i; moves is (changes, *shape)."""
    count = len(moves)
    found = None
    for axis in range(moves.ndim - 1):
        if moves.shape[axis + 1] != count or axis in skip:
            continue
        by = _by_index(moves, axis)
        if by.any() and not (by & ~torch.eye(count, dtype=torch.bool)).any():
            if found is not None:
                return None
            found = axis
    return found


def _by_index(moves: Tensor, axis: int) -> Tensor:
    """Which change moves which index of an axis: (changes, index)."""
    return moves.movedim(axis + 1, 1).reshape(len(moves), moves.shape[axis + 1], -1).any(-1)


def joined_axis_of(moves: Tensor) -> int | None:
    """The axis on which each change moves an index of its own, among others that do not move.

    This is the token axis after tokens were concatenated with something else, such as extra keys.
    """
    found = None
    for axis in range(moves.ndim - 1):
        if moves.shape[axis + 1] <= len(moves):
            continue
        by = _by_index(moves, axis)
        if bool((by.sum(1) == 1).all()) and bool((by.sum(0) <= 1).all()):
            if found is not None:
                return None
            found = axis
    return found


def picked_axis_of(moves: Tensor) -> int | None:
    """The axis of a few selected tokens: some changes move an index of their own.

    For example, only the class token may have a query.
    """
    found = None
    for axis in range(moves.ndim - 1):
        by = _by_index(moves, axis)
        own = bool((by.sum(1) <= 1).all()) and bool((by.sum(0) == 1).all())
        if moves.shape[axis + 1] < len(moves) and own:
            if found is not None:
                return None
            found = axis
    return found


def _most(moves: Tensor) -> int:
    """The largest number of changes that move the same entry."""
    return int(moves.sum(0).max()) if moves.numel() else 0


def fit(xs: list[Tensor], ys: list[Tensor]) -> tuple[Tensor, Tensor] | None:
    """Fit y = a * x + b for each entry: a and b, or None if y is not of this form."""
    close = closeness(ys[0])
    x, y = torch.stack(xs).to(torch.float64), torch.stack(ys).to(torch.float64)
    if x.shape != y.shape:
        return None
    hidden = (y < -1e30).all(0)
    y = y.masked_fill(hidden, 0.0)
    middle, level = x.mean(0), y.mean(0)
    a = ((x - middle) * (y - level)).sum(0) / ((x - middle) ** 2).sum(0)
    a = a.masked_fill(hidden, torch.nan)
    b = (level - a * middle).masked_fill(hidden, -torch.inf)
    rest = (y - (a * x + b)).abs()
    size = y.abs().masked_fill(y.abs() > 1e6, 0.0).nan_to_num(0.0, 0.0, 0.0).amax().clamp_min(1.0)
    linear = bool(((rest <= close * size) | hidden | (b < HIDDEN)).all())
    return (a, b) if linear else None


def closeness(tensor: Tensor) -> float:
    """How close two values of this dtype must be to count as equal."""
    return 1e-6 if tensor.dtype == torch.float64 else 1e-4


class Reading:
    """A program, and the dependencies in it.

    Args:
        program: The recorded pass.
        sources: The inputs that hold tokens.
        output: The register of the output.
        picks: Whether queries or keys may be those of a few tokens: a class token alone, say. In
            attention by blocks of tokens, each block would be taken for such an attention.
    """

    def __init__(
        self,
        program: Program,
        sources: tuple[Source, ...],
        output: int,
        *,
        picks: bool = False,
    ) -> None:
        self.program = program
        self.picks = picks
        self.sources = sources
        self.output = output
        self.values = program.run()
        self.tokens: dict[int, Tensor] = {}
        self.texts: dict[int, Tensor] = {}
        self._look()
        for _ in range(3):
            beyond = self._after_norm()
            if beyond is None:
                break
            self.sources = beyond
            self._look()

    def _look(self) -> None:
        """Determine what depends on which token and which sequence."""
        self.tokens, self.texts = {}, {}
        self._token_axes: dict[int, int | None] = {}
        self.__dict__.pop("tokenwise", None)
        self.size = [
            math.prod(self.values[source.register].shape[axis] for axis in source.axes)
            for source in self.sources
        ]
        self._token_prints()
        self._text_prints()

    def _after_norm(self) -> tuple[Source, ...] | None:
        """The sources after a norm over all tokens of a sequence, if such a norm comes first."""
        for call in self.program.calls:
            out = call.out[0]
            if out in self.tokens and out not in self.tokenwise:
                if call.name not in ("group_norm", "batch_norm", "instance_norm"):
                    return None
                read = self.program.sources[self.program.maker[out]]
                return tuple(
                    Source(out, s.batch, s.axes)
                    if any(
                        s.register == r
                        or self.program.maker.get(r) in self.program.after(s.register)
                        for r in read
                    )
                    else s
                    for s in self.sources
                )
        return None

    def _token_prints(self) -> None:
        total = sum(self.size)
        first = 0
        made = {s.register: self.values[s.register] for s in self.sources}
        for source, count in zip(self.sources, self.size, strict=True):
            x = self.values[source.register]
            for token in range(count):
                changed = {source.register: changed_at(x, source.axes, token)}
                new = self.program.again(self.values, made | changed)
                self._add(self.tokens, new, first + token, total)
            first += count

    def _text_prints(self) -> None:
        batches = {
            self.values[s.register].shape[s.batch] for s in self.sources if s.batch is not None
        }
        if len(batches) != 1:
            return
        (count,) = batches
        for text in range(count):
            changed = {
                s.register: changed_at(self.values[s.register], (s.batch,), text)
                for s in self.sources
                if s.batch is not None
            }
            self._add(self.texts, self.program.again(self.values, changed), text, count)

    def _add(self, prints: dict[int, Tensor], new: Values, index: int, total: int) -> None:
        for register, value in new.items():
            base = self.values[register]
            if register not in prints:
                prints[register] = torch.zeros(total, *base.shape, dtype=torch.bool)
            prints[register][index] = differs(value, base)

    @cached_property
    def tokenwise(self) -> set[int]:
        """The registers in which each entry depends on at most one token."""
        return {r for r, moves in self.tokens.items() if _most(moves) <= 1}

    def depends(self, register: int) -> bool:
        """Whether a register depends on the input at all."""
        return register in self.tokens and bool(self.tokens[register].any())

    def learned(self, register: int) -> frozenset[int]:
        """The parameters that a register is computed from."""
        program = self.program
        read = {r for i in program.before(register) for r in program.sources[i]}
        return frozenset((read | {register}) & program.parameters.keys())

    def token_axis(self, register: int) -> int | None:
        """The token axis of a register, for whichever source it depends on."""
        if register not in self._token_axes:
            self._token_axes[register] = self._find_token_axis(register)
        return self._token_axes[register]

    def _find_token_axis(self, register: int) -> int | None:
        found = set()
        first = 0
        for count in self.size:
            moves = self.tokens[register][first : first + count]
            if moves.any():
                ways = (axis_of, joined_axis_of, *([picked_axis_of] if self.picks else []))
                axes = (axis for axis in (way(moves) for way in ways) if axis is not None)
                found.add(next(axes, None))
            first += count
        return found.pop() if len(found) == 1 else None

    def has_pixels(self, register: int) -> bool:
        """Whether each pixel of the image has its own position on two axes."""
        moves = self.tokens[register]
        shapes = [
            tuple(self.values[s.register].shape[axis] for axis in s.axes)
            for s in self.sources
            if len(s.axes) == 2
        ]
        return any(
            tuple(moves.shape[axis + 1 : axis + 3]) in shapes
            and axis_of(moves.flatten(axis + 1, axis + 2)) == axis
            for axis in range(moves.ndim - 2)
        )

    def tokens_at(self, register: int) -> list[int] | None:
        """The indices of the tokens on their axis, if they belong to one input."""
        axis = self.token_axis(register)
        moves = [one for one in torch.split(self.tokens[register], self.size) if one.any()]
        if axis is None or len(moves) != 1:
            return None
        by = _by_index(moves[0], axis)
        return [int(row.nonzero()[0]) for row in by if row.any()]

    def text_axis(self, register: int) -> int | None:
        """The batch axis of a register."""
        return axis_of(self.texts[register]) if register in self.texts else None

    def follow(self, start: int, axis: int, *ends: int) -> list[int | None]:
        """The axis in other registers that matches one here: index i moves only index i."""
        base = self.values[start]
        count = base.shape[axis]
        moves = {end: torch.zeros(count, *self.values[end].shape, dtype=torch.bool) for end in ends}
        for index in range(count):
            new = self.program.again(self.values, {start: changed_at(base, (axis,), index)})
            for end in ends:
                if end in new:
                    moves[end][index] = differs(new[end], self.values[end])
        return [axis_of(moves[end]) for end in ends]

    def call_alone(self, index: int, place: int, tensor: Tensor) -> Tensor:
        """The first result of one call, with another tensor as one of its register arguments."""
        call = self.program.calls[index]
        count = -1

        def put(value: object) -> object:
            nonlocal count
            if isinstance(value, dict) and "register" in value:
                count += 1
                return tensor if count == place else revived(value, self.values)
            if isinstance(value, dict):
                ((kind, inner),) = value.items()
                if kind in ("list", "tuple"):
                    made = [put(item) for item in inner]
                    return made if kind == "list" else tuple(made)
            return revived(value, self.values)

        with torch.no_grad():
            args = [put(value) for value in call.args]
            kwargs = {name: put(value) for name, value in call.kwargs.items()}
            got = function_of(call)(*args, **kwargs)
        return got[0] if isinstance(got, list | tuple) else got  # type: ignore[no-any-return]

    def places(self, index: int) -> list[int]:
        """The registers that a call refers to, in order, with repetitions."""
        call = self.program.calls[index]
        values = (*call.args, *call.kwargs.values())
        return [number for value in values for number in registers_in(value)]

    @cached_property
    def cores(self) -> tuple[Core, ...]:
        """Every attention in the program that has a softmax."""
        found: list[Core] = []
        for index in sorted(self.program.before(self.output)):
            softmax = self._softmax(index)
            if softmax is None or self._of_weights(softmax[0], found):
                continue
            if any(core.mixing in self.program.before(softmax[0]) for core in found):
                raise Stacked("one attention reads the output of another")
            found.append(Core(self, index, *softmax))
        return tuple(found)

    @property
    def has_softmax(self) -> bool:
        """Whether there is an attention with a softmax, even one that cannot be read."""
        try:
            return bool(self.cores)
        except Unreadable:
            return True

    @property
    def is_readable(self) -> bool:
        """Whether every attention in it can be read."""
        try:
            return all(None not in core.dot_axes for core in self.cores)
        except Unreadable:
            return False

    def is_product(self, index: int) -> bool:
        """Whether a call's result has entries that depend on two tokens, unlike its operands."""
        out = self.program.calls[index].out[0]
        sources = [r for r in self.program.sources[index] if r in self.tokens]
        pairs = out in self.tokens and out not in self.tokenwise
        return pairs and all(r in self.tokenwise for r in sources)

    def _of_weights(self, scores: int, found: list[Core]) -> bool:
        """Whether these scores are the weights of an attention that was found earlier."""
        before = self.program.before(scores)
        return any(
            core.softmax in before
            and self.program.calls[core.mixing].out[0] != scores
            and core.mixing not in before
            for core in found
        )

    def _softmax(self, index: int) -> tuple[int, int] | None:
        """The registers of scores and weights, if this call is a softmax over pairs of tokens."""
        call = self.program.calls[index]
        if call.out[0] not in self.tokens or not self.depends(call.out[0]):
            return None
        if call.name in ("softmax", "log_softmax"):
            scores = self.places(index)[0]
            if not self._pairs(scores):
                return None
            plain = scores, call.out[0]
            return self._without_sink(*plain) or self._unflattened(*plain) or plain
        if call.name not in ("div", "true_divide", "__itruediv__", "div_", "mul", "exp"):
            return None
        weights = self.values[call.out[0]]
        if weights.ndim < 2 or not weights.is_floating_point():
            return None
        if not any(self._sums_to_one(weights, axis) for axis in range(weights.ndim)):
            return None
        if call.name == "exp":  # of scores minus their logsumexp
            scores = self._unshifted(self.places(index)[0])
            return (scores, call.out[0]) if self._pairs(scores) else None
        register: int | None = self.places(index)[0]
        for _ in range(12):  # from the numerator back to the exp
            maker = self.program.maker.get(register) if register is not None else None
            if maker is None:
                return None
            made = self.program.calls[maker]
            if made.name in ("exp", "exp_"):
                scores = self._unshifted(self.places(maker)[0])
                return (scores, call.out[0]) if self._pairs(scores) else None
            sources = [r for r in self.places(maker) if self.depends(r)]
            register = sources[0] if sources else None
        return None

    def _without_sink(self, scores: int, weights: int) -> tuple[int, int] | None:
        """The scores before a sink is appended, and the weights without that of the sink."""
        program = self.program
        maker = program.maker.get(self._unshifted(scores))
        while maker is not None and program.calls[maker].name in _CONVERTS:
            maker = program.maker.get(self._unshifted(program.sources[maker][0]))
        if maker is None or program.calls[maker].name not in ("cat", "concat", "concatenate"):
            return None
        parts = self.places(maker)
        pairs = [r for r in parts if self._pairs(r)]
        if len(pairs) != 1 or len(parts) != 2 or self.depends(next(iter({*parts} - {*pairs}))):
            return None
        cut = self._shaped_like(pairs[0], weights)
        return None if cut is None else (pairs[0], cut)

    def _unflattened(self, scores: int, weights: int) -> tuple[int, int] | None:
        """The scores before batch and queries became one axis, and the weights after that."""
        maker = self.program.maker.get(scores)
        if maker is None or self.program.calls[maker].name not in RESHAPES:
            return None
        before = self.places(maker)[0]
        shape = self.values[before].shape
        if not self._pairs(before) or shape[-1] != self.values[scores].shape[-1]:
            return None
        after = self._shaped_like(before, weights)
        return None if after is None else (before, after)

    def _shaped_like(self, register: int, weights: int) -> int | None:
        """The first result with a register's shape that is computed directly from the weights."""
        made, program = [weights], self.program
        for one in made:  # grows during iteration
            for index in program.users.get(one, ()):
                for out in program.calls[index].out:
                    if out in self.values and self.values[out].shape == self.values[register].shape:
                        return out
                if program.calls[index].name in (*_CONVERTS, "dropout"):
                    made.append(program.calls[index].out[0])
        return None

    @staticmethod
    def _sums_to_one(weights: Tensor, axis: int) -> bool:
        sums = weights.sum(axis)
        fine = sums.isfinite()
        return bool(fine.any()) and bool((sums[fine] - 1).abs().max() < 1e-4)

    def _unshifted(self, register: int) -> int:
        """The scores before their maximum was subtracted, which changes no weight."""
        while True:
            maker = self.program.maker.get(register)
            if maker is None or self.program.calls[maker].name not in ("sub", "__isub__", "sub_"):
                return register
            places = self.places(maker)
            before = {self.program.calls[i].name for i in self.program.before(places[-1])}
            if len(places) != 2 or not before & {"max", "amax", "logsumexp"}:
                return register
            register = places[0]

    def _pairs(self, register: int) -> bool:
        """Whether some entry depends on two tokens."""
        return register in self.tokens and _most(self.tokens[register]) >= 2


# Queries and keys are added or concatenated: a small network scores each pair.
_ADDS = {"add", "__add__", "__radd__", "add_", "__iadd__", "sub", "cat", "concat", "concatenate"}


class Mixed(NamedTuple):
    """The registers of values and weights where they are multiplied."""

    values: int
    weights: int


class Core:
    """One attention: one product of queries and keys, one softmax, one product with values.

    Args:
        reading: The program around it.
        softmax: The call that computes the weights.
        scores: The input register of the softmax.
        weights: Its output register.
    """

    def __init__(self, reading: Reading, softmax: int, scores: int, weights: int) -> None:
        self.reading = reading
        self.softmax = softmax
        self.scores = scores
        self.weights = weights
        self.products = self._first_pairs()
        self.product = self._joining(self.products[0])
        self.additive = reading.program.calls[self.product].name in _ADDS
        if self.additive:
            self.products = [self.product]
        self.dots = self.dots_of(self.product)
        operands = [r for r in reading.places(self.product) if reading.depends(r)]
        self.operands = tuple(operands)
        if len(operands) != 2:
            raise Unreadable("the scores are not a product of queries and keys")

    def _first_pairs(self) -> list[int]:
        """The calls whose results have entries that depend on two tokens, unlike their operands."""
        before = sorted(self.reading.program.before(self.scores))
        found = [index for index in before if self.reading.is_product(index)]
        if not found:
            raise Unreadable("each score depends on one token only")
        return found

    def _joining(self, index: int) -> int:
        """The call itself, or the one that concatenated queries and keys for it."""
        reading = self.reading
        for _ in range(4):
            operands = [r for r in reading.places(index) if reading.depends(r)]
            if len(operands) != 1 or operands[0] not in reading.program.maker:
                return index
            index = reading.program.maker[operands[0]]
        return index

    def dots_of(self, index: int) -> int:
        """The register of the scores that one of the products gives."""
        return self._summed(index, self.scores)

    @property
    def all_operands(self) -> tuple[int, ...]:
        """The operands of all products."""
        reading = self.reading
        registers = [r for index in self.products for r in reading.places(index)]
        return tuple(dict.fromkeys(r for r in registers if reading.depends(r)))

    def _summed(self, index: int, end: int) -> int:
        """The result of a product; if it is written as q * k, the sum that follows.

        For additive attention, it is the first result with one entry for each pair.
        """
        program = self.reading.program
        out = program.calls[index].out[0]
        if self.additive and end >= 0:
            count = self.reading.values[end].numel()
            later = [program.calls[i].out[0] for i in program.after(out) & program.before(end)]
            ahead = [out, *sorted(later, key=lambda r: program.maker[r]), end]
            return next(r for r in ahead if self.reading.values[r].numel() <= count)
        if program.calls[index].name not in ("mul", "multiply"):
            return out
        for i in sorted(program.after(out)):
            if program.calls[i].name == "sum" and (i in program.before(end) or end < 0):
                return program.calls[i].out[0]
        raise Unreadable("the scores are products that are not summed")

    @cached_property
    def line(self) -> int | None:
        """The line that computes the scores."""
        return self.reading.program.calls[self.product].line

    @cached_property
    def dot_axes(self) -> tuple[int | None, int | None]:
        """Which axis of the scores belongs to the tokens of each operand."""
        reading, program = self.reading, self.reading.program
        out = program.calls[self.product].out[0]
        mentioned = reading.places(self.product)
        places = [place for place, r in enumerate(mentioned) if reading.depends(r)]
        found: list[int | None] = []
        for place, register in zip(places, self.operands, strict=True):
            axis, tensor = reading.token_axis(register), reading.values[register]
            if axis is None:
                found.append(None)
                continue
            moves = []
            for i in range(tensor.shape[axis]):
                new = reading.call_alone(self.product, place, changed_at(tensor, (axis,), i))
                dots = program.again(reading.values, {out: new})[self.dots]
                moves.append(differs(dots, reading.values[self.dots]))
            found.append(axis_of(torch.stack(moves)))
        first, second = found
        return first, second

    @property
    def known_dot_axes(self) -> tuple[int, int]:
        """The same as `dot_axes`.

        Raises:
            Unreadable: If one of them is unknown.
        """
        first, second = self.dot_axes
        if first is None or second is None:
            raise Unreadable("the scores have no token axis")
        return first, second

    def pairs(self, values: Values) -> tuple[Tensor, Tensor]:
        """The products and the scores as (groups, queries, keys)."""
        dots = self.canonical(values[self.dots], self.known_dot_axes)
        return dots, self.canonical(values[self.scores], self.axes)

    @cached_property
    def context(self) -> int:
        """The register of the mixed values."""
        return self._summed(self.mixing, -1)

    @cached_property
    def _from_weights(self) -> set[int]:
        """The weights, and every register that is computed from them."""
        program = self.reading.program
        after = program.after(self.weights)
        return {out for i in after for out in program.calls[i].out} | {self.weights}

    @cached_property
    def mixing(self) -> int:
        """The call that mixes the values with the weights."""
        reading, program, made = self.reading, self.reading.program, self._from_weights
        after = program.after(self.weights)
        for index in sorted(after & program.before(reading.output)):
            places = reading.places(index)
            others = [r for r in places if r not in made and reading.depends(r)]
            if program.calls[index].name in _LIKE:
                continue  # the other tensor gives only its dtype or its shape
            if program.calls[index].name in ("mul", "div") and all(map(self._is_gain, others)):
                continue  # each row is multiplied by a scalar
            if others and any(r in made for r in places):
                return index
        raise Unreadable("the weights are never used to mix values")

    def _is_gain(self, register: int) -> bool:
        """Whether a register has one value for each row of the weights."""
        gain, weights = self.reading.values[register], self.reading.values[self.weights]
        return gain.ndim == weights.ndim and gain.shape == (*weights.shape[:-1], 1)

    @cached_property
    def mixed(self) -> Mixed:
        """The values and the weights in the mixing call."""
        reading, made = self.reading, self._from_weights
        places = reading.places(self.mixing)
        values = next(r for r in places if r not in made and reading.depends(r))
        return Mixed(values, next(r for r in places if r in made))

    @cached_property
    def axes(self) -> tuple[int, int]:
        """The axes of queries and keys in the input of the softmax.

        The keys are on the axis along which the values are mixed; the rows of the result are the
        queries.
        """
        (one,), (other,) = (
            self.reading.follow(self.dots, axis, self.scores) for axis in self.known_dot_axes
        )
        if one is None or other is None or one == other:
            raise Unreadable("the axes of the scores are lost before the softmax")
        return one, other

    def weight_axes(self, scores_axes: tuple[int, int]) -> tuple[int, int]:
        """The same two axes in the weights that are multiplied with the values."""
        reading = self.reading
        end = self.mixed.weights
        if end == self.weights:
            return scores_axes
        found = [reading.follow(self.weights, axis, end)[0] for axis in scores_axes]
        if reading.values[end].shape == reading.values[self.weights].shape:
            if found[0] == scores_axes[1] or found[1] == scores_axes[0]:
                return scores_axes[1], scores_axes[0]
            return scores_axes  # a sum over a row may mix its keys
        if found[0] is None or found[1] is None:
            raise Unreadable("the axes of the weights are lost before the values")
        return found[0], found[1]

    def mixes_along(self, axes: tuple[int, int]) -> tuple[int | None, int | None]:
        """Along which of two axes the values are summed (0 or 1), and the row axis of the result.

        Args:
            axes: The two token axes of the weights that are multiplied with the values.
        """
        reading = self.reading
        value_register, register = self.mixed
        weights, values = reading.values[register], reading.values[value_register]
        value_axis = reading.token_axis(value_register)
        if value_axis is None:
            return None, None
        for summed in (1, 0):
            keys, rows = axes[summed], axes[1 - summed]
            if weights.shape[keys] != values.shape[value_axis]:
                continue
            if not self._one_key(weights, keys, values, value_axis):
                continue
            moves = []
            for index in range(weights.shape[rows]):
                kept = torch.zeros_like(weights)
                kept.select(rows, index).copy_(weights.nan_to_num(0.1).select(rows, index))
                new = reading.program.again(reading.values, {register: kept})
                moves.append(new[self.context] != 0)
            return summed, axis_of(torch.stack(moves))
        return None, None

    def _one_key(self, weights: Tensor, keys: int, values: Tensor, axis: int) -> bool:
        """Whether weight j along this axis applies only to the values of token j."""
        reading = self.reading
        value_register, weight_register = self.mixed
        for index in range(weights.shape[keys]):
            kept = torch.zeros_like(weights)
            kept.select(keys, index).fill_(0.7)
            other = torch.randn(values.shape, generator=torch.Generator().manual_seed(index))
            other = other.to(values.dtype)
            other.select(axis, index).copy_(values.select(axis, index))
            alone, both = (
                reading.program.again(reading.values, {weight_register: kept, **more})
                for more in ({}, {value_register: other})
            )
            if differs(both[self.context], alone[self.context]).any():
                return False
        return True

    def canonical(self, tensor: Tensor, axes: tuple[int, int]) -> Tensor:
        """A tensor with axes of queries and keys as (groups, queries, keys)."""
        moved = tensor.movedim(axes, (-2, -1))
        return moved.reshape(-1, *moved.shape[-2:])

    def texts(self, axes: tuple[int, int]) -> list[int]:
        """The sequence that each group of the canonical scores belongs to; [] if unknown."""
        moves = self.reading.texts.get(self.scores, torch.zeros(0))
        owned = [self.canonical(one, axes).flatten(1).any(1) for one in moves]
        if not owned or bool((torch.stack(owned).sum(0) != 1).any()):
            return []
        found: list[int] = torch.stack(owned).int().argmax(0).tolist()
        return found

    def restored(self, tensor: Tensor, like: Tensor, axes: tuple[int, int]) -> Tensor:
        """The inverse of `canonical`."""
        shape = like.movedim(axes, (-2, -1)).shape
        return tensor.reshape(shape).movedim((-2, -1), axes).contiguous()

    @cached_property
    def head_dim(self) -> int:
        """The number of terms that are summed in one score, in all products together."""
        return sum(map(self._width_of, self.products))

    def _width_of(self, index: int) -> int:
        reading = self.reading
        call = reading.program.calls[index]
        operands = [r for r in reading.places(index) if reading.depends(r)]
        shapes = [reading.values[r].shape for r in (operands[0], operands[-1])]
        equation = call.args[0] if call.name == "einsum" else None
        if not isinstance(equation, str) or "->" not in equation or "..." in equation:
            return shapes[0][-1]
        left, right = equation.replace(" ", "").split("->")
        pairs = zip(left.split(","), shapes, strict=False)
        sizes = {letter: n for part, shape in pairs for letter, n in zip(part, shape, strict=False)}
        return math.prod(n for letter, n in sizes.items() if letter not in right)

    def scale(self, runs: list[Values]) -> tuple[Tensor, Tensor] | None:
        """How the products become the input of the softmax, measured on runs with other inputs.

        Returns:
            The factor on each product, NaN where it cannot be determined, and what is added, -inf
            where it is hidden, both (group, query, key); None if the scores are not of this form.
        """
        dots, scores = map(torch.stack, zip(*map(self.pairs, runs), strict=True))
        if dots.shape != scores.shape:
            if dots.shape[2:] != scores.shape[2:]:
                raise Unreadable("the scores change their shape before the softmax")
            if scores.shape[1] % dots.shape[1]:
                raise Unreadable("the scores change their heads before the softmax")
            dots = dots.repeat_interleave(scores.shape[1] // dots.shape[1], 1)
        return fit(list(dots), list(scores))
