"""Attention that is computed in pieces: in blocks with a running maximum, or token by token.

Its steps cannot be read one by one. But queries, keys and values can be found before they are cut
into pieces, and the mixed values after the pieces are joined. If correct attention gives the same
mixed values on random inputs, the pieces are right, however they are written.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from clearhead.checker.diagnosis.judgement import Expectation
from clearhead.checker.diagnosis.program import Program, Values
from clearhead.checker.diagnosis.reading import Reading, Unreadable, closeness
from clearhead.checker.diagnosis.score_checks import factor_of

_MOST_REGISTERS = 7
_CUTS = {"__getitem__", "narrow", "split", "chunk", "tensor_split"}
_MOVES = {"transpose", "permute", "swapaxes", "mT", "T", "float", "to", "movedim", "contiguous"}
# A tensor that is already contiguous, or of that dtype, is returned unchanged and not recorded.
SAME_NUMBERS = {"contiguous", "to", "type", "type_as", "float", "double", "cpu", "expand", "clone"}


@dataclass(frozen=True, eq=False)
class WholeAttention:
    """One attention, from its queries, keys and values to the mixed values.

    Args:
        reading: The pass.
        parts: The registers of queries, keys and values.
        context: The register of the mixed values, all heads merged.
        axes: Its batch and token axes, or only its token axis.
        heads: The number of heads.
        scale: The factor on the products.
        mask: "none" or "causal".
    """

    reading: Reading
    parts: tuple[int, int, int]
    context: int
    axes: tuple[int, ...]
    heads: int
    scale: float
    mask: str

    @property
    def head_dim(self) -> int:
        """The width of a head."""
        return _rows(self.reading, self.reading.values, self.parts[0]).shape[-1] // self.heads

    def changed(
        self, program: Program, values: Values, mask: str, visible: Tensor | None
    ) -> Values:
        """The mixed values of correct attention in another pass of the same class.

        Raises:
            Unreadable: If the pass begins or ends with different calls.
        """
        old = self.reading.program
        parts = [found_again(old, program, part) for part in self.parts]
        context = found_again(old, program, self.context, from_end=True)
        like = values[context]
        rows = [
            _as_rows(self.reading, old, values[new])
            for old, new in zip(self.parts, parts, strict=True)
        ]
        right = right_context(rows, self.heads, self.scale, mask, visible)
        return {context: _moved_back(right, like, self.axes)}


def visible_pairs(mask: str, queries: int, keys: int) -> Tensor | None:
    """Which pairs of tokens a mask leaves visible; None if it hides nothing.

    If there are more keys than queries, the queries belong to the last keys.
    """
    row, column = torch.arange(keys - queries, keys)[:, None], torch.arange(keys)
    if mask.startswith("window"):
        return (column <= row) & (column > row - int(mask.removeprefix("window")))
    if mask.startswith("band"):
        return (column - row).abs() <= int(mask.removeprefix("band"))
    return column <= row if mask == "causal" else None


def right_context(
    rows: list[Tensor], heads: int, scale: float, mask: str, visible: Tensor | None = None
) -> Tensor:
    """Correct attention for queries, keys and values, each (batch, tokens, width).

    Examples:
        >>> x = torch.eye(2, dtype=torch.float64)[None]
        >>> right_context([x, x, x], 1, 1.0, "causal")[0, 0].tolist()
        [1.0, 0.0]
    """
    head_dim = rows[0].shape[-1] // heads
    shared = rows[1].shape[-1] // head_dim  # the number of key and value heads
    if not shared or heads % shared or rows[2].shape[-1] % shared:
        raise Unreadable("the shapes of queries, keys and values do not match")
    q, k, v = (
        t.to(torch.float64).reshape(*t.shape[:-1], count, -1).transpose(1, 2)
        for t, count in zip(rows, (heads, shared, shared), strict=True)
    )
    k, v = (t.repeat_interleave(heads // shared, 1) for t in (k, v))
    scores = q @ k.transpose(-2, -1) * scale  # (batch, heads, queries, keys)
    keep = visible_pairs(mask, *scores.shape[-2:])
    for pairs in (keep, visible):
        if pairs is not None:
            scores = scores.masked_fill(~pairs, -torch.inf)
    context: Tensor = scores.softmax(-1).nan_to_num(0.0) @ v
    return context.transpose(1, 2).flatten(2)


def find_whole(
    reading: Reading, runs: list[Values], expected: Expectation
) -> WholeAttention | None:
    """The part of a pass that equals correct attention; None if there is none."""
    try:
        return next(iter(_Search(reading, runs, expected).found()), None)
    except (Unreadable, RuntimeError):
        return None


class _Search:
    """A search for the registers of queries, keys, values and mixed values."""

    def __init__(self, reading: Reading, runs: list[Values], expected: Expectation) -> None:
        self.reading, self.runs, self.expected = reading, runs, expected
        self.program = reading.program

    @cached_property
    def starts(self) -> list[int]:
        """The last registers with a token axis, before it is cut or tokens are mixed."""
        reading, program = self.reading, self.program
        found: dict[int, None] = {}
        for index in sorted(program.before(reading.output)):
            for register in program.sources[index]:
                out = program.calls[index].out[0]
                if register in reading.tokenwise and not self._keeps(out):
                    start = self._back(register)
                    if start is not None:
                        found[start] = None
        return list(found)[:_MOST_REGISTERS]

    def _keeps(self, register: int) -> bool:
        """Whether a register has a token axis and each entry depends on at most one token."""
        return register in self.reading.tokenwise and self.reading.token_axis(register) is not None

    def _back(self, register: int) -> int | None:
        """The last register before this one that has an axis of all tokens and is not a piece."""
        while True:
            maker = self.program.maker.get(register)
            sources = [] if maker is None else self.reading.places(maker)
            sources = [r for r in sources if self.reading.depends(r)]
            if self._keeps(register) and not self._is_piece(register):
                return register
            if not sources:
                return None
            register = sources[0]

    def _is_piece(self, register: int) -> bool:
        """Whether a register was cut out of another and happens to be all of it."""
        values = self.reading.values
        for _ in range(4):
            maker = self.program.maker.get(register)
            if maker is None:
                return False
            source = self.program.sources[maker][0]
            cut = self.program.calls[maker].name in _CUTS
            if cut and values[source].shape == values[register].shape:
                return True
            if not cut and self.program.calls[maker].name not in _MOVES:
                return False
            register = source
        return False

    def found(self) -> Iterator[WholeAttention]:
        """Every choice that equals correct attention on further runs too."""
        masks = ("causal",) if self.expected.causal == "yes" else ("none", "causal")
        for parts in itertools.permutations(self.starts, 3):
            rows = [_rows(self.reading, self.reading.values, part) for part in parts]
            fq, fk = (factor_of(self.reading, part)[0] for part in parts[:2])
            for heads, mask in itertools.product(self._heads(parts[0], rows[0]), masks):
                scale = (rows[0].shape[-1] // heads) ** -0.5 / (fq * fk)
                try:
                    right = right_context(rows, heads, scale, mask)
                except (Unreadable, RuntimeError):
                    continue
                place = self._place(right)
                if place is not None:
                    whole = WholeAttention(self.reading, parts, *place, heads, scale, mask)
                    if all(self._same(whole, values) for values in self.runs[:2]):
                        yield whole

    def _heads(self, register: int, rows: Tensor) -> list[int]:
        """The possible numbers of heads."""
        width, tensor = rows.shape[-1], self.reading.values[register]
        counts = [*self.expected.heads, 1]
        if tensor.ndim > 3 or (tensor.ndim == 3 and self.reading.text_axis(register) is None):
            counts.insert(0, width // tensor.shape[-1])
        return [count for count in dict.fromkeys(counts) if count and width % count == 0]

    def _place(self, right: Tensor) -> tuple[int, tuple[int, ...]] | None:
        """The register of the merged heads that holds these values, and its axes."""
        source, values = self.reading.sources[0], self.reading.values
        usual = source.axes if source.batch is None else (source.batch, *source.axes)
        for index in sorted(self.program.before(self.reading.output), reverse=True):
            register = self.program.calls[index].out[0]
            if register not in values or values[register].numel() != right.numel():
                continue
            for axes in {usual, (0, 1)[: len(usual)]}:
                if _equal(_moved(values[register], axes), right, closeness(values[register])):
                    return register, axes
        return None

    def _same(self, whole: WholeAttention, values: Values) -> bool:
        rows = [_rows(self.reading, values, part) for part in whole.parts]
        right = right_context(rows, whole.heads, whole.scale, whole.mask)
        got = values[whole.context]
        return _equal(_moved(got, whole.axes), right, closeness(got))


def _equal(rows: Tensor | None, right: Tensor, close: float) -> bool:
    """Whether these values are those of correct attention, both (batch, tokens, width)."""
    return (
        rows is not None
        and rows.shape == right.shape
        and torch.allclose(rows.to(torch.float64), right, close, close)
    )


def _moved(value: Tensor, axes: tuple[int, ...]) -> Tensor | None:
    """A tensor as (batch, tokens, width), given its batch and token axes, or its token axis."""
    if value.ndim <= max(len(axes), *axes) or not value.is_floating_point():
        return None
    moved = value.movedim(axes, tuple(range(len(axes)))).flatten(len(axes))
    return moved if len(axes) == 2 else moved[None]


def _moved_back(rows: Tensor, like: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The inverse of `_moved`."""
    first = tuple(range(len(axes)))
    return rows.reshape(like.movedim(axes, first).shape).movedim(first, axes).to(like.dtype)


def _rows(reading: Reading, values: Values, register: int) -> Tensor:
    return _as_rows(reading, register, values[register])


def _as_rows(reading: Reading, register: int, value: Tensor) -> Tensor:
    """A register's values as (batch, tokens, width)."""
    text, token = reading.text_axis(register), reading.token_axis(register)
    if token is None:
        raise Unreadable("there is no token axis")
    if text is None:
        return value.movedim(token, 0).flatten(1)[None]
    return value.movedim((text, token), (0, 1)).flatten(2)


def found_again(old: Program, new: Program, register: int, *, from_end: bool = False) -> int:
    """The same register in another pass, which makes the same calls up to it, or from it on.

    Args:
        old: The pass that was read.
        new: Another pass of the same class.
        register: A register of the old pass.
        from_end: Whether the calls from there to the end must be the same, not those before.

    Raises:
        Unreadable: If the new pass makes different calls.
    """
    inputs = {known: name for name, known in old.inputs.items()}
    if register in inputs:
        return new.inputs[inputs[register]]
    olds, news = (
        [i for i, call in enumerate(program.calls) if call.name not in SAME_NUMBERS]
        for program in (old, new)
    )
    while old.maker[register] not in olds:
        register = old.sources[old.maker[register]][0]
    index = olds.index(old.maker[register])
    place = index + (len(news) - len(olds) if from_end else 0)
    part = slice(index, None) if from_end else slice(None, index + 1)
    those = news[place:] if from_end else news[part]
    if place < 0 or [old.calls[i].name for i in olds[part]] != [new.calls[i].name for i in those]:
        raise Unreadable("it makes different calls at this length")
    return new.calls[news[place]].out[old.calls[olds[index]].out.index(register)]
