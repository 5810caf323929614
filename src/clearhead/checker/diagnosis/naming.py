"""From an explanation to findings: which names it gets, and what the source says to that."""

import math
import re
from dataclasses import replace

from torch import Tensor

from clearhead.checker.diagnosis import probes
from clearhead.checker.diagnosis.evidence import evidence_for
from clearhead.checker.diagnosis.search import Explanation, Search
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.constructor_arguments import asks_for_causal, meaning_for, meaning_of
from clearhead.checker.harness.subject import Subject
from clearhead.checker.harness.weight_roles import role_of
from clearhead.checker.source.text_patterns import (
    Text,
    context_name,
    dropped_mask,
    expects_causal,
    hints_of,
    uses_sdpa,
)


def is_causal(case: Case, subject: Subject) -> str:
    """Whether the class means to be causal: "yes", "no" or "maybe"."""
    # An adapter takes a context length whatever it builds.
    info = replace(case.info, name=case.text.name, init=()) if case.given else case.info
    asked = not case.given and asks_for_causal(subject.keywords)
    kept = [v for n, v in subject.built.plain.items() if meaning_of(n) == "causal"]
    if False in kept:
        return "no"  # the object itself says so
    if any(p.default is False and "causal" in p.name.lower() for p in case.info.forward):
        return "no"  # the caller says whether it is, and we did not ask for it
    if not asked and any(role == "kv" for _, role in subject.feed):
        return "no"  # keys from elsewhere have no future
    flags = [name for name, value in subject.built.plain.items() if isinstance(value, bool)]
    return expects_causal(case.text, info, bool(subject.takes_mask), asked, flags)


def name_mistakes(
    case: Case,
    subject: Subject,
    inputs: probes.Inputs,
    out: Tensor,
    best: Explanation,
    search: Search,
) -> None:
    """Findings for what the reproduction found."""
    ids = list(best.ids)
    hints = hints_of(case.text)
    if "heads-folded-into-batch" in ids and hints.get("heads-folded-into-batch", 0.0) < 1.0:
        place = ids.index("heads-folded-into-batch")
        ids[place : place + 1] = ["split-without-transpose", "merge-without-transpose"]
    order = best.candidate.order
    if order and "query-key-swapped" in ids and order == "qkv":
        order = "kqv"
    if order not in ("", "qkv", "kv") and _unpacked(case.text, order):
        ids = [id for id in ids if id not in ("query-key-swapped", "projections-in-other-order")]
        case.notes.append(f"The fused matrix holds its parts in the order {order}.")
    if "wrong-scale" in ids and _learned_scale(subject):
        ids.remove("wrong-scale")
        case.notes.append("The scale is learned: a parameter multiplies the scores.")
    if "wrong-gain" in ids and _learned_gain(subject, best):
        ids.remove("wrong-gain")
        case.notes.append("A learned number multiplies the output.")
    shapes = subject.built.parameters
    inside = [n for n, s in shapes.items() if role_of(n) in ("q", "k", "v") and len(s) == 2]
    count, head_dim = best.program.weights.heads, best.program.head_dim
    if count > 1 and inside and all(shapes[n] == (head_dim, head_dim) for n in inside):
        evidence = f"{inside[0]} is {head_dim} × {head_dim} for {count} heads of {head_dim}."
        case.add("heads-share-projection", evidence)
    scaled = SCALES & set(ids)
    set_by = scale_set_by(case.text, subject, best) if scaled else ""
    if set_by == "an argument":
        ids = [id for id in ids if id not in SCALES]
        case.notes.append("The scale is an argument, and what was given is used.")
    given = {role for _, role in subject.feed}
    if best.base.scale == "none" and {"q", "k", "v"} <= given:
        evidence = (
            "The scale is 1. Does the caller scale the queries, or is it Luong's attention, which "
            "has no scale? Then it is right."
        )
        case.add("missing-scale", evidence, severity="edge")
    asked = [p.name for p in case.info.init if meaning_for(p) == "heads" and not case.given]
    if asked and subject.sizes.heads > count == 1 and asked[0] in subject.keywords:
        case.add("heads-ignored", f"With {asked[0]}={subject.sizes.heads} there is one head.")
    for id in ids:
        line = None
        if id == "no-causal-mask":
            line = dropped_mask(case.text)
            if line is not None:
                id = "mask-result-dropped"
            elif case.text.has(r"1e-\d"):
                id = "mask-fill-not-inf"  # so small that it changes nothing
        if id == "mask-inverted" and uses_sdpa(case.text):
            id = "sdpa-mask-polarity"
        evidence = evidence_for(id, case.session, subject, inputs, out, best, search)
        if id == "missing-scale" and "T5" in case.info.name:
            case.add(id, f"{evidence} T5 has no scale, on purpose.", line, severity="edge")
            continue
        if set_by == "a constant" and id in SCALES:
            evidence += " A constant sets it so: on purpose, as in T5? Then it is right."
            case.add(id, evidence, line, severity="edge")
            continue
        case.add(id, evidence, line)


_NO_SCALE = (
    r"(?i)\bT5\b|\b(no|not|without|un)[ -]?(the )?(1\s*/\s*sqrt|sqrt|scal\w+|division|divided)|"
    r"scal\w+ (is|are) (folded|absorbed|in the init)"
)


def unscaled_on_purpose(case: Case) -> bool:
    """Whether the source says that the scores have no scale, as T5's have none."""
    said = re.search(_NO_SCALE, case.text.source) is not None
    return said or "T5" in case.info.name


def question_of_causality(
    case: Case, subject: Subject, inputs: probes.Inputs, out: Tensor, best: Explanation
) -> None:
    """It sees the future, and nothing says whether it may: a question, and no verdict."""
    if best.base.mask != "none" or is_causal(case, subject) != "maybe":
        return
    leak = probes.future_leak(case.session, subject, inputs, out)
    name = context_name(case.text, case.info)
    case.add(
        "no-causal-mask",
        f"Changing token {leak.changed} changed output {leak.moved} by {leak.size:.2g}. Is it "
        f"meant for a language model, as {name} lets us think? Then the mask is missing. In an "
        "encoder it is right.",
        severity="edge",
    )


SCALES = {"missing-scale", "wrong-scale", "scale-by-d-out", "scale-multiplied", "scale-twice"}


def scale_set_by(text: Text, subject: Subject, best: Explanation) -> str:
    """Whether the object keeps the scale that was found, set by "an argument" or "a constant"."""
    found = best.program.factor(best.switches)
    for name, value in subject.built.plain.items():
        if not re.search(r"scal|multiplier|temperature", name.lower()):
            continue
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            continue
        if min(abs(value / found - 1), abs(1 / value / found - 1)) > 1e-4:
            continue
        line = re.search(rf"self\.{re.escape(name)}\s*(?::[^=\n]+)?=\s*([^\n]+)", text.code)
        if line and re.fullmatch(r"(float\()?[\d.e+-]+\)?", line[1].strip()):
            return "a constant"
        if line and re.fullmatch(r"(float\()?(\w+\.)?[a-z_]\w*\)?", line[1].strip()):
            return "an argument"
        field = r"(\w+\.)+\w*(scal|temperature|multiplier)\w*\s*\*\*\s*\(?-?\s*(0?\.5|1\s*/\s*2\))"
        if line and re.fullmatch(field, line[1].strip()):
            return "an argument"
    return ""


def _learned_scale(subject: Subject) -> bool:
    return any(
        math.prod(shape) == 1 and "bias" not in name
        for name, shape in subject.built.parameters.items()
    )


def _learned_gain(subject: Subject, best: Explanation) -> bool:
    """Whether the gain that was found is the value of a parameter: `self.gamma * out + x`."""
    single = [float(w.flatten()[0]) for w in subject.weights.values() if w.numel() == 1]
    return any(abs(float(best.switches.gain) - value) < 1e-6 for value in single)


def _unpacked(text: Text, order: str) -> bool:
    """Whether the source itself names the parts in the order that was found."""
    words = {"q": r"q\w*", "k": r"k\w*", "v": r"v\w*"}
    pattern = r"\s*,\s*".join(rf"(?:self\.)?{words[letter]}" for letter in order)
    return text.has(rf"\b{pattern}\s*=") or order in text.code
