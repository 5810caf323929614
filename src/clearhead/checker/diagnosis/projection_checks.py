"""Which weights feed queries, keys and values, which head each feature belongs to, and positions.

One feature of a projection's result is changed for all tokens, and what moves shows where it goes:
into the queries, keys or values, into which heads, and to which feature of the merged heads. This
reveals the order of parts in a fused matrix and of shared heads, however they are written.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from clearhead.checker.diagnosis.judgement import Judgement
from clearhead.checker.diagnosis.reading import Core, Reading, Unreadable, differs
from clearhead.checker.harness.weight_roles import role_of

_PROJECTS = {"linear", "matmul", "__matmul__", "einsum", "mm", "bmm", "addmm", "conv1d", "conv2d"}
_MOST_FEATURES = 400
_WORDS = {"q": "query", "k": "key", "v": "value"}
_PLURAL = {"q": "queries", "k": "keys", "v": "values"}
# Which weights queries, keys and values are computed with, if each is used once.
_PERMUTED = {"kqv": "query-key-swapped", "qvk": "key-value-swapped", "vkq": "query-value-swapped"}
_OTHER_AXES = {"weights-transposed", "softmax-over-queries", "values-not-mixed"}
_TAKEN = {
    ("q", "k"): "query-from-key-weights",
    ("q", "v"): "query-from-value-weights",
    ("k", "q"): "key-from-query-weights",
    ("k", "v"): "key-from-value-weights",
    ("v", "q"): "value-from-queries",
    ("v", "k"): "value-from-keys",
}


@dataclass(frozen=True)
class Part:
    """Queries, keys or values, and the projection that they come from.

    Args:
        letter: "q", "k" or "v".
        register: The register in which they are used.
        projection: The register of the projection's result; None if there is no projection.
        line: The line of the projection.
        names: The parameters that they are computed with.
    """

    letter: str
    register: int
    projection: int | None
    line: int | None
    names: frozenset[str]


def judge_projections(reading: Reading, verdict: Judgement, order_is_said: str) -> None:
    """Judge where queries, keys and values come from, and where each head goes.

    Args:
        reading: The pass.
        verdict: The findings so far.
        order_is_said: The order in which the source names the parts of a fused matrix, or "".
    """
    try:
        layout = Layout(reading)
    except Unreadable:
        return
    with suppress(Unreadable):
        layout.judge_positions(verdict)
    with suppress(Unreadable):
        if not layout.core.additive:  # its v is the vector that computes a score
            layout.judge_roles(verdict, order_is_said)
    with suppress(Unreadable):
        layout.judge_heads(verdict)
    with suppress(Unreadable):
        layout.judge_norms(verdict)


def judge_parts(
    reading: Reading, parts: tuple[int, int, int], heads: int, verdict: Judgement
) -> None:
    """Judge the weights that these queries, keys and values come from, and their positions."""
    with suppress(Unreadable):
        Layout(reading, parts).judge_roles(verdict, "", fused=False)
    with suppress(Unreadable):
        Layout(reading, parts, heads).judge_positions(verdict)


class Layout:
    """The projections of one attention, or of several that are heads of one.

    Args:
        reading: The pass.
        parts: The registers of queries, keys and values, if they are known already.
        heads: The number of heads in these.
    """

    def __init__(
        self, reading: Reading, parts: tuple[int, int, int] | None = None, heads: int = 0
    ) -> None:
        self.reading, self.heads = reading, heads
        self.program = reading.program
        if parts is None:
            self.parts = self._parts(self.core)
        else:
            q, k, v = (self._part(one, r) for one, r in zip("qkv", parts, strict=True))
            self.parts = (q, k, v)

    @property
    def core(self) -> Core:
        """The first attention."""
        return self.reading.cores[0]

    def _parts(self, core: Core) -> tuple[Part, Part, Part]:
        first, second = core.operands
        summed: int | None = 1  # queries @ keys, as it is usually written
        with suppress(Unreadable):
            summed, _ = core.mixes_along(core.weight_axes(core.axes))
        queries, keys = (second, first) if summed == 0 else (first, second)
        return (self._part("q", queries), self._part("k", keys), self._part("v", core.mixed.values))

    def _part(self, letter: str, register: int) -> Part:
        reading, program = self.reading, self.program
        before = program.before(register)
        names = frozenset(program.parameters[r] for r in reading.learned(register))
        for index in sorted(before, reverse=True):
            call = program.calls[index]
            weighs = any(
                not reading.depends(r) and reading.learned(r) for r in reading.places(index)
            )
            if call.name in _PROJECTS and weighs and reading.depends(call.out[0]):
                return Part(letter, register, call.out[0], call.line, names)
        return Part(letter, register, None, None, names)

    # Features of a projection.

    def _row_axes(self, register: int) -> list[int]:
        """The batch and token axes."""
        reading = self.reading
        found = [reading.text_axis(register)]
        if register in reading.tokenwise:
            found.append(reading.token_axis(register))
        else:  # after the attention
            _, rows = self.core.mixes_along(self.core.weight_axes(self.core.axes))
            if rows is None:
                raise Unreadable("the rows of the mixed values are not known")
            found += reading.follow(self.core.context, rows, register)
        if None in found[1:] or found[0] in found[1:]:
            raise Unreadable("there is no token axis")
        return [axis for axis in found if axis is not None]

    def rows(self, register: int, values: Mapping[int, Tensor]) -> Tensor:
        """A register as (..., features), with the batch and token axes first."""
        return _rows(values[register], self._row_axes(register))

    def changed(self, register: int, feature: int) -> Tensor:
        """A projection's result, with one feature changed for every token."""
        axes = self._row_axes(register)
        new = self.reading.values[register].clone()
        view = new.movedim(axes, tuple(range(len(axes))))
        place = np.unravel_index(feature, view.shape[len(axes) :])
        spot = view
        for index in reversed(place):
            spot = spot.select(-1, int(index))
        noise = torch.randn(spot.shape, generator=torch.Generator().manual_seed(feature))
        spot.add_((noise.to(new.dtype) + 0.5) * new.abs().mean().clamp_min(0.1))
        return new

    @cached_property
    def moved(self) -> dict[int, list[dict[int, Tensor]]]:
        """For each projection and feature, the registers that move with it."""
        found: dict[int, list[dict[int, Tensor]]] = {}
        watched = {part.register for part in self.parts} | {self.merged}
        watched |= {core.dots for core in self.reading.cores}
        for projection in {part.projection for part in self.parts}:
            if projection is None:
                continue
            if self.reading.token_axis(projection) is None:
                raise Unreadable("a projection has no token axis")
            width = self.rows(projection, self.reading.values).shape[-1]
            if width > _MOST_FEATURES:
                raise Unreadable("a projection is too wide")
            rows = []
            for feature in range(width):
                new = self.program.again(
                    self.reading.values, {projection: self.changed(projection, feature)}
                )
                rows.append(
                    {
                        r: differs(new[r], self.reading.values[r])
                        for r in watched
                        if r in new and new[r].shape == self.reading.values[r].shape
                    }
                )
            found[projection] = rows
        return found

    def feeding(self, part: Part) -> list[int]:
        """The features of its projection that a part is computed from."""
        if part.projection is None:
            return []
        rows = self.moved[part.projection]
        return [
            f for f, row in enumerate(rows) if part.register in row and row[part.register].any()
        ]

    # Which weights.

    def judge_roles(self, verdict: Judgement, order_is_said: str, *, fused: bool = True) -> None:
        """Check that queries, keys and values are computed with their own weights."""
        if len({source.register for source in self.reading.sources}) > 1 and all(
            part.projection is None for part in self.parts
        ):
            return
        taken = self._by_name() or (self._by_order(order_is_said) if fused else None)
        if taken in (None, "qkv"):
            return
        assert taken is not None
        if sorted(taken) == ["k", "q", "v"]:
            if any(found.id in _OTHER_AXES for found in verdict.findings):
                return  # the meaning of the rows is unknown
            id = _PERMUTED.get(taken, "projections-in-other-order")
            evidence = "; ".join(
                f"the {_PLURAL[part.letter]} are computed with the {_PLURAL[letter]}' weights"
                for part, letter in zip(self.parts, taken, strict=True)
                if part.letter != letter
            )
            line = self.core.line if fused and id == "query-key-swapped" else None
            verdict.add(id, f"{evidence[0].upper()}{evidence[1:]}.", line)
            return
        for part, letter in zip(self.parts, taken, strict=True):
            if letter == "x":
                evidence = f"The {_PLURAL[part.letter]} are not projected."
                verdict.add(f"{_WORDS[part.letter]}-not-projected", evidence, None)
            elif letter not in ("?", part.letter):
                own = any(role_of(name) == part.letter for name in part.names)
                rest = "their own weights have no effect on the output"
                start = (
                    f"The {_PLURAL[part.letter]} are computed with the {_PLURAL[letter]}' weights"
                )
                evidence = (
                    f"{start} first, and then with their own." if own else f"{start}, and {rest}."
                )
                one = len({one.projection for one in self.parts}) == 1
                verdict.add(_TAKEN[part.letter, letter], evidence, None if one else part.line)

    def _by_name(self) -> str | None:
        """Which weights each part is computed with, by parameter names; "x" for none at all."""
        every = {role_of(name) for name in self.program.weights} & {"q", "k", "v"}
        found = ""
        for part in self.parts:
            roles = {role_of(name) for name in part.names} & {"q", "k", "v", "qkv", "kv"}
            if roles & {"qkv", "kv"}:
                return None
            layers = {role_of(n) for n in part.names if self.program.weights[n].ndim > 1} & roles
            if len(layers) == 2 and part.letter in layers:
                roles = layers - {part.letter}  # one after the other
            if not roles and part.letter in every and part.projection is None:
                found += "x"
            else:
                found += roles.pop() if len(roles) == 1 else "?"
        own = [letter for letter in "qkv" if letter in every]
        if found.strip("x") in ("???", "") and "x" not in found:
            return None
        # Weights of a role that no parameter is named after cannot be the wrong ones.
        return "".join(
            "?" if letter != want and letter not in (*own, "x") else letter
            for letter, want in zip(found, "qkv", strict=True)
        )

    def _by_order(self, order_is_said: str) -> str | None:
        """Which weights each part is computed with, by its position in a fused matrix."""
        projections = {part.projection for part in self.parts}
        if len(projections) != 1 or None in projections:
            return None
        sets = [frozenset(self.feeding(part)) for part in self.parts]
        if any(not one for one in sets):
            return None
        (projection,) = projections
        assert projection is not None
        width = len(self.moved[projection])
        idle = frozenset(range(width)) - frozenset().union(*sets)
        places = sorted({*sets, *([idle] if idle else [])}, key=min)
        if len(places) == 2 and 3 * len(sets[0]) == width and len(set(sets)) == 1:
            return 3 * "qkv"[min(sets[0]) // len(sets[0])]
        if len(places) != 3 or sum(map(len, places)) != width:
            return None
        taken = "".join("qkv"[places.index(one)] for one in sets)
        # The k-th part has the role that the source gives it.
        if sorted(order_is_said) == ["k", "q", "v"] and order_is_said != "qkv":
            taken = "".join(order_is_said["qkv".index(letter)] for letter in taken)
        return taken

    # Which head.

    @cached_property
    def merged(self) -> int:
        """The register of the merged heads: the input of the output projection, or the output."""
        program = self.program
        last = max(core.mixing for core in self.reading.cores)
        for index in sorted(program.before(self.reading.output)):
            call = program.calls[index]
            learned = [r for r in self.reading.places(index) if r in program.parameters]
            roles = {role_of(program.parameters[r]) for r in learned}
            if index > last and call.name in _PROJECTS and ("o" in roles or learned):
                data = [r for r in self.reading.places(index) if self.reading.depends(r)]
                return data[0]
        return self.reading.output

    def _heads(self, part: Part, feature: int) -> frozenset[tuple[int, int]]:
        """The heads whose scores move with a feature, each as (attention, group in it)."""
        assert part.projection is not None
        row = self.moved[part.projection][feature]
        found = set()
        for number, core in enumerate(self.reading.cores):
            moves = row.get(core.dots)
            first, second = core.dot_axes
            if moves is None or first is None or second is None:
                continue
            groups = core.canonical(moves, (first, second)).flatten(1).any(1)
            found |= {(number, int(i)) for i in groups.nonzero().flatten()}
        return frozenset(found)

    def judge_heads(self, verdict: Judgement) -> None:
        """Judge the order of heads that share keys, and that of the merged heads."""
        queries, keys, _ = self.parts
        if verdict.heads < 2 or any(part.projection is None for part in self.parts):
            return
        of_queries = [self._heads(queries, f) for f in self.feeding(queries)]
        of_keys = [self._heads(keys, f) for f in self.feeding(keys)]
        heads = list(dict.fromkeys(of_queries))  # in the order of the queries' features
        groups = list(dict.fromkeys(of_keys))
        if len(heads) == verdict.heads and 1 < len(groups) < len(heads):
            verdict.kv_heads = len(groups)
            sharing = [[i for i, head in enumerate(heads) if head <= group] for group in groups]
            size = len(heads) // len(groups)
            usual = [list(range(i * size, (i + 1) * size)) for i in range(len(groups))]
            mixed = any(found.id == "kv-heads-do-not-match" for found in verdict.findings)
            if (
                not mixed
                and sharing != usual
                and sorted(itertools.chain(*sharing)) == list(range(len(heads)))
            ):
                evidence = (
                    f"Heads {', '.join(map(str, sharing[0]))} share the first keys; usually "
                    f"heads 0 to {size - 1} do."
                )
                verdict.add("kv-heads-in-other-order", evidence, None)
        elif len(groups) == 1 and len(heads) == verdict.heads:
            verdict.kv_heads = 1
        self._judge_merge(verdict)

    def _judge_merge(self, verdict: Judgement) -> None:
        """Check that the merged heads are in the same order as the values' features."""
        values = self.parts[2]
        own = self.feeding(values)
        axes = self._row_axes(self.merged)
        width = _rows(self.reading.values[self.merged], axes).shape[-1]
        if width != len(own):
            return
        goes = []
        for feature in own:
            assert values.projection is not None
            moves = self.moved[values.projection][feature].get(self.merged)
            if moves is None:
                return
            places = _rows(moves, axes)
            moved = places.flatten(0, -2).any(0).nonzero().flatten().tolist()
            if len(moved) != 1:
                return
            goes.append(moved[0])
        if sorted(goes) == list(range(width)) and goes != list(range(width)):
            evidence = (
                f"Entry 1 of the values becomes entry {goes[1]} of the merged heads: the heads "
                "are merged in a different order than they were split."
            )
            verdict.add("heads-interleaved", evidence, None)

    def judge_norms(self, verdict: Judgement) -> None:
        """Report a norm on only the queries or only the keys; it cancels any factor before it."""
        queries, keys, _ = self.parts
        if queries.projection == keys.projection and self.feeding(queries) == self.feeding(keys):
            return  # one projection for both, as in the Reformer: only the keys are normed there
        layers = [sum(self.program.weights[n].ndim > 1 for n in p.names) for p in self.parts[:2]]
        if layers[0] != layers[1]:
            return  # through a latent vector, which has its own norm
        normed = []
        for part in (queries, keys):
            if part.projection is None:
                return
            values = self.reading.values
            new = self.program.again(values, {part.projection: 3 * values[part.projection]})
            was, now = values[part.register], new.get(part.register, values[part.register])
            normed.append(float((now - was).abs().max()) < 0.05 * float(was.abs().max()))
        if normed[0] != normed[1]:
            which, other = ("queries", "keys") if normed[0] else ("keys", "queries")
            evidence = f"The {which} are normed after their projection, and the {other} are not."
            verdict.add("norm-on-one-side", evidence, None)

    # Positions.

    def judge_positions(self, verdict: Judgement) -> None:
        """Check that scores depend only on distances, if queries and keys are rotated by position.

        Every token gets the same queries, keys and values right after the projections. What still
        differs from token to token is due to positions.
        """
        reading = self.reading
        if len(reading.sources[0].axes) != 1 or len(reading.sources) > 1:
            return
        equal = {}
        projections = {part.projection for part in self.parts}
        for projection in (*projections, reading.sources[0].register):  # a key may have two parts
            if projection is None:
                return
            axis = reading.token_axis(projection)
            if axis is None:
                return
            value = reading.values[projection]
            equal[projection] = value.narrow(axis, 0, 1).expand_as(value).contiguous()
        new = {**reading.values, **self.program.again(reading.values, equal)}
        turned = {part.letter: self._varies(new, part.register) for part in self.parts}
        if turned["v"]:
            evidence = "Equal values differ from position to position: they are rotated too."
            verdict.add("rotary-on-values", evidence, None)
            return
        if not turned["q"] and not turned["k"]:
            self._turned_in_place(verdict)
            return
        dots = self._dots(new)
        if dots.shape[-1] != dots.shape[-2]:
            return  # there are extra keys beside the tokens'
        verdict.rotary = True
        if self._of_distance(dots):
            return
        if turned["q"] != turned["k"]:
            which, other = ("queries", "keys") if turned["q"] else ("keys", "queries")
            evidence = f"The {which} are rotated by their positions, and the {other} are not."
            verdict.add("rotary-on-one-side", evidence, None)
            return
        if self._of_distance(dots.flip(-1)):
            evidence = (
                "With equal tokens, scores depend on the sum of two positions and not on their "
                "distance: queries and keys are rotated in opposite directions."
            )
            verdict.add("rotary-on-one-side", evidence, None)
            return
        if all(self._keeps_length(new, part.register) for part in self.parts[:2]):
            return  # positions in two directions, or a prefix without positions
        evidence = (
            "With equal tokens, the scores of pairs at the same distance differ, and so do the "
            "norms of their queries and keys: the two numbers of a pair are rotated by "
            "different angles."
        )
        verdict.add("rotary-pairs-mixed", evidence, None)

    def _dots(self, values: dict[int, Tensor]) -> Tensor:
        """The products of queries and keys, (groups, queries, keys)."""
        if not self.heads:
            return self.core.canonical(values[self.core.dots], self.core.known_dot_axes)
        rows = [self.rows(part.register, values) for part in self.parts[:2]]
        width = rows[0].shape[-1] // self.heads
        q, k = (t.reshape(*t.shape[:-1], -1, width).transpose(-2, -3) for t in rows)
        dots: Tensor = q @ k.repeat_interleave(q.shape[-3] // k.shape[-3], -3).mT
        return dots.flatten(0, -3)

    def _turned_in_place(self, verdict: Judgement) -> None:
        """Report queries that are multiplied by the same cosines and sines for every token."""
        tables: list[Tensor] = []
        for index in sorted(self.program.before(self.parts[0].register), reverse=True):
            call = self.program.calls[index]
            if call.name not in ("mul", "mul_", "__imul__", "multiply"):
                continue
            for factor in self.reading.places(index):
                if self.reading.depends(factor) or self.reading.learned(factor):
                    continue
                table = self.reading.values[factor]
                pairs = [(table.real, table.imag)] if table.is_complex() else []
                pairs += [(table, one) for one in tables if one.shape == table.shape]
                tables += [] if table.is_complex() else [table]
                if any(_cosines(*pair) for pair in pairs):
                    evidence = (
                        "Equal tokens get equal queries at every position: the cosines and sines, "
                        f"{tuple(table.shape)}, vary along an axis other than the tokens."
                    )
                    verdict.add("rotary-ignores-position", evidence, call.line)
                    return

    def _varies(self, values: dict[int, Tensor], register: int) -> bool:
        """Whether a part differs from token to token."""
        axis, places = self.reading.token_axis(register), self.reading.tokens_at(register)
        if axis is None or not places:
            return False
        tensor = values[register].index_select(axis, torch.tensor(places))
        return bool(differs(tensor, tensor.narrow(axis, 0, 1).expand_as(tensor)).any())

    def _keeps_length(self, values: dict[int, Tensor], register: int) -> bool:
        """Whether equal vectors have the same norm at all positions, as after a rotation."""
        lengths = self.rows(register, values).norm(dim=-1)
        return bool(((lengths / lengths[..., :1] - 1).abs() < 1e-4).all())

    @staticmethod
    def _of_distance(dots: Tensor) -> bool:
        size = float(dots.abs().max())
        return all(
            float((line - line[..., :1]).abs().max()) < 1e-5 * size
            for offset in range(1 - dots.shape[-2], dots.shape[-1])
            for line in [dots.diagonal(offset, -2, -1)]
        )


def _cosines(first: Tensor, second: Tensor) -> bool:
    """Whether two tables are the cosines and sines of several angles."""
    return (
        bool((first.square() + second.square() - 1).abs().max() < 1e-4)
        and float(first.abs().max() - first.abs().min()) > 1e-4
    )


def _rows(tensor: Tensor, axes: list[int]) -> Tensor:
    """A tensor with these axes first, and the others flattened."""
    return tensor.movedim(axes, tuple(range(len(axes)))).flatten(len(axes))
