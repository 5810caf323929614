"""What a look at the source tells: which line, and which of several equal explanations.

The source never decides whether a class is right: it may only choose among explanations that
reproduce the output equally, and say where to look.
"""

import ast
import functools
import re
from collections.abc import Collection
from dataclasses import dataclass

from clearhead.checker.sandbox.submission import ClassInfo

_SCORES = r"@.*(transpose|\.T\b|\.mT|permute)|matmul|einsum|bmm|scaled_dot_product"
_ROOT = r"sqrt|\*\*\s*\(?-?\s*0?\.5|\*\*\s*\(?-?1\s*/\s*2"
_SCALE = r"\b(self\.)?_?scal(e|ing)(_factor)?\b|temper"
_WIDE = r"(d_?out|d_?model|n_?embd?|embed|(?<!head_)(?<!head)dim|hidden|emb|width|\b[CDE])\w*\W*"
_SPLIT = r"\.(view|reshape|unflatten)\(.*head|rearrange|\.(view|reshape)\("
_MERGE = r"\.(view|reshape|flatten)\(|rearrange|concat|cat\("
_MASK = r"tril|triu|masked_fill|is_causal|attn_mask|where\(|mask"

_LINES: dict[str, tuple[str, ...]] = {
    "missing-scale": (_SCORES,),
    "scale-by-d-out": (rf"sqrt\([^)]*{_WIDE}|{_WIDE}\*\*\s*\(?-?\s*(0?\.5|1\s*/)", _ROOT, _SCALE),
    "scale-multiplied": (_ROOT, _SCALE),
    "scale-after-softmax": (
        r"softmax.*\)\s*[/*]", r"(weights|attn\w*|probs)\s*[/*]", _ROOT, _SCALE,
    ),
    "scale-twice": (_ROOT, _SCALE, r"/", _SCORES),
    "no-return": (r"def forward",),
    "heads-ignored": (r"head", r"def __init__"),
    "values-detached": (r"detach\(|no_grad|\.data\b",),
    "wrong-gain": (r"softmax",),
    "softmax-over-everything": (r"softmax",),
    "softmax-no-keepdim": (r"/.*sum\((?!.*keepdim)", r"sum\((?!.*keepdim)", r"sum\("),
    "keys-viewed-not-transposed": (r"k\w*\.(view|reshape)\(", _SCORES),
    "heads-share-weights": (r"\]\s*\*", r"ModuleList"),
    "projections-in-other-order": (r"chunk|split|unbind",),
    "wrong-scale": (_ROOT, _SCALE, r"\*\*", _SCORES),
    "softmax-over-queries": (r"softmax",),
    "softmax-over-heads": (r"softmax",),
    "softmax-over-batch": (r"softmax",),
    "softmax-twice": (r"softmax",),
    "no-softmax": (_SCORES,),
    "mask-result-dropped": (r"^\s*[\w.\[\]:, ]*\.masked_fill\(", r"masked_fill|where\("),
    "no-causal-mask": (r"is_causal\s*=\s*False", _SCORES),
    "mask-off-by-one": (r"(tril|triu)\(", r"<=|>=|<|>", _MASK),
    "mask-hides-self": (r"(tril|triu)\(", r"arange.*[<>]", _MASK),
    "mask-hides-others": (_MASK,),
    "values-not-mixed": (r"einsum.*v", _SCORES),
    "mask-inverted": (r"masked_fill|where\(", r"(tril|triu)\(", _MASK),
    "mask-fill-not-inf": (r"masked_fill|where\(|\[.*mask.*\]\s*=|scores?\s*\*\s*", _MASK),
    "mask-added-not-filled": (r"\+\s*(self\.)?\w*mask|\+=.*mask|tri[lu]", _MASK),
    "mask-after-softmax": (
        r"softmax\(.*\)\s*\*", r"(weights|attn\w*|probs?|att)\s*\*=?",
        r"^\s*(\w*weights|attn\w*|probs?|att|share|a|w)\s*=.*(masked_fill|where)", _MASK,
    ),
    "mask-fill-too-small": (r"masked_fill|where\(|-\s*1e?\d", _MASK),
    "mask-fill-overflows-half": (r"masked_fill|-\s*1e\d|where\(", _MASK),
    "mask-not-sliced": (r"masked_fill|where\(", _MASK),
    "mask-ignored": (r"def forward", _MASK),
    "mask-not-a-buffer": (r"self\.\w+\s*=.*(tri[lu]|ones|mask)",),
    "padding-inverted": (
        r"(masked_fill|where\().*pad|pad.*(masked_fill|where\(|-\s*1e)",
        r"^(?!\s*def ).*mask\s*=.*pad(?!.*Optional)", _MASK,
    ),
    "scale-is-stray-tensor": (r"self\.\w+\s*=.*(tensor|Tensor|sqrt)",),
    "split-without-transpose": (_SPLIT,),
    "merge-without-transpose": (_MERGE,),
    "heads-folded-into-batch": (r"\.(view|reshape)\(.*\*", _SPLIT),
    "heads-interleaved": (_MERGE,),
    "heads-summed": (r"\.?(sum|mean)\(.*(dim|axis|1)", r"sum\(|mean\(|\+="),
    "concat-on-wrong-axis": (r"cat\(|concat\(|stack\(",),
    "heads-share-projection": (r"nn\.Linear\(",),
    "one-head-only": (r"return", _MERGE),
    "query-key-swapped": (_SCORES,),
    "out-proj-unused": (r"^\s*self\.\w*(proj|out|fc|o)\w*\(", r"return"),
    "out-proj-takes-d-in": (r"(?i)(out|proj|fc|dense|w_?o)\w*\s*=.*Linear\(",),
    "fails-with-one-sentence": (r"squeeze",),
    "training-differs": (r"self\.training",),
    "rotary-unused": (r"def forward",),
    "rotary-pairs-mixed": (r"repeat_interleave|cat\(|stack\(", r"rot|rope|cos"),
    "norm-over-wrong-axis": (r"normalize\(", r"norm\(", _SCORES),
    "rotary-on-one-side": (r"rot|rope|cos", _SCORES),
    "rotary-on-values": (r"^\s*v\w*\s*=.*(rot|rope|cos)", r"rot|rope|cos"),
    "scores-detached": (r"detach\(|no_grad|\.data\b",),
    "dropout-before-softmax": (r"drop\w*\(.*(score|logit|attn|att|wei|energy)", r"drop\w*\("),
    "dropout-in-eval": (
        r"F\.dropout\(|functional\.dropout\(|dropout_p\s*=|torch\.dropout\(",
        r"training\s*=\s*True",
    ),
    "dropout-rescaled-twice": (r"/\s*\(?\s*\(?1(\.0)?\s*-", r"1(\.0)?\s*-"),
    "dropout-unused": (r"[Dd]ropout\(",),
    "bias-flag-ignored": (r"nn\.Linear\(",),
    "heads-in-python-list": (r"self\.\w+\s*=\s*\[", r"self\.\w+\s*=.*\["),
    "in-place-breaks-autograd": (r"[*/+-]=|_\(",),
    "weights-transposed": (_SCORES,),
    "kv-heads-in-other-order": (r"repeat|expand|tile",),
    "kv-heads-do-not-match": (r"\.(repeat|tile|expand)\(", r"repeat_interleave|unsqueeze"),
    "depends-on-earlier-call": (r"if self\.\w+ is None|hasattr\(self", r"self\.\w+\s*=", _MASK),
    "never-learns": (r"zeros|constant_|fill_",),
    "changes-its-input": (r"[+*/-]=", r"\w_\(|\]\s*="),
    "keeps-its-graph": (r"@.*cache", r"self\.\w+(\[.*\])?\s*="),
    "padding-gives-nan": (r"maximum\(|amax\(|max\(", r"exp\("),
    "breaks-with-length": (r"for \w+ in range\(", r"arange|tri[lu]", r"\[[^\]]*:", _MASK),
    "padding-on-queries": (r"\[:, None, :, None\]|unsqueeze|None\]", _MASK),
    "padding-in-other-texts": (r"(pad|mask)\w*.*\.(repeat|tile|expand)\(", _MASK),
    "attends-across-batch": (r"MultiheadAttention\(", r"transpose\(0, 1\)|permute", _SCORES),
    "cached-mask-misaligned": (r"is_causal\s*=", r"tri[lu]\(", r"arange", _MASK),
    "cache-differs": (r"(cat|concat)\(", r"cache|past"),
}  # fmt: skip
_ASSIGNED = {"key-from-query-weights": "k", "value-from-keys": "v", "query-from-key-weights": "q",
             "value-from-queries": "v", "key-from-value-weights": "k", "value-not-projected": "v",
             "key-not-projected": "k", "query-not-projected": "q"}  # fmt: skip


@dataclass(frozen=True)
class Text:
    """The source of one class, with its place in the file, and the whole file around it."""

    source: str
    first: int
    name: str
    file: str = ""

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

    def line(self, *patterns: str, last: bool = False) -> int | None:
        """The first (or last) line with the first pattern that occurs, as the file counts."""
        lines: list[str] = self.code.splitlines()
        start: int = next((i for i, text in enumerate(lines) if "def forward" in text), 0)
        for pattern in patterns:
            places = [*range(start, len(lines)), *range(start)]
            if last:
                places = [*reversed(range(start, len(lines))), *range(start)]
            for number in places:
                if re.search(pattern, lines[number]):
                    return int(self.first + number)
        return None


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
    try:
        body = ast.parse(text.file).body
    except (SyntaxError, ValueError):
        return ()
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


_ATTENDS = r"softmax|scaled_dot_product_attention|\.exp\("
_OF_SCORES = r"mask(?!-ignored)|softmax|scale|gain|padding|dropout(?!-unused)|scores"


def locate(id: str, text: Text) -> int | None:
    """The line where we think a mistake is, in the class or in what it uses."""
    merging = id in ("merge-without-transpose", "heads-interleaved", "heads-summed")
    patterns = _LINES.get(id, ())
    if id in _ASSIGNED:
        letter = _ASSIGNED[id]
        word = {"q": "quer", "k": "key", "v": "val"}[letter]
        patterns = (rf"^\s*({word}\w*|{letter})\b[^=]*=", rf"\b{letter}\b.*=", word)
    elif id == "sdpa-mask-polarity":
        patterns = (_called(sdpa_names(text.file)),)
    if id == "values-not-mixed" and summed_alone(text) is not None:
        return summed_alone(text)
    used = used_by(text)
    inside = [part for part in used if part.has(_ATTENDS)]
    tries: list[tuple[Text, tuple[str, ...]]]
    if inside and not text.has(_ATTENDS) and re.search(_OF_SCORES, id):
        # Scores and softmax are elsewhere: it is a class around heads, or calls a function.
        tries = [(part, (pattern,)) for pattern in patterns for part in (*inside, text)]
    else:
        tries = [(part, patterns) for part in (text, *used)]
    lines = (part.line(*sought, last=merging) for part, sought in tries)
    return next((line for line in lines if line is not None), None)


def sdpa_names(file: str) -> set[str]:
    """What a file calls PyTorch's scaled_dot_product_attention: imported, assigned or wrapped.

    Examples:
        >>> line = "from torch.nn.functional import scaled_dot_product_attention as attend"
        >>> sorted(sdpa_names(line))
        ['attend', 'scaled_dot_product_attention']
    """
    full = "scaled_dot_product_attention"
    names = {full}
    try:
        tree = ast.parse(file)
    except SyntaxError:
        return names
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {one.asname for one in node.names if one.name == full and one.asname}
        elif isinstance(node, ast.Assign):
            value = node.value
            if isinstance(value, ast.Call) and not ast.unparse(value.func).endswith("partial"):
                continue
            if full in ast.unparse(value):
                targets = [t for t in node.targets if isinstance(t, ast.Name | ast.Attribute)]
                names |= {t.id if isinstance(t, ast.Name) else t.attr for t in targets}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and re.search(_called(names), ast.unparse(node)):
            names.add(node.name)
    return names


def _called(names: set[str]) -> str:
    """A pattern for a call of one of these names."""
    return rf"\b({'|'.join(map(re.escape, sorted(names)))})\("


def uses_sdpa(text: Text) -> bool:
    """Whether a class calls PyTorch's own attention, under whatever name."""
    return text.has(_called(sdpa_names(text.file)))


def made_without(text: Text, what: str) -> int | None:
    """The line of forward, or of a helper, that makes a tensor and does not say its device (dtype).

    Args:
        text: The source.
        what: "device" or "dtype".
    """
    return text.line(_made(what))


def may_make_on_cpu(text: Text) -> bool:
    """Whether any line of the file makes a tensor and does not say where."""
    return re.search(_made("device"), text.file, re.MULTILINE) is not None


def _made(what: str) -> str:
    maker = r"\b(torch|T|th)\.(ones|zeros|full|arange|tensor|eye|empty|[A-Z]\w*Tensor)\("
    kept = rf"{what}|\.to\(|type_as|register_buffer|Parameter\(|self\.\w+\s*=|^[ \t]*#"
    return rf"^(?!.*({kept})).*{maker}"


def keeps_something(text: Text) -> bool:
    """Whether a method other than __init__ sets an attribute, anywhere in the file.

    Not where layers are made in the first forward pass: such a class cannot be built anew.
    """
    if "Lazy" in text.file:
        return False
    try:
        tree = ast.parse(text.file)
    except SyntaxError:
        return False
    methods = [
        node
        for owner in ast.walk(tree)
        if isinstance(owner, ast.ClassDef)
        for node in owner.body
        if isinstance(node, ast.FunctionDef) and node.name != "__init__"
    ]
    return any(
        (
            isinstance(node, ast.Attribute | ast.Subscript)
            and isinstance(node.ctx, ast.Store)
            and ast.unparse(node).startswith("self.")
        )
        or (isinstance(node, ast.Call) and ast.unparse(node.func) == "self.register_buffer")
        for method in methods
        for node in ast.walk(method)
    )


def dropped_mask(text: Text) -> int | None:
    """The line where masked_fill's result is thrown away, if there is one."""
    for part in (text, *used_by(text)):
        inner = part.source[:1] in (" ", "\t")
        try:
            line = _dropped(ast.parse(f"if True:\n{part.source}" if inner else part.source))
        except SyntaxError:
            continue
        if line is not None:
            return part.first + line - 1 - inner
    return None


def _dropped(tree: ast.AST) -> int | None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function = node.value.func
            if isinstance(function, ast.Attribute) and function.attr in (
                "masked_fill", "where", "masked_scatter", "add", "mul", "tril", "triu",
            ):  # fmt: skip
                return node.lineno
    return None


def summed_alone(text: Text) -> int | None:
    """The line of an einsum in which an axis of one factor meets no other: it is only summed up.

    Examples:
        >>> summed_alone(Text('einsum("bhij,bihd->bihd", a, v)', 1, ""))
        1
    """
    for number, line in enumerate(text.code.splitlines()):
        equation = re.search(r"[\"']\s*([\w ]+),([\w ]+)->\s*([\w ]+)[\"']", line)
        letters = [set(part.split() if " " in part.strip() else part) for part in
                   (equation.groups() if equation else ())]  # fmt: skip
        if letters and any(
            letters[one] - letters[other] - letters[2] for one, other in ((0, 1), (1, 0))
        ):
            return text.first + number
    return None


_CALLED_CAUSAL = r"(?<!self\.)\bis_causal"  # an argument; an attribute says nothing by itself
_NOT_CAUSAL = r"(?i)bi-?directional|encoder|\bbert|\bvit\b|vision|image|patch|(not|non)[- ]causal"


# A docstring whose first word it is.
_SAID_CAUSAL = r"(?i)\bclass [^\n]*\n\s*r?(\"\"\"|\'\'\')\s*(causal|autoregressive)\b(?! or\b)"


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
        return "yes" if text.has(rf"\btril\(|\btriu\(|{_CALLED_CAUSAL}\s*=\s*True") else "no"
    built_in = text.has(rf"\btril|\btriu|{_CALLED_CAUSAL}\s*=\s*(True|self)|causal_mask|_causal\(")
    named = re.search(r"causal|masked|gpt|decoder|autoregress", info.name.lower())
    named = named or re.search(_SAID_CAUSAL, text.source)
    if built_in and not named and masked_behind(text, flags):
        return "no"
    if built_in or named:
        return "no" if _switched_off(info) else "yes"
    if not context_name(text, info) or re.search(_NOT_CAUSAL, text.source):
        return "no"
    said = r"(?i)\bcausal|autoregress|look.?ahead|gpt|language.?model|\bdef generate\b"
    return "yes" if re.search(said, text.file) or text.has("mask") else "maybe"


def masked_behind(text: Text, flags: Collection[str]) -> bool:
    """Whether the scores are masked only under a switch of the object: `if not self.is_encoder`."""
    try:
        tree = ast.parse(text.source)
    except (SyntaxError, IndentationError):
        return False
    switches = re.compile(rf"self\.({'|'.join(map(re.escape, flags)) or '(?!)'})\b")
    hides = re.compile(r"masked_fill|where\(|inf|tri[lu]")
    return any(
        switches.search(ast.unparse(node.test)) and hides.search(ast.unparse(node))
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
    )


def context_name(text: Text, info: ClassInfo) -> str:
    """The context length in the constructor or the config, if positions do not need it; else "".

    Only names that language models use: an encoder's max_len says nothing.
    """
    known = ("context_length", "block_size", "ctx_len", "context_len", "context_size", "n_ctx")
    names = [p.name for p in info.init if p.name.lower() in known]
    names += re.findall(rf"\.({'|'.join(known)})\b", text.code)
    for name in names:
        for line in text.code.splitlines():
            if re.search(rf"\b{re.escape(name)}\b", line) and re.search(
                r"(?i)embedding|position|\bpos|\brel|rope|rotary|arange|freq|randn|zeros", line
            ):
                return ""
    return names[0] if names else ""


def _switched_off(info: ClassInfo) -> bool:
    return any(
        re.search(r"causal|masked|^mask$", p.name.lower())
        and p.has_default
        and p.default in (False, None)
        for p in (*info.init, *info.forward)
    )  # fmt: skip
