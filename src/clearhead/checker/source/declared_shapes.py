"""The shapes that a file states for forward's arguments: in annotations, docstrings, comments."""

import ast
import re

_AXIS = r"[\w.]+(?:\s*[-+*/]+\s*[\w.]+)*"
_SHAPE = re.compile(rf"[(\[]\s*({_AXIS}(?:\s*(?:,|\bx\b|×)\s*{_AXIS})+)\s*,?\s*[)\]]")
_NO_AXIS = re.compile(
    r"(?i)tensor|optional|default|none|int|float|bool|str|list|tuple|dict|callable|torch\.|true|false"
)


def declared_shapes(file: str, forward: ast.FunctionDef | None) -> dict[str, tuple[str, ...]]:
    r"""For arguments of forward, the names that the file gives to their axes.

    Args:
        file: The whole file.
        forward: The method.

    Examples:
        >>> code = "def forward(self, x, z):\n    '''x: features (B, N, C)\n    z: [b, 1, n]'''"
        >>> declared_shapes(code, ast.parse(code).body[0])
        {'x': ('b', 'n', 'c'), 'z': ('b', '1', 'n')}
    """
    if forward is None:
        return {}
    arguments = [*forward.args.posonlyargs, *forward.args.args, *forward.args.kwonlyargs]
    found: dict[str, tuple[str, ...]] = {}
    text = file.splitlines()[forward.lineno - 1 : forward.body[0].end_lineno]
    names = {one.arg for one in arguments}
    for one in arguments:
        axes = _annotated(one.annotation) or _told(text, one.arg, names)
        if axes:
            found[one.arg] = axes
    return found


def _annotated(node: ast.expr | None) -> tuple[str, ...]:
    """The axes of `Float[Tensor, "b n d"]` and `TensorType["b", "n", "d"]`."""
    if not isinstance(node, ast.Subscript):
        return ()
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    texts = [p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str)]
    axes = " ".join(texts).lower().split()
    plain = len(axes) > 1 and all(re.fullmatch(r"\w+", axis) for axis in axes)
    return tuple(axes) if plain else ()


def _told(lines: list[str], name: str, others: set[str]) -> tuple[str, ...]:
    """The first shape that comments or docstrings give after a name, there or in the next line."""
    start = re.compile(rf"(?:^\W*(?:param\s+)?|[,;.]\s+){re.escape(name)}\b(?!\s*=[^#]*$)(.*)")
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        begins = start.search(line)
        if begins is None:
            continue
        goes_on = not {*re.findall(r"\w+", below)[:1]} & others
        for shape in _SHAPE.findall(begins[1] + (f" {below}" if goes_on else "")):
            axes = [re.sub(r"\s", "", axis).lower() for axis in re.split(r",|\bx\b|×", shape)]
            if not any(_NO_AXIS.search(axis) for axis in axes):
                return tuple(axes)
    return ()
