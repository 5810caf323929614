"""How a file uses a class: what it is built with, what it is called with, what its code expects.

Everything is read from the syntax tree; no code is run.
"""

import ast
import functools
import operator
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from clearhead.checker.sandbox.submission import ClassInfo, Parameter
from clearhead.checker.source.stated_arguments import stated_shapes

_WANTS = ast.In | ast.NotIn | ast.NotEq
_RANDOM = {"randn", "rand", "zeros", "ones", "empty", "randint", "Tensor", "FloatTensor"}
_SAME_RANK = {"bool", "float", "int", "long", "to", "type", "transpose", "permute", "contiguous"}
_EINOPS = {"rearrange", "reduce", "repeat", "einsum"}


@dataclass(frozen=True)
class Given:
    """One argument at a call site.

    Args:
        name: Its name at the call site, the last part of `self.cfg.n_head`; "" if it has none.
        value: Its value, if the file states it: a number, a flag, a string or None.
        known: Whether the file states the value.
        shape: The shape of a tensor that is created there: `torch.randn(2, 10, 64)`.
        calls: The class that is built for it: `Attend(FullAttention(), 64)`.
    """

    name: str = ""
    value: object = None
    known: bool = False
    shape: tuple[int, ...] = ()
    calls: str = ""


@dataclass(frozen=True)
class Usage:
    """How a file uses one class.

    Args:
        built: The constructor's arguments at each call site.
        called: Forward's arguments at each call site.
        unpacked: For parameters of forward, the names given to their axes: `b, n, d = x.shape`, or
            `x: (b, n, d)` in a docstring.
        ranks: For parameters of forward, how many axes the code expects.
        makers: Parameters of the constructor that the constructor calls: `norm_layer(dim)`.
        parts: Parameters of the constructor that forward calls: `self.attend(q, k, v)`.
        owners: The classes of the file that build it.
        items: How many items the constructor reads from a parameter: `window_size[1]`.
        called_names: Names that the file calls, derives from, decorates with or reads fields of.
        called_in: Parameters of forward that forward calls.
        flags: Names whose truth value the class tests.
        allowed: For names restricted to certain values, the first one: `mode in ("sum", "mean")`.
        listed: Parameters of forward that are a list of queries, keys and values.
    """

    built: tuple[dict[str, Given], ...] = ()
    called: tuple[dict[str, Given], ...] = ()
    unpacked: dict[str, tuple[str, ...]] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)
    makers: frozenset[str] = frozenset()
    parts: frozenset[str] = frozenset()
    owners: frozenset[str] = frozenset()
    items: dict[str, int] = field(default_factory=dict)
    called_names: frozenset[str] = frozenset()
    called_in: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    allowed: dict[str, object] = field(default_factory=dict)
    listed: frozenset[str] = frozenset()


@functools.lru_cache(maxsize=16)
def parsed(file: str) -> ast.Module:
    """The file's syntax tree; an empty one if it cannot be parsed."""
    try:
        with warnings.catch_warnings(action="ignore"):  # about syntax, such as invalid escapes
            return ast.parse(file)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module(body=[], type_ignores=[])


def class_node(file: str, name: str) -> ast.ClassDef | None:
    """The class of that name; the last one, as in Python."""
    return _classes(file).get(name)


@functools.lru_cache(maxsize=16)
def _classes(file: str) -> dict[str, ast.ClassDef]:
    return {n.name: n for n in ast.walk(parsed(file)) if isinstance(n, ast.ClassDef)}


def family_of(file: str, node: ast.ClassDef) -> list[ast.ClassDef]:
    """A class, and the classes of the file that it derives from."""
    found = [node]
    for one in found:  # grows during iteration
        bases = (class_node(file, last_name(base)) for base in one.bases)
        found += [base for base in bases if base is not None and base not in found]
    return found


def method(node: ast.ClassDef | None, *names: str) -> ast.FunctionDef | None:
    """The first of these methods that a class has."""
    own = {} if node is None else {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)}
    return next((own[name] for name in names if name in own), None)


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """The simple statements; for `if` and `while`, only the condition."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While):
            yield ast.copy_location(ast.Expr(node.test), node.test)
        elif isinstance(node, ast.stmt) and not hasattr(node, "body"):
            yield node


def usage_of(file: str, info: ClassInfo) -> Usage:
    """How a file uses a class."""
    node = class_node(file, info.name)
    init, forward = method(node, "__init__"), method(node, "forward", "__call__")
    built, called, owners = [], [], set()
    for scope, owner in _scopes(parsed(file)):
        if owner == info.name:
            continue
        values = assigned(scope)
        holders = set()
        for target, call in _calls(scope):
            name = last_name(call.func)
            if isinstance(call.func, ast.Name) and name == info.name:
                built.append(_arguments(call, info.init, values))
                holders |= target
                owners |= {owner} if owner else set()
            elif name in holders or (isinstance(call.func, ast.Call) and
                                     last_name(call.func.func) == info.name):  # fmt: skip
                called.append(_arguments(call, info.forward, values))
    unpacked, ranks = _axes(forward)
    for argument, axes in stated_shapes(file, forward).items():
        unpacked.setdefault(argument, axes)
        ranks.setdefault(argument, len(axes))
    return Usage(
        tuple(built), tuple(called), unpacked, ranks, _called_in(init, info.init),
        _kept_and_called(init, node, info.init), frozenset(owners),
        _items(node, init, info.init), _called_names(parsed(file)),
        _called_in(forward, info.forward), flags_tested(node or ast.Module([], [])),
        {**allowed_values(node, equal=True), **allowed_values(node)}, _listed(forward),
    )  # fmt: skip


def _listed(forward: ast.FunctionDef | None) -> frozenset[str]:
    """Parameters that forward only unpacks into three: `q, k, v = x`, or x[0], x[1], x[2]."""
    if forward is None:
        return frozenset()
    whole: dict[int, int] = {}  # the number of parts that a name is unpacked into
    for node in ast.walk(forward):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            whole[id(node.value)] = len(node.targets[0].elts)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            whole[id(node.value)] = 3 if node.slice.value in (0, 1, 2) else 0
    used = [n for n in ast.walk(forward) if isinstance(n, ast.Name) and n.id != "self"]
    names = {one.arg for one in forward.args.args} & {one.id for one in used}
    others = {one.id for one in used if whole.get(id(one)) != 3}
    said = ast.unparse(forward)
    thirds = {name for name in names - others if f"{name}[2]" in said or f" = {name}\n" in said}
    return frozenset(thirds)


def _scopes(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """The file's classes, functions and top level, each with its class's name, if any."""
    top: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node, node.name
        elif isinstance(node, ast.FunctionDef):
            yield node, ""
        else:
            top.append(node)
    yield ast.Module(body=top, type_ignores=[]), ""


def _calls(scope: ast.AST) -> Iterator[tuple[set[str], ast.Call]]:
    """The calls of a scope in order, with the names that their result is assigned to."""
    targets: dict[int, set[str]] = {}
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            names = node.targets if isinstance(node, ast.Assign) else [node.target]
            inside = [node.value] if node.value is not None else []
            for call in (n for value in inside for n in ast.walk(value)):
                targets.setdefault(id(call), set()).update(filter(None, map(last_name, names)))
    calls = [node for node in ast.walk(scope) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        yield targets.get(id(call), set()), call


def last_name(node: ast.AST) -> str:
    """The last part of a name: `self.cfg.n_head` and `cfg["n_head"]` are n_head."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        inner = node.slice
        text = inner.value if isinstance(inner, ast.Constant) else None
        return text if isinstance(text, str) else last_name(node.value)
    return ""


def assigned(scope: ast.AST) -> dict[str, ast.expr]:
    """The values assigned to plain names in a scope."""
    return {one.id: value for one, value in assignments(scope) if isinstance(one, ast.Name)}


def _arguments(
    call: ast.Call, parameters: Sequence[Parameter], values: dict[str, ast.expr]
) -> dict[str, Given]:
    plain = [p.name for p in parameters if not p.kind.startswith(("VAR", "KEYWORD"))]
    if any(isinstance(one, ast.Starred) for one in call.args):
        return {}
    found = dict(zip(plain, call.args, strict=False))
    found |= {one.arg: one.value for one in call.keywords if one.arg is not None}
    return {name: _given(value, values) for name, value in found.items()}


def _given(node: ast.expr, values: dict[str, ast.expr]) -> Given:
    name = last_name(node)
    behind = values.get(name, node) if isinstance(node, ast.Name) else node
    if isinstance(behind, ast.Call):
        function = last_name(behind.func)
        if function in _RANDOM:
            shape = tuple(_number(one, values) for one in _sizes(behind))
            return Given(name, shape=shape if all(shape) else ())
        return Given(name or function, calls=function)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv | ast.Div):
        return Given("head_dim" if "head" in ast.unparse(node.right) else "")
    try:
        return Given(name, ast.literal_eval(behind), known=True)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return Given(name)


def _sizes(call: ast.Call) -> list[ast.expr]:
    (first, *_) = [*call.args, None]
    sizes = first.elts if isinstance(first, ast.Tuple | ast.List) else call.args
    return [one for one in sizes if not isinstance(one, ast.Starred)]


def _number(node: ast.expr, values: dict[str, ast.expr]) -> int:
    """The integer that an expression stands for; 0 if unknown."""
    behind = values.get(node.id, node) if isinstance(node, ast.Name) else node
    value = behind.value if isinstance(behind, ast.Constant) else 0
    return value if type(value) is int else 0


def _axes(forward: ast.FunctionDef | None) -> tuple[dict[str, tuple[str, ...]], dict[str, int]]:
    """What forward's own code says about the axes of its parameters."""
    unpacked: dict[str, tuple[str, ...]] = {}
    ranks: dict[str, int] = {}
    if forward is None:
        return unpacked, ranks
    names = {one.arg for one in forward.args.args}
    for node in ast.walk(forward):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            targets = node.targets[0].elts
            owner, after = _shape_of(node.value), 0
            if isinstance(node.value, ast.Tuple) and isinstance(node.value.elts[0], ast.Starred):
                after = len(node.value.elts) - 1  # b, n, _, h = *x.shape, self.heads
                owner = _shape_of(node.value.elts[0].value)
                targets = targets[: len(targets) - after]
            starred = any(isinstance(one, ast.Starred) for one in targets)
            if owner in names and not starred and owner not in unpacked:
                unpacked[owner] = tuple(ast.unparse(one).strip("_").lower() for one in targets)
                ranks.setdefault(owner, len(targets))
        elif isinstance(node, ast.Call) and last_name(node.func) in _EINOPS and len(node.args) > 1:
            one, pattern = node.args[0], node.args[1]
            text = pattern.value if isinstance(pattern, ast.Constant) else ""
            if last_name(one) in names and isinstance(text, str) and "->" in text:
                axes = text.partition("->")[0].replace("(", " ( ").replace(")", " ) ").split()
                if "..." not in axes and "(" not in axes and last_name(one) not in unpacked:
                    unpacked[last_name(one)] = tuple(axis.lower() for axis in axes)
                    ranks.setdefault(last_name(one), len(axes))
        elif isinstance(node, ast.Call) and last_name(node.func) == "bmm":
            ranks = dict.fromkeys(names & {*map(_of_same_rank, node.args)}, 3) | ranks
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
            owner, places = _of_same_rank(node.value), node.slice.elts
            added = [isinstance(one, ast.Constant) and one.value is None for one in places]
            whole = [isinstance(one, ast.Slice) for one in places]
            if owner in names and any(added) and all(map(operator.or_, added, whole)):
                ranks.setdefault(owner, sum(whole))
    return unpacked, ranks


def _of_same_rank(node: ast.expr) -> str:
    """The name of the tensor behind an expression, in any dtype or axis order: `mask.bool()`."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr not in _SAME_RANK:
            return ""
        node = node.func.value
    return node.id if isinstance(node, ast.Name) else ""


def _shape_of(node: ast.expr) -> str:
    """The name whose shape an expression reads: `x.shape`, `x.size()`."""
    if isinstance(node, ast.Call) and not node.args:
        node = node.func
    known = isinstance(node, ast.Attribute) and node.attr in ("shape", "size")
    return last_name(node.value) if known and isinstance(node, ast.Attribute) else ""


def _called_in(init: ast.FunctionDef | None, parameters: Sequence[Parameter]) -> frozenset[str]:
    names = {p.name for p in parameters}
    nodes = () if init is None else ast.walk(init)
    calls = [n.func for n in nodes if isinstance(n, ast.Call)]
    return frozenset(f.id for f in calls if isinstance(f, ast.Name) and f.id in names)


def _kept_and_called(
    init: ast.FunctionDef | None, node: ast.ClassDef | None, parameters: Sequence[Parameter]
) -> frozenset[str]:
    """Parameters that the constructor stores and other methods call."""
    if init is None or node is None:
        return frozenset()
    names = {p.name for p in parameters}
    kept = {
        last_name(target): value.id
        for target, value in assignments(init)
        if isinstance(value, ast.Name) and isinstance(target, ast.Attribute) and value.id in names
    }
    others = [n for n in node.body if isinstance(n, ast.FunctionDef) and n is not init]
    calls = {ast.unparse(n.func) for one in others for n in ast.walk(one)
             if isinstance(n, ast.Call)}  # fmt: skip
    return frozenset(name for attribute, name in kept.items() if f"self.{attribute}" in calls)


def _called_names(tree: ast.Module) -> frozenset[str]:
    """The plain names that a file calls, derives from, decorates with or reads fields of."""
    found: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found.append(node.func)
        elif isinstance(node, ast.Attribute):
            found.append(node.value)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            found += [*node.decorator_list, *(node.bases if isinstance(node, ast.ClassDef) else ())]
    return frozenset(node.id for node in found if isinstance(node, ast.Name))


def _items(
    node: ast.ClassDef | None, init: ast.FunctionDef | None, parameters: Sequence[Parameter]
) -> dict[str, int]:
    """For parameters that are read item by item, the least number of items they have."""
    if node is None or init is None:
        return {}
    names = {p.name for p in parameters}
    same = {f"self.{last_name(target)}": value.id for target, value in assignments(init)
            if isinstance(value, ast.Name) and value.id in names}  # fmt: skip
    found: dict[str, int] = {}
    for one in ast.walk(node):
        if isinstance(one, ast.Subscript) and isinstance(one.slice, ast.Constant):
            owner, place = _whole(one.value), one.slice.value
            most = place + 1 if type(place) is int and place >= 0 else 0
        elif isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Tuple):
            owner, most = _whole(one.value), len(one.targets[0].elts)
        else:
            continue
        name = same.get(owner, owner)
        if name in names and most:
            found[name] = max(found.get(name, 0), most)
    return found


def allowed_values(scope: ast.AST | None, *, equal: bool = False) -> dict[str, object]:
    r"""For names that a scope compares with constants, the first constant that it may accept.

    With `equal`, for comparisons such as `mode == "sum"` instead: with a string, or of an axis.

    Examples:
        >>> code = "assert mode in ('sum', 'mean')\nif self.dims not in (2, 3): stop()"
        >>> allowed_values(ast.parse(code))
        {'mode': 'sum', 'dims': 2}
    """
    found: dict[str, object] = {}
    for node in ast.walk(scope) if scope is not None else ():
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq if equal else _WANTS):
            wanted = node.comparators[0]
            several = isinstance(wanted, ast.Tuple | ast.List | ast.Set) and bool(wanted.elts)
            first = wanted.elts[0] if several else wanted  # type: ignore[attr-defined]
            name, value = last_name(node.left), getattr(first, "value", None)
            told = not equal or name in ("axis", "dim") or isinstance(value, str)
            if isinstance(first, ast.Constant) and name and told:
                found.setdefault(name, value)
    return found


Tree = dict[str, "Tree"]


def fields_read(file: str, scope: ast.AST, name: str, depth: int = 3) -> Tree:
    r"""The fields read from a name, and from those fields in turn; methods do not count.

    Aliases count, and so do classes of the file that the object is passed on to.

    Args:
        file: The whole file.
        scope: Where to look: a class or a function.
        name: The name.
        depth: How often it may be passed on.

    Examples:
        >>> code = "c = self.cfg = config\nself.cfg.model.width, c.depth, d.height"
        >>> fields_read(code, ast.parse(code), "config")
        {'model': {'width': {}}, 'depth': {}}
    """
    known: dict[str, tuple[str, ...]] = {name: ()}
    for _ in range(3):  # aliases
        for target, value in assignments(scope):
            path = _path(value, known)
            if path is not None and _whole(target):
                known.setdefault(_whole(target), path)
    tree: Tree = {}
    called = {id(node.func) for node in ast.walk(scope) if isinstance(node, ast.Call)}
    for node in ast.walk(scope):
        path = _path(node, known)
        if path is not None:
            _grown(tree, path[:-1] if id(node) in called else path)
        if isinstance(node, ast.Call) and depth:
            for inner, parameter, value in _passed_on(file, node):
                path = _path(value, known)
                if path is not None and inner is not scope:
                    _merge(_grown(tree, path), fields_read(file, inner, parameter, depth - 1))
    return tree


def flags_tested(scope: ast.AST) -> frozenset[str]:
    r"""The names whose truth value is tested, under this name or an alias.

    Examples:
        >>> code = "self.deep = cfg.by_depth\nif self.deep and not cfg.flat and n > 2: stop()"
        >>> sorted(flags_tested(ast.parse(code)))
        ['by_depth', 'deep', 'flat']
    """
    tests = [node.test for node in ast.walk(scope) if isinstance(node, ast.If | ast.IfExp)]
    for test in tests:  # grows during iteration
        inner = test.values if isinstance(test, ast.BoolOp) else []
        tests += [test.operand] if isinstance(test, ast.UnaryOp) else inner
    tested = {*map(last_name, tests)}
    tested |= {last_name(v) for target, v in assignments(scope) if last_name(target) in tested}
    return frozenset(tested) - {""}


def assignments(scope: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The targets of a scope's assignments, one by one, each with its value."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                both = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                if both and isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    yield from zip(target.elts, node.value.elts, strict=False)
                else:
                    yield target, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield node.target, node.value


def _path(node: ast.AST, known: dict[str, tuple[str, ...]]) -> tuple[str, ...] | None:
    """The fields that lead from a known name to an expression; None if there is no such path."""
    if _whole(node) in known:
        return known[_whole(node)]
    name: object = None
    if isinstance(node, ast.Attribute):
        name = node.attr
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        name = node.slice.value
    if not isinstance(node, ast.Attribute | ast.Subscript) or not isinstance(name, str):
        return None
    above = _path(node.value, known)
    return None if above is None else (*above, name)


def _passed_on(file: str, call: ast.Call) -> Iterator[tuple[ast.ClassDef, str, ast.expr]]:
    """For a call that builds a class of the file: the class and parameter of each argument."""
    node = class_node(file, call.func.id) if isinstance(call.func, ast.Name) else None
    init = method(node, "__init__")
    if node is None or init is None:
        return
    names = [one.arg for one in init.args.args[1:]]
    pairs = [*zip(names, call.args, strict=False)]
    pairs += [(one.arg, one.value) for one in call.keywords if one.arg]
    yield from ((node, parameter, value) for parameter, value in pairs)


def _grown(tree: Tree, path: Sequence[str]) -> Tree:
    """The part of a tree below a path, created if it is missing."""
    for name in path:
        tree = tree.setdefault(name, {})
    return tree


def _merge(tree: Tree, more: Tree) -> None:
    for name, below in more.items():
        _merge(tree.setdefault(name, {}), below)


def _whole(node: ast.AST) -> str:
    """A name, or `self.name`; "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    own = isinstance(node, ast.Attribute) and _whole(node.value) == "self"
    return f"self.{node.attr}" if own and isinstance(node, ast.Attribute) else ""
