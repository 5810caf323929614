"""The source of one class, and what it reveals: where a mistake is, and what is intended.

The source never decides whether a class is right. It may only choose among explanations that
reproduce the output equally well, and say where to look.
"""

import ast
import functools
import re
import textwrap
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from clearhead.checker.catalogue import words_of
from clearhead.checker.harness.weight_roles import role_of
from clearhead.checker.sandbox.submission import ClassInfo
from clearhead.checker.source.call_sites import assignments, last_name, parsed, statements

# Parts of attention, by the words that occur in their lines; see `Text.line_with`.
_LANDMARKS = {
    "scores": "@ matmul( einsum( bmm( baddbmm( scaled_dot_product_attention(",
    "dropout": "~drop( dropout_p",
    "mask": "tril( triu( masked_fill( where( ~mask",
    "merge": "view( reshape( flatten( rearrange( cat( concat(",
}
_OF_SCORES = ("scores", "dropout", "mask")
_ATTENDS = "~softmax( scaled_dot_product_attention( exp("


@dataclass(frozen=True)
class Text:
    """The source of one class, with its position in the file, and the whole file."""

    source: str
    first: int
    name: str
    file: str = ""

    @functools.cached_property
    def tree(self) -> ast.AST:
        """Its syntax tree, with the file's line numbers; an empty one if it cannot be parsed."""
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
        """The lines of each word of the code, without comments and docstrings.

        A word is an identifier, `softmax(` for a call, `causal=True` for an argument, an operator,
        `def-forward`, `return`, `for`, `in-place`, `=q` for an assignment to a name like queries
        (`,q` for one of several targets), `self=` for an assignment to an attribute, `self=[` for
        one of a list, and `self=o` for one of a layer to an attribute named like an output.
        """
        found: dict[str, list[int]] = {}
        tests = (node for node in ast.walk(self.tree) if isinstance(node, ast.Compare))
        absent = {id(test.left) for test in tests if isinstance(test.ops[0], ast.Is | ast.IsNot)}
        for node in ast.walk(self.tree):
            if id(node) in absent:
                continue  # `mask is None` says nothing about the mask
            line = node.func.end_lineno if isinstance(node, ast.Call) else None
            for word in _words_in(node):
                found.setdefault(word, []).append(line or int(getattr(node, "lineno", 0)))
        return found

    def uses(self, sought: str) -> bool:
        """Whether the code contains any of these words; see `line_with`."""
        return bool(self._lines(sought))

    def line_with(self, sought: str, *, last: bool = False) -> int | None:
        """The first (or last) line with one of these words, in or after forward, else above it.

        Args:
            sought: Words separated by spaces; `~mask` matches part of an identifier, `~att(` part
                of the name of a call.
            last: Whether to take the last line in or after forward.
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
        """Whether the code matches this pattern."""
        return re.search(pattern, self.code) is not None


def _words_in(node: ast.AST) -> Iterator[str]:
    """The words that one node of a syntax tree stands for; see `Text.words`."""
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
    """The source of one class of a file."""
    lines = source.splitlines()
    inside = "\n".join(lines[max(info.line - 1, 0) : info.end_line])
    return Text(inside, max(info.line, 1), info.name, source)


@functools.lru_cache(maxsize=64)
def used_by(text: Text) -> tuple[Text, ...]:
    r"""The classes and functions of the file that a class uses, directly or through others.

    Examples:
        >>> file = "def f(): ...\nclass A:\n    def g(self): f()\nclass B: ...\nclass C:\n    A()"
        >>> [part.name for part in used_by(Text("class C:\n    A()", 5, "C", file))]
        ['A', 'f']
    """
    body = parsed(text.file).body
    known = {n.name: n for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    order, lines = [text.name], text.file.splitlines()
    for name in order:  # grows during iteration
        for node in ast.walk(known[name]) if name in known else ():
            if isinstance(node, ast.Name) and node.id in known and node.id not in order:
                order.append(node.id)
    nodes = [known[name] for name in order[1:]]
    return tuple(
        Text("\n".join(lines[n.lineno - 1 : n.end_lineno]), n.lineno, n.name, text.file)
        for n in nodes
    )


def locate(id: str, text: Text) -> int | None:
    """The most likely line of a mistake, in the class or in what it uses.

    The catalogue says what to look for. The scores and the softmax may be outside the class: in the
    heads that it wraps, or in a function that it calls.
    """
    parts = (text, *used_by(text))
    attending = sorted(parts, key=lambda part: not part.uses(_ATTENDS))
    for landmark in words_of(id).at:
        for part in attending if landmark.startswith(_OF_SCORES) else parts:
            line = part.line_with(_LANDMARKS.get(landmark, landmark), last=landmark == "merge")
            if line is not None:
                return line
    return None


def keeps_something(text: Text) -> bool:
    """Whether a method other than __init__ sets an attribute, anywhere in the file.

    False if layers are created in the first forward pass: such a class cannot be rebuilt.
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
    """The attributes that decide which code runs outside __init__: `if self.flash: ...`."""
    methods = [n for n in ast.walk(text.tree) if isinstance(n, ast.FunctionDef)]
    inside = (n for one in methods if one.name != "__init__" for n in ast.walk(one))
    tests = [n.test for n in inside if isinstance(n, ast.If | ast.IfExp)]
    read = [n for test in tests for n in ast.walk(test) if isinstance(n, ast.Attribute)]
    own = [n.attr for n in read if isinstance(n.value, ast.Name) and n.value.id == "self"]
    return list(dict.fromkeys(own))


_NEW = {"masked_fill", "masked_scatter"}


def dropped_mask(text: Text) -> int | None:
    """The line where masked_fill's result is discarded, if there is one."""
    for part in (text, *used_by(text)):
        for node in ast.walk(part.tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                function = node.value.func
                if isinstance(function, ast.Attribute) and function.attr in _NEW:
                    return node.lineno
    return None


def ties_weights(text: Text) -> bool:
    """Whether the code of a class ties the weights of two of its layers.

    Examples:
        >>> [ties_weights(Text(code, 1, "")) for code in ("self.q.weight = self.k.weight", "")]
        [True, False]
    """
    for target, value in assignments(parsed(textwrap.dedent(text.source))):
        if isinstance(target, ast.Attribute) and isinstance(value, ast.Attribute):
            layers = {role_of(target.attr), role_of(value.attr)} == {"q", "k"}
            if layers or target.attr == value.attr == "weight":
                return True
    return False


_BATCH = r"b|bs|bsz|batch\w*|n_?batch\w*|num_batch\w*"
_TOKENS = (
    r"t|l|s|(\w+_)?seq\w*|len\w*|time\w*|tok\w*|length|\w+_len|(n|num)_(tok|patch)\w*|sequence\w*"
)
# What the code around an attention does if its tokens come first, or its batch.
_TURNS = r"\.(permute\(1, 0, 2\)|transpose\((0, 1|1, 0)\)|swapaxes\(0, 1\))"
_POOLS = (
    r"\bcat\([^\n]*dim ?= ?1\)|\[:, -?[01]\]|\.mean\((dim ?= ?)?1\b|"
    r"flatten\(2\)\.(transpose\(1, 2\)|mT)|\.permute\(0, 2, 1\)"
)


def order_said(source: str) -> str:
    """Which axis comes first according to a source: "batch", "tokens", "both" or "".

    Examples:
        >>> order_said("B, T, C = x.shape"), order_said("# (seq, batch, d)"), order_said("y = x")
        ('batch', 'tokens', '')
    """
    between = r"\s*,\s*"
    end = rf"{between}[\w*/ ]+(\)|\]|=)"
    batch = rf"(?i)[(\[\s](({_BATCH}){between}\w+|n{between}({_TOKENS})){end}"
    tokens = rf"(?i)[(\[\s]({_TOKENS}|n){between}({_BATCH}){end}"
    batch += r"|batch[ -]first|batch_first\s*=\s*True"
    tokens += r"|(seq\w*|tokens?|time)[ -]first"
    patterns = {"batch": batch, "tokens": tokens}
    found = [name for name, pattern in patterns.items() if re.search(pattern, f" {source}")]
    return found[0] if len(found) == 1 else "both" if found else ""


def order_around(text: Text) -> str:
    """Which axis comes first in the code that uses a class, by what it says and does.

    See `order_said`. A file that does not use the class says nothing about it.
    """
    rest = text.file.replace(text.source, "")
    if not re.search(rf"\b{re.escape(text.name)}\(", rest):
        return ""
    found = {order_said(rest)} - {""}
    found |= {"tokens"} if re.search(_TURNS, rest) else set()
    found |= {"batch"} if re.search(_POOLS, rest) and not found else set()
    return found.pop() if len(found) == 1 else "both" if found else ""


# Words in a comment or a docstring which say that the future may be seen.
_NOT_CAUSAL = r"(?i)bi-?directional|encoder|\bbert|\bvit\b|vision|image|patch|(not|non)[- ]causal"
_SAID_CAUSAL = r"(?i)(causal|autoregressive)\b(?! or\b)"  # as the first word of a docstring
_CAUSAL_FILE = r"(?i)\bcausal|autoregress|look.?ahead|gpt|language.?model|\bdef generate\b"


def expects_causal(
    text: Text, info: ClassInfo, takes_mask: bool, asked: bool = False, flags: Collection[str] = ()
) -> str:
    """Whether a class is meant to be causal: "yes" or "no".

    "yes" needs an unambiguous sign: the checker asked for it, the name, or a triangle in the code.
    A context length alone is no such sign, since an encoder may have one for its positions.

    Args:
        text: The source of the class.
        info: The class.
        takes_mask: Whether forward takes a mask.
        asked: Whether the constructor was asked for causal attention.
        flags: The object's switches; a mask behind one of them may rightly be off.
    """
    if asked:
        return "yes"
    if takes_mask:
        return "yes" if text.uses("tril( triu( is_causal=True") and _masks_unasked(text) else "no"
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
    return "yes" if re.search(_CAUSAL_FILE, text.file) or text.uses("~mask") else "no"


def _masks_unasked(text: Text) -> bool:
    """Whether a triangular mask is used without a request such as `mask="causal"`.

    A method that only creates one for the caller to pass in does not count.
    """
    tree = text.tree
    inside = {inner: node for node in ast.walk(tree) for inner in ast.iter_child_nodes(node)}
    called = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]

    def used(node: ast.AST) -> bool:
        above = node
        while above in inside:
            above = inside[above]
            asked = (n for n in ast.walk(above.test)) if isinstance(above, ast.If) else ()
            if any(isinstance(n, ast.Constant) and type(n.value) is str for n in asked):
                return False
            if isinstance(above, ast.FunctionDef) and above is not tree:
                name = above.name
                own = name in ("forward", "__call__", "__init__")
                return own or any(last_name(one.func) == name and used(one) for one in called)
        return True

    causal = [n for n in called if any(one.arg == "is_causal" for one in n.keywords)]
    made = [n for n in called if last_name(n.func) in ("tril", "triu")] + causal
    return not made or any(map(used, made))


def _masked_behind(text: Text, flags: Collection[str]) -> bool:
    """Whether the scores are masked only behind one of its switches: `if not self.is_encoder`."""
    for node in ast.walk(text.tree):
        if isinstance(node, ast.If):
            read = {n.attr for n in ast.walk(node.test) if isinstance(n, ast.Attribute)}
            off = any(map(_is_off, ast.walk(node.test)))
            inside = {word for n in ast.walk(node) for word in _words_in(n)}
            hides = {"masked_fill(", "where(", "tril(", "triu("}
            if (off or read & {*flags}) and (
                inside & hides or any("inf" in word for word in inside)
            ):
                return True
    return False


def _is_off(node: ast.AST) -> bool:
    """Whether a node is a flag read from a dict, off by default: `args.get("mask", False)`."""
    return isinstance(node, ast.Call) and ast.unparse(node).endswith(", False)")


_CONTEXT = ("context_length", "block_size", "ctx_len", "context_len", "context_size", "n_ctx")
_POSITIONS = ("embedding", "pos", "rel", "rope", "rotary", "arange", "freq", "randn", "zeros")


def context_name(text: Text, info: ClassInfo) -> str:
    """The name of the context length in the constructor or the config; "" if positions need it.

    Only names that language models use count: an encoder's max_len says nothing.
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
    r"""A note on a tiny number where a large one was probably meant; "" if there is none.

    Args:
        file: The whole file.
        line: The line in which a score is masked.

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
