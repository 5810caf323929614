"""A key-value cache: decoding with it must give the same output as the full sequence.

How a class takes its cache is unknown, so every convention that its arguments allow is tried,
decoding token by token. A guessed convention counts only if tokens of one call affect later calls.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from clearhead.checker.diagnosis.reference import AnyReference
from clearhead.checker.harness.cache_arguments import caches, holders, is_own
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.comparison import difference, percent
from clearhead.checker.harness.constructor_arguments import meaning_of
from clearhead.checker.harness.forward_arguments import ANGLE_ROLES
from clearhead.checker.harness.subject import (
    Inputs,
    Subject,
    arguments_for,
    call,
    inputs_for,
    pick,
    renew,
)
from clearhead.checker.sandbox.submission import Failure, Output, Parameter
from clearhead.checker.source.argument_flow import is_read

_WORDS = r"cache|past|kv_state|prev_k|incremental|decod"
_PAST = r"cache|past|kv_state|state|prev|mems?$"
_PLACES = (
    r"(start|offset|pos|position|past_len(gth)?|cur_pos|step|input_pos)|"
    r"\w*(start_pos|positions?|position_ids|pos_ids|pos_idx|indices|index_pos)"
)
# How positions are passed: that of the first token, one per token, or one per sequence and token.
_PLACED = ("number", "row", "rows")
_APART = 1e-4
MOST_WAYS = 100
PIECES = "in two pieces"


@dataclass(frozen=True)
class Way:
    """One convention for decoding with a cache.

    Args:
        flags: Arguments that enable the cache.
        past: The argument that takes the cache, or "".
        first: Its initial value; None if the class returns the value for the next call.
        whole: Whether everything returned besides the output is passed back unchanged.
        places: Arguments that take positions, each with its form, one of `_PLACED`.
        all_angles: Whether the angles of past tokens are passed too, to rotate the cached keys.
    """

    flags: tuple[str, ...] = ()
    past: str = ""
    first: object = None
    whole: bool = False
    places: tuple[tuple[str, str], ...] = ()
    all_angles: bool = False


def ways_of(case: Case, subject: Subject) -> Iterator[Way]:
    """Conventions that the argument names suggest; none if there is no cache."""
    forward = case.info.forward
    held = case.text.has(rf"self\.\w*({_WORDS})\w*")
    switches = [p for p in forward if isinstance(p.default, bool)]
    flags = tuple(p.name for p in switches if re.search(_WORDS, p.name.lower()))
    tokens = {name for name, role in subject.feed if role in ("x", "q", "k", "v", "kv")}
    pasts = [p for p in _pasts(case) if p.name not in tokens]
    pasts = [p for p in pasts if is_read(case.text.file, case.info.name, p.name)]
    positions = [p for p in forward if re.fullmatch(_PLACES, p.name.lower())]
    whole = any(case.text.has(rf"\b{name}\[:, -1:") for name in tokens)  # it takes the last token
    if whole or not (pasts or (held and (flags or positions))):
        return
    own = [Way(flags)] if held and (flags or positions) and not pasts else []
    given = (
        Way(flags, past.name, first, whole)
        for past in pasts
        for first in caches(case, subject, past)
        for whole in ((False, True) if first is None else (False,))
    )
    for way in (*own, *given):
        for kinds in itertools.product(*(_kinds(p) for p in positions)):
            names = [(p.name, kind) for p, kind in zip(positions, kinds, strict=True) if kind]
            placed = replace(way, places=tuple(names))
            yield placed
            if any(role in ANGLE_ROLES for _, role in subject.feed):
                yield replace(placed, all_angles=True)


def _pasts(case: Case) -> list[Parameter]:
    """The arguments of forward that take a cache."""
    return [parameter for parameter in case.info.forward if _takes_past(case, parameter)]


def _takes_past(case: Case, parameter: Parameter) -> bool:
    """Whether an argument of forward takes a cache: by its name, or because forward updates it."""
    if parameter.default is not None or parameter.kind.startswith("VAR"):
        return False
    if re.fullmatch(_PLACES, parameter.name.lower()):
        return False
    named = re.search(_PAST, parameter.name.lower()) is not None
    return named or any(holder.updated for holder in holders(case, parameter))


def _kinds(parameter: Parameter) -> tuple[str, ...]:
    """The forms in which positions may be passed; "" for not at all."""
    likely = _PLACED if parameter.default == 0 or "int" in parameter.annotation else _PLACED[::-1]
    return (*likely, "") if parameter.has_default else likely


@dataclass
class _Decoded:
    """The result of one convention.

    Args:
        way: The convention.
        gaps: For each plan, the difference from the output for the full sequence.
        seen: For each plan, the outputs.
        remembers: Whether the tokens of the first call affect later outputs.
    """

    way: Way
    gaps: dict[str, float]
    seen: dict[str, Tensor]
    remembers: bool

    @property
    def bad(self) -> list[str]:
        """The plans whose output differs."""
        return [name for name in self.gaps if self.gaps[name] > _APART]


def decoding(
    case: Case,
    subject: Subject,
    inputs: Inputs,
    out: Tensor,
    reference: AnyReference,
    longer: AnyReference | None,
) -> None:
    """Decode with the cache and compare with the output for the full sequence.

    Args:
        case: The class.
        subject: How it is called.
        inputs: The inputs of the plain run.
        out: The output of the plain run.
        reference: Correct attention of the same form.
        longer: The same, with any window that longer sequences revealed; None if unknown.
    """
    ways = list(ways_of(case, subject))
    read = partial(is_read, case.text.file, case.info.name)
    case.notes += [f"{p.name} is never used." for p in _pasts(case) if not read(p.name)]
    if not ways or case.given or case.wrong:
        return
    decoder = _Decoder(case, subject, inputs, out, reference)
    best = None if decoder.wanted is None else decoder.best(ways)
    if best is None:
        failed = decoder.failed
        why = (
            "" if failed is None else f" Line {failed.line}: {failed.type}: {failed.message}"[:200]
        )
        case.notes.append(f"The cache was not checked: the checker could not operate it.{why}")
    elif renew(case.session, subject):
        if best.bad:
            decoder.report(best)
        elif longer is not None and longer.mask.startswith("window"):
            decoder.beyond_window(best.way, int(longer.mask.removeprefix("window")))


class _Decoder:
    """A class that decodes with a cache; see `decoding`."""

    def __init__(
        self,
        case: Case,
        subject: Subject,
        inputs: Inputs,
        out: Tensor,
        reference: AnyReference,
    ) -> None:
        self.case, self.subject, self.inputs, self.reference = case, subject, inputs, reference
        self.wanted = self._wanted(out)
        self.plans = _plans(inputs[0].shape[1], reference.mask)
        self.failed: Failure | None = None  # in a call after the first

    def _wanted(self, out: Tensor) -> Tensor | None:
        """The output that decoding must give; None if unknown."""
        if self.subject.axes != "batch" or self.subject.separate:
            return None
        mask = self.reference.mask
        if mask == "causal" or mask.startswith("window"):
            return out
        flags = self.subject.built.plain.items()
        if any(meaning_of(name) == "causal" and value is False for name, value in flags):
            return None  # it is not a decoder
        tokens = out.shape[1]
        past = torch.ones(tokens, tokens).tril().bool()  # a decoded token sees only the past
        right = self.reference.output(self.inputs, past) if mask == "none" else None
        return right if right is not None and right.shape == out.shape else None

    def best(self, ways: Sequence[Way]) -> _Decoded | None:
        """The convention closest to the output for the full sequence; None if none of them runs."""
        found: list[_Decoded] = []
        for way in ways[:MOST_WAYS]:
            own = [one for one in found if one.remembers and is_own(one.way.first)]
            if own and not is_own(way.first):
                break  # the file's own cache class takes precedence over other conventions
            got = self._decoded(way)
            if got is None:
                continue
            if not got.bad:
                relied = _as_called(self.case, way)
                again = None if relied == way else self._decoded(relied)
                return again if again is not None and again.bad else got
            found.append(got)
        return min(found, key=lambda one: (not one.remembers, len(one.bad)), default=None)

    def _decoded(self, way: Way) -> _Decoded | None:
        """The result of one convention for each plan; None if it does not run."""
        x, wanted = self.inputs[0], self.wanted
        gaps: dict[str, float] = {}
        seen: dict[str, Tensor] = {}
        for name, sizes in self.plans.items():
            got = self._drive(x, way, sizes)
            if got is not None and wanted is not None and got.shape == wanted.shape:
                gaps[name], seen[name] = difference(got, wanted), got
            elif not gaps:
                return None
        if not any(gap > _APART for gap in gaps.values()):
            return _Decoded(way, gaps, seen, True)
        name, changed = next(iter(seen)), x.clone()
        first = self.plans[name][0]  # tokens in the first call
        changed[:, :first] = x[:, :first].flip(-1)
        other = self._drive(changed, way, self.plans[name])
        remembers = other is not None and difference(other[:, first:], seen[name][:, first:]) > 1e-6
        asked = way.flags or (way.past and way.first is None)  # else the cache may be off
        return _Decoded(way, gaps, seen, remembers) if remembers or asked else None

    def report(self, best: _Decoded) -> None:
        """Report the difference."""
        bad, name = best.bad, best.bad[0]
        evidence = (
            f"With the cache, {name}, the output differs from that of the whole sequence by "
            f"{percent(best.gaps[name])}"
        )
        place = torch.cat([torch.arange(size) for size in self.plans[name]])
        first_keys = torch.arange(len(place)) <= place[:, None]  # within each piece
        misaligned = self.reference.output(self.inputs, first_keys, own_mask=False)
        id = "cache-differs"
        if misaligned is not None and difference(best.seen[name], misaligned) < _APART:
            evidence += "; it is what you get when a new token sees only the first keys"
            id = "cached-mask-misaligned"
        fine = [name for name in best.gaps if name not in bad]
        evidence += f"; {' and '.join(fine)} it is right." if fine else "."
        only_edge = bad == [PIECES] and not _promises_pieces(self.case)
        self.case.add(id, evidence, severity="edge" if only_edge else "")

    def beyond_window(self, way: Way, window: int) -> None:
        """Decode a sequence longer than the window: evicted cache entries must not matter."""
        tokens = window + 6
        inputs = inputs_for(self.subject, tokens)
        out = call(self.case.session, self.subject, inputs)
        for start in (4, window + 2):
            got = self._drive(inputs[0], way, [start, *[1] * (tokens - start)])
            if isinstance(out, Failure) or got is None or got.shape != out.shape:
                return
            parts = (got - out).abs().amax((0, 2)) > _APART * float(out.abs().max())
            if parts.any():
                first = int(parts.nonzero()[0])
                evidence = (
                    f"With the cache, the outputs of a sequence of {tokens} tokens, {start} of "
                    f"them at once, are right up to token {first - 1}; from token {first} on they "
                    f"differ from those of the whole sequence, by {percent(difference(got, out))}. "
                    f"The window is {window} tokens."
                )
                self.case.add("cache-differs", evidence)
                return

    def _drive(self, x: Tensor, way: Way, sizes: Sequence[int]) -> Tensor | None:
        """The output, decoded piece by piece with a new object; None if that fails."""
        subject = self.subject
        if way.first is not None:  # a cache allocates its tensors in float32
            subject = replace(subject, dtype=torch.float32)
        if not renew(self.case.session, subject):
            return None
        pieces: list[Tensor] = []
        past = way.first
        start = 0
        x = x.to(subject.dtype)
        for size in sizes:
            given = _arguments(subject, x, way, start, start + size)
            if way.past and (past is not None or start == 0):
                given[way.past] = past
            output = self.case.session.forward([], given)
            if isinstance(output, Failure):
                self.failed = output if start and output.line is not None else self.failed
                return None
            shape = (len(x), size, x.shape[-1])
            chosen = pick(output, shape)
            if chosen is None or output.tensors[chosen].shape[:2] != shape[:2]:
                return None
            pieces.append(output.tensors[chosen].to(torch.float64))
            start += size
            if way.past and way.first is None:
                several = output.structure in ("tuple", "list") and len(output.tensors) > 1
                whole = {"__returned__": -1} if several else None
                past = whole if way.whole else _past_in(output, chosen, start)
                if past is None and start < x.shape[1]:
                    return None
        return torch.cat(pieces, dim=1)


def _plans(tokens: int, mask: str) -> dict[str, list[int]]:
    """The number of tokens in each call, by name of the plan."""
    plans = {"token by token": [1] * tokens}
    if mask == "none":
        return plans
    starts = {f"after a start of {n} tokens": [n, *[1] * (tokens - n)] for n in (4, tokens - 2)}
    return {**starts, **plans, PIECES: [4, tokens - 4]}


def _as_called(case: Case, way: Way) -> Way:
    """The convention without the positions that the file's own calls with a cache omit."""
    sites = [site for site in case.usage.called if way.past in site]
    places = [(n, kind) for n, kind in way.places if all(n in site for site in sites)]
    return replace(way, places=tuple(places))


def _promises_pieces(case: Case) -> bool:
    """Whether the source says that a sequence may come in pieces of several tokens."""
    said = (
        r"(?i)\b(in|by|as|several|more|next|whole|each|every|one) (\w+ )?(chunk|piece|segment)s?|"
        r"chunked|speculative|chunks? of (a|the)"
    )
    return re.search(said, case.text.source) is not None


def _arguments(subject: Subject, x: Tensor, way: Way, start: int, stop: int) -> dict[str, object]:
    """Forward's arguments for the tokens from `start` to `stop`, by name."""
    positional, keywords = arguments_for(subject, (x, x, x))
    names = [p.name for p in subject.info.forward]
    given = {**dict(zip(names, positional, strict=False)), **keywords}
    for name, role in subject.feed:
        value = given.get(name)
        if role in ("x", "q"):
            given[name] = x[:, start:stop].contiguous()
        elif role in ANGLE_ROLES:
            both = value if isinstance(value, tuple) else (value,)
            first = 0 if way.all_angles else start
            cut = tuple(one[..., first:stop, :] for one in both if isinstance(one, Tensor))
            given[name] = cut if isinstance(value, tuple) else cut[0] if cut else None
        elif isinstance(value, Tensor) and role == "mask":
            rows = value[..., start:stop, :] if subject.mask_shape.endswith("nn") else value
            given[name] = rows[..., :stop].contiguous()
    for name, kind in way.places:
        row = torch.arange(start, stop)
        ways = {"number": start, "row": row, "rows": row.expand(len(x), -1)}
        given[name] = ways[kind]
    return given | dict.fromkeys(way.flags, True)


def _past_in(output: Output, chosen: int, seen: int) -> object:
    """The cached keys and values among the returned tensors: those that hold all tokens so far."""
    rest = [t for place, t in enumerate(output.tensors) if place != chosen]
    held = [t for t in rest if t.ndim >= 3 and seen in t.shape[1:-1]]
    if len(held) > 2:  # attention weights come before them
        held = held[-2:]
    if len(held) == 2 and held[0].shape == held[1].shape:
        return tuple(held)
    return held[0] if len(held) == 1 else None
