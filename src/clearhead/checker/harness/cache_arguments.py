"""What a class may be given to keep past keys and values in, as a model that decodes would."""

import ast
import re
from collections.abc import Iterator

import torch

from clearhead.checker.harness.case import Case
from clearhead.checker.harness.constructor_arguments import guessed, meaning_of
from clearhead.checker.harness.subject import Subject
from clearhead.checker.sandbox.submission import Parameter
from clearhead.checker.source.call_sites import class_node, method, parsed

ROOM = 64  # tokens that a cache can hold
LAYERS = 3  # more than the number of any layer


def caches(case: Case, subject: Subject, parameter: Parameter) -> Iterator[object]:
    """What an argument for the cache may be in the first call, likely ones first.

    An object is kept in the submission's process between calls, since it changes there.
    """
    if parameter.has_default and parameter.default is None:
        yield None
    for made in _objects(case, subject, parameter):
        yield {"__kept__": made}
    yield {"__kept__": {}}
    yield {"__kept__": [None] * LAYERS}  # a place for each layer, which puts its own there
    yield {"__kept__": []}
    yield {"__kept__": {"__object__": "KeysAndValues", "arguments": [], "keywords": {}}}
    sizes = subject.sizes
    for heads in dict.fromkeys((sizes.kv_heads, sizes.heads)):
        for axes in ((ROOM, heads), (heads, ROOM)):
            zeros = torch.zeros(sizes.batch, *axes, sizes.head_dim)
            yield {"__kept__": [zeros, zeros.clone()]}


def _objects(case: Case, subject: Subject, parameter: Parameter) -> Iterator[dict[str, object]]:
    """Objects of the file's own classes that have what forward reads from the cache."""
    file = case.text.file
    scope = class_node(file, case.info.name)
    read = {
        node.attr
        for node in (() if scope is None else ast.walk(scope))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == parameter.name
    }
    for node in ast.walk(parsed(file)):
        if not isinstance(node, ast.ClassDef) or node is scope or not read or read - _names(node):
            continue
        for name, wanted in _makers(node).items():
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
    """What makes an object of a class, with the arguments that it must be given."""
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
    """The arguments without a default; the first one is the object or the class."""
    arguments = function.args
    plain = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
    known = plain[: len(plain) - len(arguments.defaults)]
    static = any(ast.unparse(d) == "staticmethod" for d in function.decorator_list)
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [*known[0 if static else 1 :], *(one.arg for one, value in named if value is None)]


def _value(name: str, subject: Subject, heads: int) -> object:
    """A value for one argument of what makes a cache."""
    known = {p.name: p.default for p in subject.info.init if p.default is not None}
    known |= subject.built.plain | subject.keywords
    if name in known:
        return known[name]
    meaning = meaning_of(name)
    if meaning == "config":
        given = (v for v in subject.keywords.values() if isinstance(v, dict))
        return next(given, None)
    if re.fullmatch(r"(?i)b|bs|bsz|batch\w*|max_b\w*", name):
        return subject.sizes.batch
    if meaning in ("heads", "kv_heads"):
        return heads
    if meaning == "context":
        return ROOM
    return guessed(name, subject.sizes)
