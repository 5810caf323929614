"""What a file states about forward's arguments: their shapes, and what True means in a mask."""

import ast
import re

_AXIS = r"[\w.]+(?:\s*[-+*/]+\s*[\w.]+)*"
_SHAPE = re.compile(rf"[(\[]\s*({_AXIS}(?:\s*(?:,|\bx\b|×)\s*{_AXIS})+)\s*,?\s*[)\]]")
_NO_AXIS = re.compile(
    r"(?i)tensor|optional|default|none|int|float|bool|str|list|tuple|dict|callable|\w\.\w|true|false"
)


def stated_shapes(file: str, forward: ast.FunctionDef | None) -> dict[str, tuple[str, ...]]:
    r"""For arguments of forward, the names that the file gives to their axes.

    Args:
        file: The whole file.
        forward: The method.

    Examples:
        >>> code = "def forward(self, x, z):\n    '''x: features (B, N, C)\n    z: [b, 1, n]'''"
        >>> stated_shapes(code, ast.parse(code).body[0])
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
    """The first shape that a comment or docstring gives after a name, there or on the next line."""
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


_AHEAD = r"\W*((?:(?!\b(?:0|1|true|false)\b)[\w'-]+[^\w.,;]+){0,9}[\w'-]+)"  # up to a comma
_BEFORE, _AFTER = r"(?<![\[(])\b", r"\b(?!\s*[,)\]])"  # not in a shape
_ONES = re.compile(rf"(?i)(?:\b(?:1s|true|ones?|non-?zero)\b|{_BEFORE}1{_AFTER}){_AHEAD}")
_ZEROS = re.compile(rf"(?i)(?:\b(?:0s|false|zeros?)\b|{_BEFORE}0{_AFTER}){_AHEAD}")
_HIDES = re.compile(
    r"(?i)ignor|hid(e|den|es)\b|masked|mask out|to mask|= ?mask|\bpad|block|forbid|prevent|exclu|"
    r"disallow"
)
_KEEPS = re.compile(
    r"(?i)attend|keep|kept|\breal|valid|visible|allowed|take part|look|influenc|contribut|consider|"
    r"includ|\bus(?:e|ed)\b"
)
_TOKENS = re.compile(r"(?i)\btokens?\b")
_NOT = re.compile(r"(?i)\b(not|no|never|non|cannot|can't|un(masked|padded)|without)\b|n't\b")


def stated_marks(source: str, name: str) -> str:
    """What True means in a mask according to comments and docstrings: "keep" or "hide".

    "" if they say nothing, and "?" if their wording is not understood.

    Args:
        source: The source of a class.
        name: The argument.

    Examples:
        >>> stated_marks("mask: (B, N), True for tokens that should be attended to", "mask")
        'keep'
        >>> stated_marks("# mask: 1 marks positions that must not be attended to", "mask")
        'hide'
        >>> stated_marks("mask: (T, S), where 0 means token i is not influenced by j", "mask")
        'keep'
        >>> stated_marks("# mask: (b, 1, n, n) attention mask", "mask")
        ''
    """
    own = re.compile(rf"(?:^\W*(?:param\s+)?|.*[.;] ){re.escape(name)}\b(?!\s*=[^=])(.*)")
    lines = source.splitlines()
    for place, line in enumerate(lines):
        begins = own.match(line)
        if begins is None:
            continue
        below = [begins[1]]
        for more in lines[place + 1 : place + 4]:  # until a quote, a blank line, another argument
            if not more.strip(" #") or re.match(r'\W*[^\W\d]\w*\s*(\([^)]*\))?\s*[:=]|.*"""', more):
                break
            below.append(more.strip(" #"))
        told = _SHAPE.sub(" ", " ".join(below))
        if not (_ONES.search(told) or _ZEROS.search(told)):
            continue
        for sought, turned in ((_ONES, False), (_ZEROS, True)):
            meant = [_meant(words) for words in sought.findall(told)]
            if any(meant):
                hides = next(filter(None, meant)) == "hide"
                return "hide" if hides != turned else "keep"
        return "?"
    return ""


def _meant(words: str) -> str:
    """Whether some words describe what is hidden or what is kept; "" if neither."""
    said = [one for one in (_HIDES.search(words), _KEEPS.search(words)) if one is not None]
    found = min(said, key=re.Match.start, default=_TOKENS.search(words))
    if found is None:
        return ""
    hidden = found.re is _HIDES
    negated = _NOT.search(words[: found.end()] if said else words) is not None
    return "keep" if hidden == negated else "hide"
