"""The source of one class, and what can be read from it: which line, and what it means to be.

The source never decides whether a class is right: it may only choose among explanations that
reproduce the output equally, and say where to look.
"""

import ast
import functools
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from clearhead.checker.catalogue import words_of
from clearhead.checker.harness.weight_roles import role_of
from clearhead.checker.sandbox.submission import ClassInfo
from clearhead.checker.source.call_sites import last_name, parsed, statements

# Parts of attention, as words that stand in its lines; see `Text.line_with`.
_LANDMARKS = {
    "scores": "@ matmul( einsum( bmm( baddbmm( scaled_dot_product_attention(",
    "dropout": "~drop( dropout_p",
    "mask": "tril( triu( masked_fill( where( ~mask",
    "merge": "view( reshape( flatten( rearrange( cat( concat(",
}
_OF_SCORES = ("scores", "dropout", "mask")
_ATTENDS = "~softmax( scaled_dot_product_attention( exp("
_SDPA = "scaled_dot_product_attention"


@dataclass(frozen=True)
class Text:
    """The source of one class, with its place in the file, and the whole file around it."""

    source: str
    first: int
    name: str
    file: str = ""

    @functools.cached_property
    def tree(self) -> ast.AST:
        """Its syntax tree, with the lines of the file; an empty one where it cannot be read."""
        last = self.first + self.source.count("\n")
        for node in ast.walk(parsed(self.file)):
            if (
                isinstance(node, ast.ClassDef | ast.FunctionDef)
                and node.name == self.name
                and self.first <= node.lineno <= last
            ):
                return node
        return parsed(self.source)

    @functools.cached_property
    def words(self) -> dict[str, list[int]]:
        """The lines of each word of the code; comments and docstrings have none.

        A word is an identifier, `softmax(` for a call, `causal=True` for an argument, an operator,
        `def-forward`, `return`, `for`, `in-place`, `=q` for an assignment to what is named like
        queries (`,q` for one of several), `self=` for one to an attribute, `self=[` of a list, and
        `self=o` of a layer that is named like an output.
        """
        found: dict[str, list[int]] = {}
        tests = (node for node in ast.walk(self.tree) if isinstance(node, ast.Compare))
        absent = {id(test.left) for test in tests if isinstance(test.ops[0], ast.Is | ast.IsNot)}
        for node in ast.walk(self.tree):
            if id(node) in absent:
                continue  # `mask is None` says nothing of the mask
            line = node.func.end_lineno if isinstance(node, ast.Call) else None
            for word in _words_in(node):
                found.setdefault(word, []).append(line or int(getattr(node, "lineno", 0)))
        return found

    def uses(self, sought: str) -> bool:
        """Whether the code has one of these words; see `line_with`."""
        return bool(self._lines(sought))

    def line_with(self, sought: str, *, last: bool = False) -> int | None:
        """The first (or last) line with one of these words, from forward on, else above it.

        Args:
            sought: Words with a space between; `~mask` is a part of an identifier, `~att(` of the
                name of what is called.
            last: Whether to take the last one from forward on.
        """
        lines = sorted(self._lines(sought))
        start = min(self.words.get("def-forward", [0]))
        below = [line for line in lines if line >= start]
        return next(iter([*(reversed(below) if last else below), *lines]), None)

    def _lines(self, sought: str) -> list[int]:
        found: list[int] = []
        for word in sought.split():
            if word[0] != "~":
                found += self.words.get(word, ())
                continue
            part, called = word[1:].removesuffix("("), word[-1] == "("
            for known, lines in self.words.items():
                if part in known.lower() and (known[-1] == "(" if called else known.isidentifier()):
                    found += lines
        return found

    @property
    def code(self) -> str:
        """The source without comments and docstrings."""
        bare = re.sub(
            r'"""(?:.|\n)*?"""|\'\'\'(?:.|\n)*?\'\'\'',
            lambda m: "\n" * m[0].count("\n"),
            self.source,
        )
        return re.sub(r"#.*", "", bare)

    def has(self, pattern: str) -> bool:
        """Whether the code has this pattern."""
        return re.search(pattern, self.code) is not None

    def line(self, *patterns: str) -> int | None:
        """The first line with the first pattern that occurs, as the file counts."""
        lines: list[str] = self.code.splitlines()
        start: int = next((i for i, text in enumerate(lines) if "def-forward" in text), 0)
        for pattern in patterns:
            for number in (*range(start, len(lines)), *range(start)):
                if re.search(pattern, lines[number]):
                    return int(self.first + number)
        return None


def _words_in(node: ast.AST) -> Iterator[str]:
    """The words that one node of a syntax tree is; see `Text.words`."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif (
        isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier()
    ):
        yield node.value
    elif isinstance(node, ast.Call):
        name = last_name(node.func)
        yield f"{name.rstrip('_')}("
        yield from ["in-place"] if name.endswith("_") and name[0] != "_" else []
    elif isinstance(node, ast.keyword) and node.arg is not None:
        yield node.arg
        yield f"{node.arg}={ast.unparse(node.value).partition('.')[0]}"
    elif isinstance(node, ast.BinOp | ast.AugAssign):
        yield from ["@"] if isinstance(node.op, ast.MatMult) else []
        yield from ["in-place"] if isinstance(node, ast.AugAssign) else []
    elif isinstance(node, ast.Compare):
        yield from ["<"] if isinstance(node.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE) else []
        own = isinstance(node.left, ast.Attribute) and isinstance(node.ops[0], ast.Is)
        yield from ["self-is-None"] if own else []
    elif isinstance(node, ast.FunctionDef):
        yield f"def-{node.name}"
        plain = zip(reversed(node.args.args), reversed(node.args.defaults), strict=False)
        yield from (f"{one.arg}={ast.unparse(value)}" for one, value in plain)
    elif isinstance(node, ast.For):
        yield "for"
    elif isinstance(node, ast.Return):
        yield "return"
    elif isinstance(node, ast.Assign):
        for target in (n for one in node.targets for n in ast.walk(one)):
            if isinstance(target, ast.Name):
                yield f"{'=' if target in node.targets else ','}{role_of(target.id)}"
            elif isinstance(target, ast.Attribute):
                listed = isinstance(node.value, ast.List | ast.ListComp | ast.Dict | ast.DictComp)
                yield "self=[" if listed else "self="
                if isinstance(node.value, ast.Call):
                    yield f"self={role_of(target.attr)}"


def text_of(source: str, info: ClassInfo) -> Text:
    """The part of a file that is one class."""
    lines = source.splitlines()
    inside = "\n".join(lines[max(info.line - 1, 0) : info.end_line])
    return Text(inside, max(info.line, 1), info.name, source)


@functools.lru_cache(maxsize=64)
def used_by(text: Text) -> tuple[Text, ...]:
    r"""The classes and functions of the same file that a class uses, and those that they use.

    Examples:
        >>> file = "def f(): ...\nclass A:\n    def g(self): f()\nclass B: ...\nclass C:\n    A()"
        >>> [part.name for part in used_by(Text("class C:\n    A()", 5, "C", file))]
        ['A', 'f']
    """
    body = parsed(text.file).body
    known = {n.name: n for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    order, lines = [text.name], text.file.splitlines()
    for name in order:  # grows while it is walked
        for node in ast.walk(known[name]) if name in known else ():
            if isinstance(node, ast.Name) and node.id in known and node.id not in order:
                order.append(node.id)
    nodes = [known[name] for name in order[1:]]
    return tuple(
        Text("\n".join(lines[n.lineno - 1 : n.end_lineno]), n.lineno, n.name, text.file)
        for n in nodes
    )


def locate(id: str, text: Text) -> int | None:
    """The line where we think a mistake is, in the class or in what it uses.

    The catalogue says what to look for. Scores and softmax may be elsewhere: in a class around
    heads, or in a function that is called.
    """
    if id == "sdpa-mask-polarity":
        return text.line_with(" ".join(f"{name}(" for name in sorted(sdpa_names(text.file))))
    parts = (text, *used_by(text))
    attending = sorted(parts, key=lambda part: not part.uses(_ATTENDS))
    for landmark in words_of(id).at:
        for part in attending if landmark.startswith(_OF_SCORES) else parts:
            line = part.line_with(_LANDMARKS.get(landmark, landmark), last=landmark == "merge")
            if line is not None:
                return line
    return None


def sdpa_names(file: str) -> set[str]:
    """What a file calls PyTorch's scaled_dot_product_attention: imported, assigned or wrapped.

    Examples:
        >>> line = "from torch.nn.functional import scaled_dot_product_attention as attend"
        >>> sorted(sdpa_names(line))
        ['attend', 'scaled_dot_product_attention']
    """
    names = {_SDPA}
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.ImportFrom):
            names |= {one.asname for one in node.names if one.name == _SDPA and one.asname}
        elif isinstance(node, ast.Assign):
            value = node.value
            if isinstance(value, ast.Call):
                value = value.args[0] if last_name(value.func) == "partial" else ast.Constant(None)
            if last_name(value) == _SDPA:
                names |= set(map(last_name, node.targets))
    for node in parsed(file).body:
        if isinstance(node, ast.FunctionDef):
            calls = (n for n in ast.walk(node) if isinstance(n, ast.Call))
            names |= {node.name} if {last_name(call.func) for call in calls} & names else set()
    return names


def uses_sdpa(text: Text) -> bool:
    """Whether a class calls PyTorch's own attention, under whatever name."""
    return text.uses(" ".join(f"{name}(" for name in sdpa_names(text.file)))


_MAKERS = {"ones", "zeros", "full", "arange", "tensor", "eye", "empty"}
_KEPT = {"to", "type_as", "register_buffer", "Parameter"}


def made_without(text: Text, what: str) -> int | None:
    """The line of forward, or of a helper, that makes a tensor and does not say its device (dtype).

    Args:
        text: The source.
        what: "device" or "dtype".
    """
    lines = sorted(_makers(text.tree, what))
    start = min(text.words.get("def-forward", [0]))
    return next(iter([*(n for n in lines if n >= start), *lines]), None)


def _makers(tree: ast.AST, what: str) -> Iterator[int]:
    for statement in statements(tree):
        calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if {last_name(call.func) for call in calls} & _KEPT:
            continue
        if any(isinstance(target, ast.Attribute) for target in targets):
            continue
        for call in calls:
            home = call.func.value if isinstance(call.func, ast.Attribute) else None
            name = last_name(call.func)
            made = name in _MAKERS or (name.endswith("Tensor") and name[0].isupper())
            said = any(what in ast.unparse(keyword) for keyword in call.keywords)
            if made and isinstance(home, ast.Name) and home.id in ("torch", "T", "th") and not said:
                yield call.lineno


def keeps_something(text: Text) -> bool:
    """Whether a method other than __init__ sets an attribute, anywhere in the file.

    Not where layers are made in the first forward pass: such a class cannot be built anew.
    """
    if "Lazy" in text.file:
        return False
    owners = [node for node in ast.walk(parsed(text.file)) if isinstance(node, ast.ClassDef)]
    methods = [node for owner in owners for node in owner.body if isinstance(node, ast.FunctionDef)]
    return any(
        (
            isinstance(node, ast.Attribute | ast.Subscript)
            and isinstance(node.ctx, ast.Store)
            and ast.unparse(node).startswith("self.")
        )
        or (isinstance(node, ast.Call) and ast.unparse(node.func) == "self.register_buffer")
        for method in methods
        if method.name != "__init__"
        for node in ast.walk(method)
    )


def switches(text: Text) -> list[str]:
    """The attributes that decide outside __init__ which code runs: `if self.flash: ...`."""
    methods = [n for n in ast.walk(text.tree) if isinstance(n, ast.FunctionDef)]
    inside = (n for one in methods if one.name != "__init__" for n in ast.walk(one))
    tests = [n.test for n in inside if isinstance(n, ast.If | ast.IfExp)]
    read = [n for test in tests for n in ast.walk(test) if isinstance(n, ast.Attribute)]
    own = [n.attr for n in read if isinstance(n.value, ast.Name) and n.value.id == "self"]
    return list(dict.fromkeys(own))


_NEW = {"masked_fill", "where", "masked_scatter", "add", "mul", "tril", "triu"}


def dropped_mask(text: Text) -> int | None:
    """The line where masked_fill's result is thrown away, if there is one."""
    for part in (text, *used_by(text)):
        for node in ast.walk(part.tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                function = node.value.func
                if isinstance(function, ast.Attribute) and function.attr in _NEW:
                    return node.lineno
    return None


# Words that say in a comment or a docstring that the future may be seen.
_NOT_CAUSAL = r"(?i)bi-?directional|encoder|\bbert|\bvit\b|vision|image|patch|(not|non)[- ]causal"
_SAID_CAUSAL = r"(?i)(causal|autoregressive)\b(?! or\b)"  # a docstring whose first word it is
_CAUSAL_FILE = r"(?i)\bcausal|autoregress|look.?ahead|gpt|language.?model|\bdef generate\b"


def expects_causal(
    text: Text, info: ClassInfo, takes_mask: bool, asked: bool = False, flags: Collection[str] = ()
) -> str:
    """Whether a class means to be causal: "yes", "no", or "maybe", which is a question.

    "yes" needs a sign that can mean nothing else: we asked for it, the name, or a triangle in the
    code. A context length alone is no such sign, since an encoder may have one for its positions.

    Args:
        text: The source of the class.
        info: The class.
        takes_mask: Whether forward takes a mask.
        asked: Whether the constructor was told to be causal.
        flags: The object's switches: a mask behind one of them may rightly be off.
    """
    if asked:
        return "yes"
    if takes_mask:
        return "yes" if text.uses("tril( triu( is_causal=True") else "no"
    built_in = text.uses("~tril ~triu is_causal=True is_causal=self ~causal_mask ~_causal(")
    said = ast.get_docstring(text.tree) if isinstance(text.tree, ast.ClassDef) else None
    named = re.search(r"(?<!non)(?<!non_)causal|masked|gpt|decoder|autoregress", info.name.lower())
    named = named or re.match(_SAID_CAUSAL, said or "")
    if built_in and not named and _masked_behind(text, flags):
        return "no"
    if built_in or named:
        return "no" if _switched_off(info) else "yes"
    if not context_name(text, info) or re.search(_NOT_CAUSAL, text.source):
        return "no"
    return "yes" if re.search(_CAUSAL_FILE, text.file) or text.uses("~mask") else "maybe"


def _masked_behind(text: Text, flags: Collection[str]) -> bool:
    """Whether the scores are masked only under a switch of the object: `if not self.is_encoder`."""
    for node in ast.walk(text.tree):
        if isinstance(node, ast.If):
            read = {n.attr for n in ast.walk(node.test) if isinstance(n, ast.Attribute)}
            inside = {word for n in ast.walk(node) for word in _words_in(n)}
            hides = {"masked_fill(", "where(", "tril(", "triu("}
            if read & {*flags} and (inside & hides or any("inf" in word for word in inside)):
                return True
    return False


_CONTEXT = ("context_length", "block_size", "ctx_len", "context_len", "context_size", "n_ctx")
_POSITIONS = ("embedding", "pos", "rel", "rope", "rotary", "arange", "freq", "randn", "zeros")


def context_name(text: Text, info: ClassInfo) -> str:
    """The context length in the constructor or the config, if positions do not need it; else "".

    Only names that language models use: an encoder's max_len says nothing.
    """
    names = [p.name for p in info.init if p.name.lower() in _CONTEXT]
    read = {node.attr for node in ast.walk(text.tree) if isinstance(node, ast.Attribute)}
    names += [name for name in _CONTEXT if name in read]
    for statement in statements(text.tree):
        words = {word.lower() for node in ast.walk(statement) for word in _words_in(node)}
        positions = any(word.startswith(_POSITIONS) or "embedding" in word for word in words)
        if positions and words & {name.lower() for name in names}:
            return ""
    return names[0] if names else ""


def _switched_off(info: ClassInfo) -> bool:
    return any(
        re.search(r"causal|masked|^mask$", p.name.lower())
        and p.has_default
        and p.default in (False, None)
        for p in (*info.init, *info.forward)
    )


def raises_at(file: str, line: int) -> bool:
    """Whether a line raises an error on purpose.

    Examples:
        >>> raises_at("assert mask.ndim == 5, mask.shape", 1)
        True
    """
    raising = [n for n in ast.walk(parsed(file)) if isinstance(n, ast.Raise | ast.Assert)]
    return any(node.lineno <= line <= (node.end_lineno or 0) for node in raising)


def literal_meant(file: str, line: int | None) -> str:
    r"""What was probably meant by a tiny number where a large one belongs; "" if there is none.

    Args:
        file: The whole file.
        line: The line in which a score is hidden.

    Examples:
        >>> literal_meant("s = s.masked_fill(m, -1e-9)", 1)
        ' You wrote -1e-9; -1e9 was probably meant.'
    """
    for node in ast.walk(parsed(file)):
        negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
        number = node.operand if isinstance(node, ast.UnaryOp) and negative else node
        if not isinstance(number, ast.Constant) or number.lineno != line:
            continue
        text = ast.get_source_segment(file, number) or ""
        tiny = isinstance(number.value, float) and 0 < number.value < 1e-2
        if tiny and "e-" in text.lower():
            written = f"-{text}" if negative else text
            return f" You wrote {written}; -{text.lower().replace('e-', 'e')} was probably meant."
    return ""
