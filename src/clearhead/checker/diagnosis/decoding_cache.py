"""A cache of past keys and values: token by token must give what the whole text gives."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.checker.diagnosis.probes import Inputs
from clearhead.checker.diagnosis.reference import Reference
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.comparison import difference, percent
from clearhead.checker.harness.subject import Subject, arguments_for, call, inputs_for, pick, renew
from clearhead.checker.sandbox.submission import Failure, Output, Parameter

_WORDS = r"cache|past|kv_state|prev_k|incremental|decod"
_PLACES = r"start_pos|start|offset|pos|position|past_len(gth)?|cur_pos|step|input_pos"


@dataclass(frozen=True)
class Ways:
    """How a class is asked to use its cache.

    Args:
        flags: Arguments that switch it on.
        past: The argument that takes what was returned before, or "".
        place: The argument that takes the number of past tokens, or "".
    """

    flags: tuple[str, ...]
    past: str
    place: str


def ways_of(case: Case) -> Ways | None:
    """How the cache is used, as far as names tell; None if there is no cache."""
    held = case.text.has(rf"self\.\w*({_WORDS})\w*")
    switches = [p for p in case.info.forward if p.has_default and p.default is False]
    flags = tuple(p.name for p in switches if re.search(_WORDS, p.name.lower()))
    pasts = [p for p in case.info.forward if _takes_past(p)]
    places = [p.name for p in case.info.forward if re.fullmatch(_PLACES, p.name.lower())]
    if not (pasts or (held and (flags or places))):
        return None
    return Ways(flags, pasts[0].name if pasts else "", places[0] if places else "")


def _takes_past(parameter: Parameter) -> bool:
    named = re.search(r"cache|past|kv_state|state", parameter.name.lower())
    return bool(named) and parameter.has_default and parameter.default is None


def decoding(
    case: Case,
    subject: Subject,
    inputs: Inputs,
    out: Tensor,
    reference: Reference,
    longer: Reference | None,
) -> None:
    """Decode with the cache, and hold it against the whole text.

    Args:
        case: The class.
        subject: How it is called.
        inputs: The inputs of the plain run.
        out: What it gave.
        reference: Right attention of its form.
        longer: The same with the window that longer texts have shown, if they have.
    """
    ways = ways_of(case)
    if ways is None or case.given or any(f.severity == "wrong" for f in case.findings):
        return
    drivable = subject.axes == "batch" and not (subject.separate or subject.polarity or subject.ids)
    gaps: dict[str, float] = {}
    tokens = inputs[0].shape[1]
    plans = {
        "after a start of 4 tokens": [4, *[1] * (tokens - 4)],
        "token by token": [1] * tokens,
        "in two pieces": [4, tokens - 4],
    }
    seen: dict[str, Tensor] = {}
    if drivable and reference.mask == "causal":
        for name, sizes in plans.items():
            got = _drive(case, subject, inputs[0], ways, sizes)
            if got is not None and got.shape == out.shape:
                gaps[name], seen[name] = difference(got, out), got
    if not gaps:
        case.notes.append("The cache was not checked: the checker could not operate it.")
        return
    bad = [name for name in gaps if gaps[name] > 1e-4]
    steps = [name for name in gaps if name != "in two pieces"]
    if not bad:
        _beyond_window(case, subject, ways, longer)
        return
    evidence = (
        f"With the cache, {bad[0]}, the output differs from that of the whole sequence by "
        f"{percent(gaps[bad[0]])}"
    )
    misaligned = _misaligned(reference, inputs, plans[bad[0]])
    if misaligned is not None and difference(seen[bad[0]], misaligned) < 1e-4:
        evidence += "; it is what you get when a new token sees only the first keys"
        id = "cached-mask-misaligned"
    else:
        id = "cache-differs"
    fine = [name for name in gaps if name not in bad]
    evidence += f"; {' and '.join(fine)} it is right." if fine else "."
    only_edge = any(name in fine for name in steps) and not _promises_pieces(case)
    case.add(id, evidence, severity="edge" if only_edge else "")


def _beyond_window(case: Case, subject: Subject, ways: Ways, longer: Reference | None) -> None:
    """Decode a text that is longer than the window: what the cache has let go must not matter."""
    mask = "" if longer is None else longer.mask
    if not mask.startswith("window") or not renew(case.session, subject):
        return
    tokens = int(mask.removeprefix("window")) + 6
    inputs = inputs_for(subject, tokens)
    out = call(case.session, subject, inputs)
    got = _drive(case, subject, inputs[0], ways, [4, *[1] * (tokens - 4)])
    if isinstance(out, Failure) or got is None or got.shape != out.shape:
        return
    parts = (got - out).abs().amax((0, 2)) > 1e-4 * float(out.abs().max())
    if parts.any():
        first = int(parts.nonzero()[0])
        evidence = (
            f"With the cache, the outputs for {tokens} tokens are right up to token "
            f"{first - 1}; from token {first} on they differ from those of the whole sequence by "
            f"{percent(difference(got, out))}. The window is {tokens - 6} tokens."
        )
        case.add("cache-differs", evidence)


def _promises_pieces(case: Case) -> bool:
    """Whether the source says that a text may come in pieces of several tokens."""
    said = (
        r"(?i)\b(in|by|as|several|more|next|whole|each|every|one) (\w+ )?(chunk|piece|segment)s?|"
        r"chunked|speculative|chunks? of (a|the)"
    )
    return re.search(said, case.text.source) is not None


def _misaligned(reference: Reference, inputs: Inputs, sizes: Sequence[int]) -> Tensor | None:
    """The output if the mask of each piece starts at the first key."""
    place = torch.cat([torch.arange(size) for size in sizes])
    visible = torch.arange(len(place)) <= place[:, None]
    return reference.output(inputs, visible, own_mask=False)


def _drive(
    case: Case, subject: Subject, x: Tensor, ways: Ways, sizes: Sequence[int]
) -> Tensor | None:
    """The outputs of one piece after the other, with a new object; None if it cannot be done."""
    got = _driven(case, subject, x, ways, sizes, whole=False)
    if got is None and ways.past:
        got = _driven(case, subject, x, ways, sizes, whole=True)
    return got


def _driven(
    case: Case, subject: Subject, x: Tensor, ways: Ways, sizes: Sequence[int], *, whole: bool
) -> Tensor | None:
    """The same, with the keys and values given back, or with the whole last thing returned."""
    if not renew(case.session, subject):
        return None
    pieces: list[Tensor] = []
    past: object = None
    start = 0
    for size in sizes:
        piece = x[:, start : start + size].contiguous()
        positional, keywords = arguments_for(subject, (piece, piece, piece), None)
        keywords |= dict.fromkeys(ways.flags, True)
        if ways.past and past is not None:
            keywords[ways.past] = past
        if ways.place:
            keywords[ways.place] = start
        output = case.session.forward(positional, keywords)
        if isinstance(output, Failure):
            return None
        chosen = pick(output, piece.shape)
        if chosen is None or output.tensors[chosen].shape[:2] != piece.shape[:2]:
            return None
        pieces.append(output.tensors[chosen].to(torch.float64))
        start += size
        if ways.past:
            several = output.structure in ("tuple", "list") and len(output.tensors) > 1
            if whole:
                past = {"__returned__": -1} if several else None
            else:
                past = _past_in(output, chosen, start)
            if past is None:
                return None
    return torch.cat(pieces, dim=1)


def _past_in(output: Output, chosen: int, seen: int) -> object:
    """The keys and values among what was returned: tensors that hold all tokens so far."""
    rest = [t for place, t in enumerate(output.tensors) if place != chosen]
    held = [t for t in rest if t.ndim >= 3 and seen in t.shape[1:-1]]
    if len(held) > 2:  # attention weights stand before them
        held = held[-2:]
    if len(held) == 2 and held[0].shape == held[1].shape:
        return tuple(held)
    return held[0] if len(held) == 1 else None
