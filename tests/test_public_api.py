"""The public names, their signatures and the help texts are frozen in tests/public_api.txt.

After a change that is meant: `python tests/test_public_api.py --update`, and look at the diff.
"""

import contextlib
import difflib
import inspect
import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import clearhead
from clearhead import cli

SNAPSHOT = Path(__file__).with_name("public_api.txt")
UPDATE = "python tests/test_public_api.py --update"


def signature(function: object) -> str:
    """The signature as text, without the places that types come from."""
    try:
        text = str(inspect.signature(function))  # type: ignore[arg-type]  # any callable
    except ValueError:  # an exception class has none of its own
        return "(...)"
    text = re.sub(r"""(: |-> )(["'])(.*?)\2(?=$|, | =|\))""", r"\1\3", text)
    return re.sub(
        r"\b(clearhead(\.(?!ladder)[a-z]\w*)+|collections\.abc|torch|jaxtyping)\.(?=\w)", "", text
    )


def members(name: str, owner: type) -> Iterator[str]:
    """The public methods and properties that our own code gives to a class."""
    found: dict[str, object] = {}
    for base in reversed(owner.__mro__):
        if base.__module__.startswith("clearhead"):
            found.update(vars(base))
    for member, value in sorted(found.items()):
        if member.startswith("_"):
            continue
        if isinstance(value, property):
            yield f"{name}.{member}: property"
        elif isinstance(value, staticmethod | classmethod) or inspect.isfunction(value):
            kind = f" {type(value).__name__}" if not inspect.isfunction(value) else ""
            yield f"{name}.{member}{signature(getattr(owner, member))}{kind}"


def describe(name: str, value: object) -> Iterator[str]:
    if inspect.ismodule(value):
        yield f"{name}: module"
        for inner, thing in vars(value).items():
            own = getattr(thing, "__module__", None) == value.__name__
            if own and not inner.startswith("_"):
                yield from describe(f"{name}.{inner}", thing)
    elif inspect.isclass(value):
        yield f"class {name}{signature(value)}"
        yield from members(name, value)
    elif callable(value):
        yield f"{name}{signature(value)}"
    else:
        yield f"{name}: {type(value).__name__}"


def help_of(command: list[str]) -> list[str]:
    """The help text, one line an entry, however wide the window was."""
    out = io.StringIO()
    with (
        mock.patch.dict(os.environ, {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}),
        contextlib.redirect_stdout(out),
        contextlib.suppress(SystemExit),
    ):
        cli.main([*command, "--help"])
    text = re.sub(r"\n {10,}", " ", out.getvalue())  # an entry that was broken into several lines
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return [line for line in lines if line]


def current() -> str:
    """The whole public surface as text."""
    lines = ["# The public surface of clearhead. Made by: " + UPDATE, ""]
    lines += ["# Names"]
    for name in clearhead.__all__:
        lines += describe(name, getattr(clearhead, name))
    for command in commands():
        lines += ["", "# " + " ".join(["clearhead", *command, "--help"]), *help_of(command)]
    return "\n".join(lines) + "\n"


def commands() -> Iterator[list[str]]:
    """The program itself, and its commands."""
    yield []
    yield from ([name] for name in cli.COMMANDS)


def test_public_surface_is_the_frozen_one():
    frozen, now = SNAPSHOT.read_text(encoding="utf-8"), current()
    changes = "\n".join(
        difflib.unified_diff(frozen.splitlines(), now.splitlines(), "frozen", "now", lineterm="")
    )
    assert now == frozen, f"The public surface has changed. If that is meant: {UPDATE}\n{changes}"


def test_every_public_name_can_be_had_and_dir_lists_it():
    assert len(set(clearhead.__all__)) == len(clearhead.__all__)
    assert set(clearhead.__all__) <= set(dir(clearhead))
    for name in clearhead.__all__:
        assert getattr(clearhead, name) is not None


def test_quotes_and_places_are_left_out_of_a_signature():
    def function(a: "int", b: "str | None" = "x", *, c: Path = Path()) -> "None": ...

    assert (
        signature(function)
        == f"(a: int, b: str | None = 'x', *, c: pathlib.Path = {Path()!r}) -> None"
    )

    def deeper(mask: clearhead.Mask) -> None: ...

    assert signature(deeper) == "(mask: Mask) -> None"  # which is clearhead.masks.mask.Mask


if __name__ == "__main__":
    if sys.argv[1:] == ["--update"]:
        SNAPSHOT.write_text(current(), encoding="utf-8")
        print(f"written: {SNAPSHOT}")
    else:
        sys.exit(f"usage: {UPDATE}")
