"""An adapter generated from a class's signature: how it is built, called, and what it returns.

As everywhere in the checker, names reveal what an argument is for. Where they do not, the line says
"change this".
"""

import ast
import re
from collections.abc import Sequence
from typing import NamedTuple

from clearhead.checker.harness.constructor_arguments import (
    likely_meaning,
    meaning_for,
    with_configs,
)
from clearhead.checker.harness.forward_arguments import feeds
from clearhead.checker.sandbox.answers import ClassInfo, Parameter
from clearhead.checker.source.call_sites import class_node, fields_read, method
from clearhead.checker.source.siblings import imported
from clearhead.checker.source.wrapped_functions import wrapper_of

_WIDTH = 88
_CHANGE = "  # change this: "
# What an adapter passes on for each meaning; its own arguments are on the right.
_VALUES = {
    "d_in": "d_in",
    "d_out": "d_out",
    "heads": "num_heads",
    "kv_heads": "num_heads",
    "kv_groups": "num_heads",
    "context": "context_length",
    "p": "dropout",
    "bias": "True",
    "batch_first": "True",
    "causal": "True",
    "vocab": "211",
    "rope": "False",
    "device": "None",
    "dtype": "None",
    "theta": "10000.0",
    "eps": "1e-5",
}
# Left as they are if there is a default.
_AS_THEY_ARE = {"bias", "kv_groups", "rope", "device", "dtype", "theta", "eps"}
# What an adapter passes on for an argument of forward that is not an input.
_PLAIN = {
    "zero": "0",
    "false": "False",
    "length": "x.shape[1]",
    "lengths": "x.new_full((x.shape[0],), x.shape[1]).long()",
}
_INPUT = "  # x: (batch, tokens, width)"
_OURS = ("d_in", "d_out", "context_length", "dropout", "num_heads")


class Skeleton(NamedTuple):
    """An adapter's source, and whether a person has to complete it."""

    text: str
    open: bool


class _Argument(NamedTuple):
    """One argument of a call: its name ("" if positional), its value, and what is unclear."""

    name: str
    value: str
    unclear: str = ""

    @property
    def code(self) -> str:
        return f"{self.name}={self.value}" if self.name else self.value


def adapter_for(info: ClassInfo, source: str) -> Skeleton:
    """An adapter for a class, with the arguments of its constructor and of its forward.

    Args:
        info: The class.
        source: The whole file.
    """
    info = with_configs(info, source, source)
    built = _constructor(info, source)
    taken, given = _call(info)
    used = [name for name in _OURS if any(re.search(rf"\b{name}\b", a.value) for a in built)]
    imports = ["from types import SimpleNamespace", ""] if "SimpleNamespace" in str(built) else []
    if info.is_module or any(name.partition(".")[0] == "torch" for name in imported(source)):
        owner, start = "nn.Module", f"self.inner = {info.name}"
        called = (
            "self.inner" if info.is_module or "__call__" in info.methods else ("self.inner.forward")
        )
        imports += ["from torch import nn", ""]
        begin = ["        super().__init__()"]
    else:  # numpy: the object's own arrays are its weights
        owner, start, begin = info.name, "super().__init__", []
        called = "super().__call__" if "__call__" in info.methods else "super().forward"
    lines = [f"    def __init__({', '.join(['self', *used])}):"]
    lines += [*begin, *_written(start, built, 8)]
    if owner == "nn.Module" and not info.is_module:  # its weights belong to no module yet
        lines += [
            "        parts = vars(self.inner).values()",
            "        self.parts = nn.ModuleList(p for p in parts if isinstance(p, nn.Module))",
        ]
    lines += ["", f"    def forward(self, {', '.join(taken)}):{_INPUT}"]
    lines += _written(f"out = {called}", given, 8)
    several = _returns_tuples(source, info)
    lines.append(f"        return out{'[0] if isinstance(out, tuple) else out' if several else ''}")
    return _skeleton(info.name, owner, imports, lines)


def adapter_for_function(node: ast.FunctionDef, source: str) -> Skeleton:
    """An adapter for a function: a class that holds its weights, if it takes any, and calls it.

    Args:
        node: The function.
        source: The whole file.
    """
    made = wrapper_of(node, source)
    if made is not None:
        owner = "(nn.Module)" if "nn.Module" in made.text else ""
        text = made.text.replace("_torch.nn.Module", "nn.Module").replace("_torch.", "torch.")
        lines = text[text.index("    def __init__") :].rstrip().split("\n")
        imports = ["import torch"] if "torch." in text else []
        imports += ["from torch import nn", ""] if owner else [""] if imports else []
        return _skeleton(node.name, owner.strip("()"), imports, lines)
    others = [*node.args.posonlyargs, *node.args.args][1:]
    given = [_Argument("", "x")]
    given += [_Argument(one.arg, "None", f"what is {one.arg}?") for one in others]
    lines = ["    def __init__(self, d_out):", "        super().__init__()"]
    lines += [f"        # The weights of {node.name} belong here.", ""]
    lines += [f"    def forward(self, x):{_INPUT}", *_written(f"return {node.name}", given, 8)]
    return _skeleton(node.name, "nn.Module", ["from torch import nn", ""], lines)


def _skeleton(name: str, owner: str, imports: Sequence[str], lines: Sequence[str]) -> Skeleton:
    """The whole file of an adapter."""
    head = [f'"""How clearhead check builds and calls {name}."""', "", *imports]
    head += ["", f"class Adapted({owner}):" if owner else "class Adapted:"]
    text = "\n".join([*head, *lines]) + "\n"
    return Skeleton(text, _CHANGE in text)


def _constructor(info: ClassInfo, source: str) -> list[_Argument]:
    meanings = {
        p.name: meaning_for(p) or ("" if p.has_default else likely_meaning(p.name))
        for p in info.init
    }
    present = set(meanings.values())
    found = []
    for parameter in info.init:
        meaning = meanings[parameter.name]
        left = not meaning or meaning in _AS_THEY_ARE
        a_mask = meaning == "causal" and parameter.default is None  # it may be the mask itself
        if parameter.kind.startswith("VAR") or (parameter.has_default and (left or a_mask)):
            continue
        name = "" if parameter.kind == "POSITIONAL_ONLY" else parameter.name
        if meaning == "config":
            found.append(_Argument(name, *_config(parameter, info, source)))
        elif meaning:
            found.append(_Argument(name, _value(meaning, present)))
        else:
            found.append(_Argument(name, *_guess(parameter)))
    return found


def _value(meaning: str, present: set[str]) -> str:
    """The code for a meaning, given the other meanings that the constructor takes."""
    single = "head_dim" in present and "heads" not in present
    if meaning == "d":
        return "d_in" if "d_out" in present or single else "d_out"
    if meaning == "head_dim":
        return "d_out" if single else "d_out // num_heads"
    return _VALUES[meaning]


def _guess(parameter: Parameter) -> tuple[str, str]:
    """A value for an argument whose name says nothing, and the question to resolve."""
    if re.search(r"layer|idx|index", parameter.name):
        return "0", ""
    kinds = {"bool": "False", "float": "0.0", "str": '""'}
    return kinds.get(parameter.annotation.lower(), "d_out"), f"what is {parameter.name}?"


def _config(parameter: Parameter, info: ClassInfo, source: str) -> tuple[str, str]:
    """A configuration with the fields that the file reads from it."""
    defaults = dict(info.fields)
    scope = class_node(source, info.name) or ast.Module([], [])
    names = sorted({*defaults, *fields_read(source, scope, parameter.name)})
    present = {likely_meaning(name) for name in names} | {"heads"}
    pairs, unknown = [], []
    for name in names:
        meaning, default = likely_meaning(name), defaults.get(name)
        known = meaning and meaning != "config"
        pairs.append((name, _value(meaning, present) if known else repr(default)))
        unknown += [] if known or default is not None else [name]
    items = [node.slice for node in ast.walk(scope) if isinstance(node, ast.Subscript)]
    quoted = any(isinstance(item, ast.Constant) and item.value in names for item in items)
    parts = [f'"{name}": {value}' if quoted else f"{name}={value}" for name, value in pairs]
    first, last = ("{", "}") if quoted else ("SimpleNamespace(", ")")
    made = f"{first}{', '.join(parts)}{last}"
    if len(made) > _WIDTH // 2:
        inside = "".join(f"{' ' * 16}{part},\n" for part in parts)
        made = f"{first}\n{inside}{' ' * 12}{last}"
    return made, f"what is {', '.join(unknown)}?" if unknown else ""


def _call(info: ClassInfo) -> tuple[list[str], list[_Argument]]:
    """The parameters of the adapter's forward, and what it passes to the class's own."""
    taken, given = ["x"], []
    roles = dict(feeds(info))
    positional = True
    for parameter in info.forward:
        role = roles.get(parameter.name)
        if parameter.kind.startswith("VAR") or role is None:
            positional = False
            continue
        name = "" if positional and parameter.kind != "KEYWORD_ONLY" else parameter.name
        if role in ("x", "q", "k", "v", "kv"):
            given.append(_Argument(name, "x"))
        elif role == "none":
            kept = re.search(r"cache|past|state", parameter.name.lower()) is not None
            unclear = "" if kept else f"what is {parameter.name}?"
            given.append(_Argument(name, "None", unclear))
        elif role in _PLAIN:
            given.append(_Argument(name, _PLAIN[role]))
        else:  # a mask or rotary angles: the checker tries the usual forms
            taken.append(f"{parameter.name}=None" if parameter.has_default else parameter.name)
            given.append(_Argument(name, parameter.name))
    required = [name for name in taken if not name.endswith("=None")]
    return [*required, *(name for name in taken if name.endswith("=None"))], given


def _returns_tuples(source: str, info: ClassInfo) -> bool:
    """Whether the class's forward returns several values, perhaps only sometimes."""
    own = method(class_node(source, info.name), "forward", "__call__") or ast.Module([], [])
    found = [n.value for n in ast.walk(own) if isinstance(n, ast.Return)]
    found += [e for v in found if isinstance(v, ast.IfExp) for e in (v.body, v.orelse)]
    return any(isinstance(value, ast.Tuple | ast.List) for value in found)


def _written(start: str, arguments: Sequence[_Argument], indent: int) -> list[str]:
    """A call on one line, or with one argument per line if it is too long or unclear."""
    space = " " * indent
    one = f"{space}{start}({', '.join(argument.code for argument in arguments)})"
    long = len(one) > _WIDTH or "\n" in one
    if not long and not any(argument.unclear for argument in arguments):
        return [one]
    lines = [f"{space}{start}("]
    for argument in arguments:
        note = f"{_CHANGE}{argument.unclear}" if argument.unclear else ""
        lines.append(f"{space}    {argument.code},{note}")
    return [*lines, f"{space})"]
