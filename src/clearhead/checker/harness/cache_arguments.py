"""What to pass to a class as a cache of past keys and values, as a model that decodes would."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from clearhead.checker.harness.case import Case
from clearhead.checker.harness.constructor_arguments import guessed, meaning_of
from clearhead.checker.harness.subject import Subject
from clearhead.checker.sandbox.submission import Parameter
from clearhead.checker.source.call_sites import class_node, method, parsed

ROOM = 64  # tokens that a cache can hold
LAYERS = 3  # greater than any layer index
_BATCH = r"(?i)b|bs|bsz|batch\w*|max_b\w*"
_COUNTED = rf"{_BATCH}|(n|num)_?layers?"


def caches(case: Case, subject: Subject, parameter: Parameter) -> Iterator[object]:
    """What to pass for the cache in the first call, likely ones first.

    An object stays in the submission's process between calls, since it changes there.
    """
    if parameter.has_default and parameter.default is None:
        yield None
    for made in _objects(case, subject, parameter):
        yield {"__kept__": made}
    yield {"__kept__": {}}
    yield {"__kept__": [None] * LAYERS}  # a slot for each layer to fill
    yield {"__kept__": []}
    yield {"__kept__": {"__object__": "KeysAndValues", "arguments": [], "keywords": {}}}
    sizes = subject.sizes
    for heads in dict.fromkeys((sizes.kv_heads, sizes.heads)):
        for axes in ((ROOM, heads), (heads, ROOM)):
            zeros = torch.zeros(sizes.batch, *axes, sizes.head_dim)
            yield {"__kept__": [zeros, zeros.clone()]}


@dataclass(frozen=True)
class Holder:
    """A class of the file whose objects an argument of forward may take.

    Args:
        node: The class.
        updated: Whether forward calls a method of it with values that it has computed.
    """

    node: ast.ClassDef
    updated: bool


def holders(case: Case, parameter: Parameter) -> Iterator[Holder]:
    """The file's own classes that have everything forward reads from an argument."""
    file = case.text.file
    scope = class_node(file, case.info.name)
    inside = () if scope is None else tuple(ast.walk(scope))
    reads = [
        node
        for node in inside
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == parameter.name
    ]
    calls = [node.func for node in inside if isinstance(node, ast.Call) and len(node.args) > 1]
    read = {node.attr for node in reads}
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.ClassDef) and node is not scope and read and read <= _names(node):
            yield Holder(node, any(one in calls for one in reads))


def is_own(first: object) -> bool:
    """Whether a cache is an object of one of the file's classes, with no size guessed."""
    made = first.get("__kept__") if isinstance(first, dict) else None
    if not isinstance(made, dict) or made.get("__object__") in (None, "KeysAndValues"):
        return False
    return all(meaning_of(n) or re.search(_COUNTED, n) for n in made["keywords"])


def _objects(case: Case, subject: Subject, parameter: Parameter) -> Iterator[dict[str, object]]:
    """Objects of the file's own classes that have what forward reads from the cache."""
    for holder in holders(case, parameter):
        for name, wanted in _makers(holder.node).items():
            for heads in dict.fromkeys((subject.sizes.kv_heads, subject.sizes.heads)):
                given = {n: _value(n, subject, heads) for n in wanted}
                yield {"__object__": name, "arguments": [], "keywords": given}


def _names(node: ast.ClassDef) -> set[str]:
    """The attributes and methods of a class."""
    inside = list(ast.walk(node))
    fields = {n.attr for n in inside if isinstance(n, ast.Attribute)}
    names = {n.id for n in inside if isinstance(n, ast.Name)}
    return fields | names | {n.name for n in inside if isinstance(n, ast.FunctionDef)}


def _makers(node: ast.ClassDef) -> dict[str, list[str]]:
    """The callables that create an object of a class, with their required arguments."""
    own = [n for n in node.body if isinstance(n, ast.FunctionDef)]
    found = {
        f"{node.name}.{one.name}": _required(one)
        for one in own
        if any(ast.unparse(d) in ("classmethod", "staticmethod") for d in one.decorator_list)
    }
    init = method(node, "__init__")
    if init is not None:
        return {node.name: _required(init), **found}
    fields = [n for n in node.body if isinstance(n, ast.AnnAssign) and n.value is None]
    return {**found, node.name: [ast.unparse(n.target) for n in fields]}


def _required(function: ast.FunctionDef) -> list[str]:
    """The arguments without a default, without `self` or `cls`."""
    arguments = function.args
    plain = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
    known = plain[: len(plain) - len(arguments.defaults)]
    static = any(ast.unparse(d) == "staticmethod" for d in function.decorator_list)
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [*known[0 if static else 1 :], *(one.arg for one, value in named if value is None)]


def _value(name: str, subject: Subject, heads: int) -> object:
    """A value for one argument of a callable that creates a cache."""
    known = {p.name: p.default for p in subject.info.init if p.default is not None}
    known |= subject.built.plain | subject.keywords
    if name in known:
        return known[name]
    meaning = meaning_of(name)
    if meaning == "config":
        given = (v for v in subject.keywords.values() if isinstance(v, dict))
        return next(given, None)
    if re.fullmatch(_BATCH, name):
        return subject.sizes.batch
    if meaning in ("heads", "kv_heads"):
        return heads
    if meaning == "context":
        return ROOM
    return guessed(name, subject.sizes)
