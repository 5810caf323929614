"""What else to try when a class cannot be built or called, read from the error it raised."""

import ast
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace

from clearhead.checker.harness.axis_orders import letter_named
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.constructor_arguments import (
    Attempts,
    Sizes,
    constructors,
    each_field,
    guessed,
    meaning_for,
    meaning_of,
)
from clearhead.checker.harness.forward_arguments import GUESSES
from clearhead.checker.harness.subject import Subject
from clearhead.checker.harness.weight_roles import role_of
from clearhead.checker.sandbox.submission import Built, ClassInfo, Failure
from clearhead.checker.source.argument_flow import frames, layer_of, used_at
from clearhead.checker.source.call_sites import (
    allowed_values,
    class_node,
    method,
    parsed,
    usage_of,
)

GONE = ("timeout", "memory", "died", "protocol")
_FIELDS = 12  # the most fields of one configuration to guess after an error
NO_FIELD = re.compile(r"the config has no '(\w+)'")


def build(
    case: Case, sizes: Sizes, arguments: list[object], keywords: dict[str, object]
) -> tuple[Built | Failure, dict[str, object]]:
    """Build the class; fields that its configuration lacks are guessed from their names.

    Args:
        case: The class.
        sizes: The sizes it is built with.
        arguments: Positional-only arguments.
        keywords: The other arguments.

    Returns:
        The object or the failure, and the other arguments that were passed in the end.
    """
    session = case.session
    called = case.usage.called_names
    session.constants = {n: guessed(n, sizes) for n in session.missing if n not in called}
    keywords = {**keywords, **_parts(case, sizes, keywords)}
    for _ in range(_FIELDS):
        built = session.build(case.info.name, arguments, keywords)
        more = with_field(case, built, sizes, keywords) if isinstance(built, Failure) else None
        if more is None:
            break
        keywords = more
    return built, keywords


def with_field(
    case: Case, failure: Failure, sizes: Sizes, keywords: dict[str, object]
) -> dict[str, object] | None:
    """The arguments with one more field in their configurations, if the error says it is missing.

    Args:
        case: The class.
        failure: The failure.
        sizes: The sizes it was built with.
        keywords: The arguments it was built with.
    """
    if "NoneType" in failure.message and failure.type == "TypeError":
        return _with_numbers(case, failure, sizes, keywords)
    found = NO_FIELD.search(failure.message)
    name = found[1] if found else failure.message.strip("'") if failure.type == "KeyError" else ""
    told = [v for n, v in case.info.fields if n.rpartition(".")[2] == name and v is not None]
    allowed = allowed_values(parsed(case.text.file))
    value_for = told[0] if told else allowed.get(name, guessed(name, sizes))

    def added(value: object) -> object:
        inner = value.get("__config__") if isinstance(value, dict) else None
        if inner is None:
            return value
        fields = {field: added(one) for field, one in inner.items()}
        return {"__config__": {name: value_for, **fields}}

    more = {key: added(value) for key, value in keywords.items()}
    return more if name and more != keywords else None


def _with_numbers(
    case: Case, failure: Failure, sizes: Sizes, keywords: dict[str, object]
) -> dict[str, object] | None:
    """The arguments with a number for a field of unknown meaning that the code computes with.

    Such a field is None at first, so that optional parts stay out. The same holds for a constructor
    argument with that default; it gets the width unless its name suggests another value.
    """
    lines = case.text.file.splitlines()
    ran = "\n".join(lines[n - 1] for n in frames(failure) if 0 < n <= len(lines))
    words = {*re.findall(r"\w+", ran)}

    def filled(name: str, value: object) -> object:
        wanted = value is None and name in words
        whole = re.search(r"^n_|num|size|count|length", name.lower())
        return (2 if whole else 30.0) if wanted else value

    more = {key: each_field(value, filled, key) for key, value in keywords.items()}
    init = method(class_node(case.text.file, case.info.name), "__init__")
    inside = [n for n in frames(failure) if init and init.lineno <= n <= (init.end_lineno or 0)]
    left_out = [p for p in case.info.init if p.has_default and p.default is None and inside]
    more |= {p.name: guessed(p.name, sizes) or sizes.d_out
             for p in left_out if p.name in words and p.name not in keywords}  # fmt: skip
    return more if more != keywords else None


def _parts(case: Case, sizes: Sizes, keywords: dict[str, object]) -> dict[str, object]:
    """Objects for arguments that forward calls: of a class of the file, or the identity."""
    wanted = {p.name for p in case.info.init if not p.has_default} & case.usage.parts
    classes = case.session.classes() if wanted else ()
    if isinstance(classes, Failure):
        return {}
    return {name: _part(case, name, classes, sizes) for name in sorted(wanted)}


def _part(case: Case, name: str, classes: tuple[ClassInfo, ...], sizes: Sizes) -> dict[str, object]:
    told = [site[name].calls for site in case.usage.built if name in site]
    if any(isinstance(n, ast.FunctionDef) and n.name == name for n in parsed(case.text.file).body):
        return {"__callable__": name, "else": "Identity"}
    others = [info for info in classes if info.is_module and info.name != case.info.name]
    likely = [info for info in others if info.name in told]
    likely += [info for info in others if name.lower().strip("_")[:4] in info.name.lower()]
    for info in likely:
        same = Attempts((sizes,), sizes, sizes, sizes)
        for _, arguments, keywords in constructors(
            info, usage=usage_of(case.text.file, info), sizes=same
        ):
            return {"__object__": info.name, "arguments": arguments, "keywords": keywords}
    role = role_of(name)
    if role in ("q", "k", "v", "o"):  # a projection
        shared = any(meaning_for(p) == "kv_heads" for p in case.info.init) and role in "kv"
        width = sizes.head_dim * (sizes.kv_heads if shared else sizes.heads)
        return {"__object__": "Linear", "arguments": [sizes.d_out, width], "keywords": {}}
    return {"__object__": "Identity", "arguments": [], "keywords": {}}


# Shapes of an argument: b sequences, n tokens, m = 2n - 1 offsets, h heads, e = b * h, w its width.
_FEATURES = ("b n w", "b n n w", "1 m w", "n w", "1 n w", "b w", "b 1 n w", "m w", "n n w", "n n 1")
_SCORES = ("h n n", "b h n n", "1 h n n", "e 1 n", "n n", "b n n", "e n n", "h 1 n", "1 n n")
_NO_INPUT = ("none", "kv", "false", "length", "positions", *GUESSES)


def changes(case: Case, subject: Subject, failure: Failure) -> Iterator[Subject]:
    """Other ways to call it: with an input width that the error names, or with other arguments."""
    numbers = [int(n) for n in re.findall(r"\d+", failure.message)]
    shapes = [shape for shape in subject.built.parameters.values() if 0 not in shape]
    others = [n for n in dict.fromkeys(numbers) if n in {n for shape in shapes for n in shape}]
    taken = [shape[1] for shape in shapes if len(shape) == 2]
    told = [v for n, v in subject.keywords.items() if meaning_of(n) in ("d", "d_in")]
    if subject.d_in in numbers:
        more = dict.fromkeys([*others, *(v for v in told if type(v) is int), *taken])
        yield from (replace(subject, d_in=n) for n in more if n != subject.d_in)
        if subject.separate and not subject.d_kv:  # queries and keys differ in width
            yield from (replace(subject, d_in=n, d_kv=subject.d_in) for n in more)
    if subject.separate and (subject.d_kv or subject.d_in) in numbers:
        yield from (replace(subject, d_kv=n) for n in others if n != subject.d_kv)
    blamed = used_at(case.text.file, case.info.name, frames(failure))
    left_out = [
        p.name
        for p in case.info.forward
        if p.default is None and p.name in blamed - {name for name, _ in subject.feed}
    ]
    for name in left_out if "NoneType" in failure.message else ():
        for guess in ("positions", "positions of each", *GUESSES):
            yield replace(subject, feed=(*subject.feed, (name, guess)))
    may = [
        name for name, role in subject.feed[1:] if role in _NO_INPUT or role.startswith("tensor")
    ]
    if "Boolean value of Tensor" in failure.message:  # a flag got a tensor
        there = re.findall(r"\w+", case.text.file.splitlines()[(failure.line or 1) - 1])
        optional = [p.name for p in case.info.forward if p.has_default and p.default is None]
        for name in (n for n in optional if n in there and n not in may):
            yield replace(subject, feed=tuple(one for one in subject.feed if one[0] != name))
        for name, guess in itertools.product([n for n in may if n in there], ("false", "true")):
            yield replace(
                subject, feed=tuple((n, guess if n == name else r) for n, r in subject.feed)
            )
    for name in [n for n in may if n in blamed or not blamed]:
        role = dict(subject.feed)[name]
        guesses = [*GUESSES, *(f"tensor {shape}" for shape in _shapes(case, subject, name))]
        several = case.usage.ranks.get(name, 0) > 2
        if several or _layers(case, subject, name):  # the input of a layer is not a mask
            guesses = [guess for guess in guesses if guess.startswith("tensor")]
        for guess in guesses:
            if guess != role and not (role == "mask" and guess in GUESSES and guess != "marks"):
                feed = tuple((n, guess if n == name else r) for n, r in subject.feed)
                yield replace(subject, feed=feed)


def _layers(case: Case, subject: Subject, name: str) -> list[int]:
    """The input widths of the layers that receive an argument first."""
    found = []
    for layer in layer_of(case.text.file, case.info.name, name):
        below = [n for n in subject.built.parameters if n.startswith(f"{layer}.")]
        shapes = [subject.built.parameters[n] for n in below if n.endswith("weight")]
        found += [shape[-1] for shape in shapes if shape][:1]
    return found


def _shapes(case: Case, subject: Subject, name: str) -> list[str]:
    """The possible shapes of an argument, with its width as a number; likely ones first."""
    widths = _layers(case, subject, name)[:1]
    features = [shape.replace("w", str(w)) for w in widths or [subject.d_in] for shape in _FEATURES]
    rank = case.usage.ranks.get(name, 0)
    shapes = features if widths else [*_SCORES, *features]
    declared = [letter_named(axis) for axis in case.usage.unpacked.get(name, ())]
    if declared and all(declared):
        width = str(widths[0] if widths else subject.d_in)
        shapes = [" ".join(declared).replace("w", width), *shapes]
    return sorted(shapes, key=lambda shape: rank > 0 and len(shape.split()) != rank)
