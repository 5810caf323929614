"""Where the arguments of forward go: which lines use them, and which layer receives them first.

Everything is read from the syntax tree; no code is run.
"""

import ast
import functools
import math
import re
from collections.abc import Sequence

from clearhead.checker.sandbox.answers import Failure
from clearhead.checker.source.call_sites import class_node, family_of, method, statements


def frames(failure: Failure) -> list[int]:
    """The lines of the submission's own frames, from the outermost to the one that failed."""
    found = [int(n) for n in re.findall(r"line (\d+), in ", failure.traceback)]
    return found or ([failure.line] if failure.line is not None else [])


def used_at(file: str, cls: str, lines: Sequence[int]) -> frozenset[str]:
    r"""The parameters of forward that flow into what any of these lines computes.

    Examples:
        >>> code = "class A:\n  def forward(self, x, z):\n    y = z + 1\n    w = x\n    return f(y)"
        >>> used_at(code, "A", [5])
        frozenset({'z'})
    """
    return _used_at(file, cls, tuple(lines))


@functools.lru_cache(maxsize=64)
def _used_at(file: str, cls: str, lines: tuple[int, ...]) -> frozenset[str]:
    forward = method(class_node(file, cls), "forward", "__call__")
    if forward is None:
        return frozenset()
    found: set[str] = set()
    for statement in statements(forward):
        if any(statement.lineno <= n <= (statement.end_lineno or 0) for n in lines):
            reach = _reach(forward, statement.lineno)
            found |= {origin for name in _loaded(statement) for origin in reach.get(name, ())}
    return frozenset(found)


def is_read(file: str, cls: str, parameter: str) -> bool:
    r"""Whether forward, possibly inherited from another class of the file, reads a parameter.

    Examples:
        >>> code = "class A:\n  def forward(self, x, z=None):\n    return x\nclass B(A):\n  pass"
        >>> is_read(code, "B", "x"), is_read(code, "B", "z")
        (True, False)
    """
    node = class_node(file, cls)
    family = [] if node is None else family_of(file, node)
    found = (method(one, "forward", "__call__") for one in family)
    forward = next((one for one in found if one is not None), None)
    return forward is None or any(parameter in _loaded(one) for one in forward.body)


def progress_of(file: str, cls: str, failure: Failure) -> tuple[int, int]:
    """How far forward got before it failed: its own line, then the line of the error."""
    forward = method(class_node(file, cls), "forward", "__call__")
    lines = frames(failure)
    own = [n for n in lines if forward and forward.lineno <= n <= (forward.end_lineno or 0)]
    return (own[-1] if own else 0), (failure.line or 0)


def layer_of(file: str, cls: str, parameter: str) -> list[str]:
    r"""The layers that receive a parameter of forward, or a value computed from it, in order.

    Examples:
        >>> code = "class A:\n  def forward(self, x, z):\n    return self.q(x) + self.p(self.n(z))"
        >>> layer_of(code, "A", "z")
        ['n', 'p']
    """
    forward = method(class_node(file, cls), "forward", "__call__")
    if forward is None:
        return []
    reach = _reach(forward)
    calls = [node for node in ast.walk(forward) if isinstance(node, ast.Call) and node.args]
    found = []
    for call in sorted(calls, key=lambda node: (node.lineno, -node.col_offset)):
        first = {origin for name in _loaded(call.args[0]) for origin in reach.get(name, ())}
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if isinstance(owner, ast.Name) and owner.id == "self" and first == {parameter}:
            found.append(ast.unparse(call.func).removeprefix("self."))
    return found


def _loaded(node: ast.AST) -> set[str]:
    names = (n for n in ast.walk(node) if isinstance(n, ast.Name))
    return {n.id for n in names if isinstance(n.ctx, ast.Load)}


def _reach(forward: ast.FunctionDef, until: float = math.inf) -> dict[str, set[str]]:
    """For each name in forward, the parameters that it was computed from before a line."""
    given = (*forward.args.posonlyargs, *forward.args.args, *forward.args.kwonlyargs)
    reach = {one.arg: {one.arg} for one in given if one.arg != "self"}
    for node in sorted(statements(forward), key=lambda one: one.lineno):
        if not isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) or node.value is None:
            continue
        if node.lineno >= until:
            break
        origins = {origin for name in _loaded(node.value) for origin in reach.get(name, ())}
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for name in (n.id for n in ast.walk(target) if isinstance(n, ast.Name)):
                if name not in {one.arg for one in given}:
                    reach[name] = reach.get(name, set()) | origins
    return reach
