"""Attention written as a function: a wrapper class is generated for it, which is then checked.

attention(q, k, v, mask=None)              no weights: it uses its arguments as they are
attention(x, Wq, Wk, Wv, Wo, n_heads)      the weights are arguments: the class holds them
attention(x, weights, n_heads)             likewise, where weights["Wq"] is read
"""

import ast
import re
from typing import NamedTuple

from clearhead.checker.harness.constructor_arguments import meaning_of
from clearhead.checker.harness.forward_arguments import ANGLES
from clearhead.checker.harness.weight_roles import role_of
from clearhead.checker.source.call_sites import last_name, parsed
from clearhead.checker.source.siblings import imported

_NAMED = r"att|mha|mqa|gqa|multi_?head|sdpa|aten[cç]|aufmerk"
_NO_ATTENTION = r"mask|test|plot|show|draw|visual|score|weights$|pattern|bench|main|train|load"
_WEIGHT = r"(?i)^w[_a-z]?|weight|_w$|kernel|_?proj|mat"
_BIAS = r"(?i)^b[_a-z]?$|^b_|bias|^b(q|k|v|o|qkv)$"


WRAPPER = "FunctionAttention"  # the prefix of the classes' names


class Wrapped(NamedTuple):
    """A function and its wrapper class.

    Args:
        name: The function's name.
        cls: The class's name.
        text: The class's source, to be appended to the file.
        line: The function's first line.
        end_line: The function's last line.
    """

    name: str
    cls: str
    text: str
    line: int
    end_line: int


def wrapped(source: str, *, named: bool = True, only: str = "") -> list[Wrapped]:
    r"""A class for each function of a file that is attention and whose arguments are clear.

    Args:
        source: The file.
        named: Whether its name must say that it is attention; if not, it must take queries, keys
            and values, or their weights, and compute a softmax.
        only: The only function to take, whatever its name says.

    Examples:
        >>> made = wrapped("def attention(q, k, v):\n    return v")
        >>> [(one.name, one.cls) for one in made]
        [('attention', 'FunctionAttention0')]
    """
    likely = likely_functions(source, named=named, only=only)
    made = [wrapper_of(node, source, f"{WRAPPER}{i}") for i, node in enumerate(likely)]
    return [one for one in made if one is not None]


def likely_functions(
    source: str, *, named: bool = True, only: str | None = None
) -> list[ast.FunctionDef]:
    """The functions of a file that seem to be attention; see `wrapped`."""
    nodes = [node for node in parsed(source).body if isinstance(node, ast.FunctionDef)]
    if only:
        return [node for node in nodes if node.name == only][-1:]
    likely = [n for n in nodes if not re.match(r"_|test", n.name)]
    if named:
        likely = [n for n in likely if re.search(_NAMED, n.name.lower())]
        return [n for n in likely if not re.search(_NO_ATTENTION, n.name.lower())]
    return [n for n in likely if _computes_softmax(n, nodes)]


def wrapper_of(node: ast.FunctionDef, source: str, cls: str = WRAPPER) -> Wrapped | None:
    """A class around one function of a file; None if its arguments are unclear."""
    imports = {name.partition(".")[0] for name in imported(source)}
    return _class_for(node, cls, "torch" not in imports and "numpy" in imports)


def _computes_softmax(node: ast.FunctionDef, nodes: list[ast.FunctionDef]) -> bool:
    """Whether a function computes a softmax, itself or in a function of the file that it calls."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    bodies = [node, *(other for other in nodes if other.name in names)]
    calls = [n for body in bodies for n in ast.walk(body) if isinstance(n, ast.Call)]
    return any(last_name(n.func) == "exp" or "softmax" in last_name(n.func) for n in calls)


def _class_for(node: ast.FunctionDef, cls: str, arrays: bool) -> Wrapped | None:
    arguments = [*node.args.posonlyargs, *node.args.args]
    defaults = dict(zip(reversed(arguments), reversed(node.args.defaults), strict=False))
    pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    defaults |= {argument: value for argument, value in pairs if value is not None}
    told, held, taken, passed = ["width"], dict[str, str](), list[str](), list[str]()
    for argument in [*arguments, *node.args.kwonlyargs]:
        name, default = argument.arg, defaults.get(argument)
        several = _weights_in(node, name) if taken and default is None else None
        value = ("several", "") if several else _value(name, default, place=len(taken))
        if value is None:
            return None
        kind, code = value
        if kind == "told":
            told.append(name)
        elif several is not None:
            held |= {f"{name}_{part}": shape for part, shape in several.items()}
            code = f"{{{', '.join(f'{part!r}: self.{name}_{part}' for part in several)}}}"
        elif kind == "held":
            held[name] = code
            code = f"self.{name}"
        elif kind == "taken":
            taken.append(name if default is None else f"{name}=None")
        if code:
            passed.append(code if argument in node.args.posonlyargs else f"{name}={code}")
    roles = {role_of(name) for name in taken}
    whole = {"q", "k", "v"} <= roles
    if not (whole or (held and taken)) or (whole and not role_of(taken[0])):
        return None  # the first argument is not one of queries, keys and values, so no input
    owner = "" if arrays else "(_torch.nn.Module)"
    made = "_torch.nn.Parameter(_torch.randn({}))" if owner else "_torch.randn({}).numpy()"
    lines = [
        *(["import torch as _torch"] if owner or held else []), "", "",
        f"class {cls}{owner}:",
        f"    def __init__(self, {', '.join(told)}):",
        "        super().__init__()",
        *(f"        self.{name} = {name}" for name in told[1:]),
        *(f"        self.{name} = {made.format(shape)}" for name, shape in held.items()), "",
        f"    def forward(self, {', '.join(taken)}):",
        f"        return {node.name}({', '.join(passed)})", "",
    ]  # fmt: skip
    return Wrapped(node.name, cls, "\n".join(lines), node.lineno, node.end_lineno or node.lineno)


def _weights_in(node: ast.FunctionDef, name: str) -> dict[str, str] | None:
    """Weights that a function reads from one argument, `weights["Wq"]`, with shapes as code."""
    items = [
        str(one.slice.value)
        for one in ast.walk(node)
        if isinstance(one, ast.Subscript) and isinstance(one.slice, ast.Constant)
        if isinstance(one.value, ast.Name) and one.value.id == name
    ]
    shapes = {item: _shape(item) for item in items}
    whole = all(shapes.values()) and {"q", "k", "v"} <= set(map(role_of, shapes))
    return shapes if whole else None


def _shape(name: str) -> str:
    """The shape of a weight as code, judging by its name; "" if the name says nothing."""
    role = role_of(name) or role_of(re.sub(r"(?i)^b(ias)?_?", "", name))
    if role not in ("q", "k", "v", "o", "qkv"):
        return ""
    if re.search(_BIAS, name):
        return "3 * width" if role == "qkv" else "width"
    if re.search(_WEIGHT, name) or len(name) == 1:
        return "width, 3 * width" if role == "qkv" else "width, width"
    return ""


def _value(name: str, default: ast.expr | None, place: int) -> tuple[str, str] | None:
    """How an argument is handled, and the code to pass for it; None if that is unclear."""
    role, meaning, small = role_of(name), meaning_of(name), name.lower()
    plain = default.value if isinstance(default, ast.Constant) else default
    if meaning in ("heads", "causal") and (default is None or plain is not None):
        return "told", f"self.{name}"
    if place and default is None and len(name) > 1 and _shape(name):
        return "held", _shape(name)
    if meaning == "p" and isinstance(plain, float):
        return "fixed", "0.0"
    if small in ("training", "train", "is_training"):
        return "fixed", "False"
    if "mask" in small or small in ANGLES:
        return "taken", name
    if default is not None:
        return "left", ""
    return ("taken", name) if place == 0 or role in ("q", "k", "v") else None
