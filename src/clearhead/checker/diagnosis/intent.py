"""What a class is meant to be, according to its source, its arguments and the built object.

The recorded pass shows what a class does. Only names and comments can tell whether that is
intended (no mask, no scale).
"""

import ast
import itertools
import re
from dataclasses import replace

from clearhead.checker.harness.case import Case
from clearhead.checker.harness.constructor_arguments import meaning_of
from clearhead.checker.harness.subject import Subject
from clearhead.checker.source.call_sites import parsed
from clearhead.checker.source.class_text import expects_causal

SCALES = {"missing-scale", "wrong-scale", "scale-by-d-out", "scale-multiplied", "scale-twice"}
_NO_SCALE = (
    r"(?i)\bT5\b|\b(no|not|without|un)[ -]?(the )?(1\s*/\s*sqrt|sqrt|scal\w+|division|divided)|"
    r"scal\w+ (is|are) (folded|absorbed|in the init)"
)


def is_causal(case: Case, subject: Subject) -> str:
    """Whether the class is meant to be causal: "yes" or "no"."""
    # An adapter takes a context length regardless of what it builds.
    info = replace(case.info, name=case.text.name, init=()) if case.given else case.info
    told = subject.keywords.items()
    asked = not case.given and any(meaning_of(n) == "causal" and v is True for n, v in told)
    kept = [v for n, v in subject.built.plain.items() if meaning_of(n) == "causal"]
    if False in kept:
        return "no"  # the object itself says so
    if any(p.default is False and "causal" in p.name.lower() for p in case.info.forward):
        return "no"  # the caller decides, and we did not request it
    if not asked and any(role == "kv" for _, role in subject.feed):
        return "no"  # keys from another input have no future
    flags = [name for name, value in subject.built.plain.items() if isinstance(value, bool)]
    return expects_causal(case.text, info, bool(subject.takes_mask), asked, flags)


def unscaled_on_purpose(case: Case) -> bool:
    """Whether the source says that the scores are unscaled, as in T5."""
    said = re.search(_NO_SCALE, case.text.source) is not None
    return said or "T5" in case.info.name


def has_width_of_its_own(case: Case) -> bool:
    """Whether a module-level constant fixes a width, so that the expected scale may not apply."""
    tops = [n for n in parsed(case.text.file).body if isinstance(n, ast.Assign)]
    set_there = {target.id for n in tops for target in n.targets if isinstance(target, ast.Name)}
    read = {n.id for n in ast.walk(case.text.tree) if isinstance(n, ast.Name)} & set_there
    return any(meaning_of(name) in ("d", "d_in", "d_out", "head_dim") for name in read)


def fused_order(case: Case) -> str:
    """The order in which the source names the parts of a fused matrix, such as "kqv", or ""."""
    words = {"q": r"q\w*", "k": r"k\w*", "v": r"v\w*"}
    for order in map("".join, itertools.permutations("qkv")):
        pattern = r"\s*,\s*".join(rf"(?:self\.)?{words[letter]}" for letter in order)
        if case.text.has(rf"\b{pattern}\s*=") or (order != "qkv" and order in case.text.code):
            return order
    return ""
