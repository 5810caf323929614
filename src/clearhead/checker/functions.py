"""Attention written as a function: a class is written around it, which is then checked.

attention(q, k, v, mask=None)              no weights: it mixes what it is given
attention(x, Wq, Wk, Wv, Wo, n_heads)      the weights are arguments: the class holds them
"""

import ast
import re
from typing import NamedTuple

from clearhead.checker.adapters import ANGLES
from clearhead.checker.names import meaning_of
from clearhead.checker.roles import role_of

_NAMED = r"att|mha|mqa|gqa|multi_?head|sdpa"
_NO_ATTENTION = r"mask|test|plot|show|draw|visual|score|weights$|pattern|bench|main|train|load"
_WEIGHT = r"(?i)^w[_a-z]?|weight|_w$|kernel|_?proj|mat"
_BIAS = r"(?i)^b[_a-z]?$|^b_|bias"


class Wrapped(NamedTuple):
    """A function, and the class around it.

    Args:
        name: The function.
        cls: The class's name.
        text: The class's source, to stand after the file.
        line: The function's first line.
        end_line: Its last.
    """

    name: str
    cls: str
    text: str
    line: int
    end_line: int


def wrapped(source: str) -> list[Wrapped]:
    r"""A class for each function of a file that is attention and says what it takes.

    >>> made = wrapped("def attention(q, k, v):\n    return v")
    >>> [(one.name, one.cls) for one in made]
    [('attention', 'FunctionAttention0')]
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    nodes = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    likely = [n for n in nodes if re.search(_NAMED, n.name.lower()) and not n.name.startswith("_")]
    likely = [n for n in likely if not re.search(_NO_ATTENTION, n.name.lower())]
    made = [_class_for(node, f"FunctionAttention{i}") for i, node in enumerate(likely)]
    return [one for one in made if one is not None]


def _class_for(node: ast.FunctionDef, cls: str) -> Wrapped | None:
    arguments = [*node.args.posonlyargs, *node.args.args]
    defaults = dict(zip(reversed(arguments), reversed(node.args.defaults), strict=False))
    pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    defaults |= {argument: value for argument, value in pairs if value is not None}
    told, held, taken, passed = ["width"], list[str](), list[str](), list[str]()
    for argument in [*arguments, *node.args.kwonlyargs]:
        name, default = argument.arg, defaults.get(argument)
        value = _value(name, default, place=len(taken))
        if value is None:
            return None
        kind, code = value
        if kind == "told":
            told.append(name)
        elif kind == "held":
            held.append(f"        self.{name} = _torch.nn.Parameter(_torch.randn({code}))")
            code = f"self.{name}"
        elif kind == "taken":
            taken.append(name if default is None else f"{name}=None")
        if code:
            passed.append(code if argument in node.args.posonlyargs else f"{name}={code}")
    roles = {role_of(name) for name in taken}
    if not (held and taken) and not {"q", "k", "v"} <= roles:
        return None
    lines = [
        "import torch as _torch", "", "",
        f"class {cls}(_torch.nn.Module):",
        f"    def __init__(self, {', '.join(told)}):",
        "        super().__init__()",
        *(f"        self.{name} = {name}" for name in told[1:]),
        *held, "",
        f"    def forward(self, {', '.join(taken)}):",
        f"        return {node.name}({', '.join(passed)})", "",
    ]  # fmt: skip
    return Wrapped(node.name, cls, "\n".join(lines), node.lineno, node.end_lineno or node.lineno)


def _value(name: str, default: ast.expr | None, place: int) -> tuple[str, str] | None:
    """What is done with an argument, and the code that stands for it; None where it is unclear."""
    role, meaning, small = role_of(name), meaning_of(name), name.lower()
    plain = default.value if isinstance(default, ast.Constant) else default
    if meaning in ("heads", "causal") and (default is None or plain is not None):
        return "told", f"self.{name}"
    if place and role in ("q", "k", "v", "o", "qkv") and default is None:
        if re.search(_BIAS, name):
            return "held", "width"
        if re.search(_WEIGHT, name):
            return "held", "width, 3 * width" if role == "qkv" else "width, width"
    if meaning == "p" and isinstance(plain, float):
        return "fixed", "0.0"
    if small in ("training", "train", "is_training"):
        return "fixed", "False"
    if "mask" in small or small in ANGLES:
        return "taken", name
    if default is not None:
        return "left", ""
    return ("taken", name) if place == 0 or role in ("q", "k", "v") else None
