"""What else to try when a class cannot be built or called: read from the error it gave."""

import re
from collections.abc import Iterator
from dataclasses import replace

from clearhead.checker.harness.case import Case
from clearhead.checker.harness.constructor_arguments import Sizes, constructors, guessed
from clearhead.checker.harness.forward_arguments import GUESSES
from clearhead.checker.harness.subject import Subject
from clearhead.checker.sandbox.submission import Built, ClassInfo, Failure
from clearhead.checker.source.call_sites import usage_of

GONE = ("timeout", "memory", "died", "protocol")
_FIELDS = 12  # of one configuration that may be guessed after an error
_NO_FIELD = re.compile(r"the config has no '(\w+)'")


def build(
    case: Case, sizes: Sizes, arguments: list[object], keywords: dict[str, object]
) -> tuple[Built | Failure, dict[str, object]]:
    """Build the class; fields that its configuration lacks are guessed by their names.

    Args:
        case: The class.
        sizes: What it is built with.
        arguments: Positional-only arguments.
        keywords: The others.

    Returns:
        What came out, and the arguments it was built with in the end.
    """
    session = case.session
    session.constants = {name: guessed(name, sizes) for name in session.missing}
    keywords = {**keywords, **_parts(case, sizes, keywords)}
    for _ in range(_FIELDS):
        built = session.build(case.info.name, arguments, keywords)
        if not isinstance(built, Failure):
            break
        found = _NO_FIELD.search(built.message)
        name = found[1] if found else built.message.strip("'") if built.type == "KeyError" else ""
        more = {
            key: {"__config__": {**value["__config__"], name: guessed(name, sizes)}}
            for key, value in keywords.items()
            if isinstance(value, dict) and name not in value.get("__config__", {name})
        }
        if not name or not more:
            break
        keywords = {**keywords, **more}
    return built, keywords


def _parts(case: Case, sizes: Sizes, keywords: dict[str, object]) -> dict[str, object]:
    """Objects for arguments that forward calls: of a class of the same file, or the identity."""
    wanted = {p.name for p in case.info.init if not p.has_default} & case.usage.parts
    classes = case.session.classes() if wanted else ()
    if isinstance(classes, Failure):
        return {}
    return {name: _part(case, name, classes, sizes) for name in sorted(wanted)}


def _part(case: Case, name: str, classes: tuple[ClassInfo, ...], sizes: Sizes) -> dict[str, object]:
    told = [site[name].calls for site in case.usage.built if name in site]
    others = [info for info in classes if info.is_module and info.name != case.info.name]
    likely = [info for info in others if info.name in told]
    likely += [info for info in others if name.lower().strip("_")[:4] in info.name.lower()]
    for info in likely:
        ways = constructors(info, usage=usage_of(case.text.file, info))
        fitting = [way for way in ways if way[0].d_out == sizes.d_out]
        for _, arguments, keywords in fitting[:1]:
            return {"__object__": info.name, "arguments": arguments, "keywords": keywords}
    return {"__object__": "Identity", "arguments": [], "keywords": {}}


def changes(subject: Subject, failure: Failure) -> Iterator[Subject]:
    """What else may be given: an input of a width that the error names, or other arguments."""
    numbers = [int(n) for n in re.findall(r"\d+", failure.message)]
    widths = {n for shape in subject.built.parameters.values() for n in shape}
    others = [n for n in dict.fromkeys(numbers) if n in widths]
    if subject.d_in in numbers:
        yield from (replace(subject, d_in=n) for n in others if n != subject.d_in)
    if subject.separate and (subject.d_kv or subject.d_in) in numbers:
        yield from (replace(subject, d_kv=n) for n in others if n != subject.d_kv)
    for place, (name, role) in enumerate(subject.feed):
        if not place or role not in ("none", "kv", "mask", "false", "zero", "length", "lengths"):
            continue
        for guess in GUESSES:
            if guess != role and not (role == "mask" and guess != "marks"):
                feed = (*subject.feed[:place], (name, guess), *subject.feed[place + 1 :])
                yield replace(subject, feed=feed)
