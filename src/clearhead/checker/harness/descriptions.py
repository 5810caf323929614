"""One line on how a class was built and called, for the report."""

from clearhead.checker.harness.subject import Subject
from clearhead.checker.source.wrapped_functions import WRAPPER

_MOST = 6  # arguments that are named
_GIVEN = {
    "mask": "", "none": "None", "zero": "0", "one": "1", "false": "False", "true": "True",
    "length": "the number of tokens", "lengths": "full lengths", "positions": "positions 0, 1, ...",
    "positions of each": "positions 0, 1, ... for each sequence",
    "marks": "a mask of the real tokens", "grid": "the grid size",
    "rows": "its height", "columns": "its width", "cumulative": "cumulative lengths",
    "cos": "rotary angles", "sin": "", "cos+sin": "rotary angles", "turns": "rotary angles",
}  # fmt: skip
_SHAPES = {
    "channels": "(batch, channels, tokens)", "picture": "(batch, channels, height, width)",
    "pixels": "(batch, height, width, channels)", "frames": "(batch, tokens, width, 1, 1)",
    "heads": "(batch, heads, tokens, width)", "spread": "(batch, tokens, heads, width)",
    "volume": "(batch, channels, frames, height, width)",
    "crossed": "(batch, tokens, heads, width)",
    "rows": "(batch, 1, tokens, width)", "columns": "(batch, tokens, 1, width)",
    "state": "(batch, width)", "states": "(1, batch, width)", "column": "(batch, 1, width)",
    "single": "(tokens, width)", "first": "(tokens, batch, width)",
    "packed": "(total tokens, width)",
}  # fmt: skip


def description(subject: Subject) -> str:
    """How a class was built and called.

    A line such as "built with d_model=15, num_heads=3; called with x and a causal mask".
    """
    function = subject.info.name.startswith(WRAPPER)
    values = [
        f"{name}={_value(subject, value)}"
        for name, value in subject.keywords.items()
        if not (function and name == "width")  # the wrapper's own argument
    ]
    more = [f"{len(values) - _MOST} more"] if len(values) > _MOST else []
    given = [*map(str, subject.arguments), *values[:_MOST], *more]
    inputs = [name for name, role in subject.feed if role in ("x", "q", "k", "v", "kv")]
    inputs += [f"{name} = [q, k, v]" for name, role in subject.feed if role == "list"]
    optional = {p.name for p in subject.info.forward if p.has_default}
    others = [
        f"{name}={_GIVEN[role]}" if role in ("none", "zero", "one", "false", "true")
        else f"{_given(role)} for {name}"
        for name, role in subject.feed
        if _given(role) and not (name in optional and role == "none")
    ]  # fmt: skip
    if subject.takes_mask and subject.polarity:
        every = subject.mask_shape in ("bn", "b11n")
        others.append("a mask that hides nothing" if every else "a causal mask")
    shape = _SHAPES.get(subject.axes, "")
    as_shape = f", as {shape}" if shape else ""
    if function:
        return f"called with {_listed([*inputs, *others, *given])}{as_shape}"
    called = _listed([*inputs, *others]) + as_shape
    return f"{f'built with {_listed(given)}' if given else 'built'}; called with {called}"


_LETTERS = {
    "b": "batch", "n": "tokens", "m": "2 * tokens - 1", "h": "heads", "e": "batch * heads",
}  # fmt: skip


def _given(role: str) -> str:
    if role.startswith("tensor "):
        axes = [_LETTERS.get(axis, axis) for axis in role.split()[1:]]
        return f"a random tensor ({', '.join(axes)})"
    return _GIVEN.get(role, "")


def _value(subject: Subject, value: object) -> str:
    if isinstance(value, dict):
        if "__config__" in value:
            names = [name for name, _ in subject.info.fields][:_MOST]
            pairs = [(name, _field(value, name)) for name in names]
            return f"({', '.join(f'{n}={v}' for n, v in pairs if v is not None)})"
        inner = value.get("keywords") or {}
        pairs = [(n, v) for n, v in inner.items() if not isinstance(v, dict)][:_MOST]
        named = str(value.get("__object__") or value.get("__callable__"))
        return f"{named}({', '.join(f'{n}={v}' for n, v in pairs)})" if pairs else named
    return repr(value)


def _field(value: object, name: str) -> object:
    """A field of a configuration, or of one inside it: `model.heads`."""
    for part in name.split("."):
        value = value["__config__"].get(part) if isinstance(value, dict) else None
    return value


def _listed(parts: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))
