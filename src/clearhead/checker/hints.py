"""What a look at the source tells: which line, and which of several equal explanations.

The source never decides whether a class is right: it may only choose among explanations that
reproduce the output equally, and say where to look.
"""

import ast
import re
from dataclasses import dataclass

from clearhead.checker.isolate import ClassInfo

_SCORES = r"@.*(transpose|\.T\b|\.mT|permute)|matmul|einsum|bmm|scaled_dot_product"
_ROOT = r"sqrt|\*\*\s*\(?-?\s*0?\.5|\*\*\s*\(?-?1\s*/\s*2|scale"
_SPLIT = r"\.(view|reshape|unflatten)\(.*head|rearrange|\.(view|reshape)\("
_MERGE = r"\.(view|reshape|flatten)\(|rearrange|concat|cat\("
_MASK = r"tril|triu|masked_fill|is_causal|attn_mask|where\(|mask"

_LINES: dict[str, tuple[str, ...]] = {
    "missing-scale": (_SCORES,),
    "scale-by-d-out": (_ROOT,),
    "scale-multiplied": (_ROOT,),
    "scale-after-softmax": (r"softmax.*\)\s*[/*]", r"(weights|attn\w*|probs)\s*[/*]", _ROOT),
    "scale-twice": (_ROOT, r"/", _SCORES),
    "no-return": (r"def forward",),
    "heads-ignored": (r"head", r"def __init__"),
    "values-detached": (r"detach\(|no_grad|\.data\b",),
    "wrong-gain": (r"softmax",),
    "softmax-over-everything": (r"softmax",),
    "keys-viewed-not-transposed": (r"k\w*\.(view|reshape)\(", _SCORES),
    "heads-share-weights": (r"\]\s*\*", r"ModuleList"),
    "projections-in-other-order": (r"chunk|split|unbind",),
    "wrong-scale": (_ROOT, _SCORES),
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
    "mask-inverted": (r"masked_fill|where\(", r"(tril|triu)\(", _MASK),
    "sdpa-mask-polarity": (r"scaled_dot_product_attention",),
    "mask-fill-not-inf": (r"masked_fill|where\(|\[.*mask.*\]\s*=|scores?\s*\*\s*", _MASK),
    "mask-added-not-filled": (r"\+\s*(self\.)?\w*mask|\+=.*mask|tri[lu]", _MASK),
    "mask-after-softmax": (r"softmax\(.*\)\s*\*", r"(weights|attn\w*|probs?|att)\s*\*=?", _MASK),
    "mask-fill-too-small": (r"masked_fill|where\(|-\s*1e?\d", _MASK),
    "mask-fill-overflows-half": (r"masked_fill|-\s*1e\d|where\(", _MASK),
    "mask-not-sliced": (r"masked_fill|where\(", _MASK),
    "mask-ignored": (r"def forward", _MASK),
    "mask-not-a-buffer": (r"self\.\w+\s*=.*(tri[lu]|ones|mask)",),
    "padding-inverted": (r"masked_fill|where\(", _MASK),
    "scale-is-stray-tensor": (r"self\.\w+\s*=.*(tensor|Tensor|sqrt)",),
    "split-without-transpose": (_SPLIT,),
    "merge-without-transpose": (_MERGE,),
    "heads-folded-into-batch": (r"\.(view|reshape)\(.*\*", _SPLIT),
    "heads-interleaved": (_MERGE,),
    "heads-summed": (r"\.?(sum|mean)\(.*(dim|axis|1)", r"sum\(|mean\(|\+="),
    "concat-on-wrong-axis": (r"cat\(|concat\(|stack\(",),
    "one-head-only": (r"return", _MERGE),
    "query-key-swapped": (_SCORES,),
    "out-proj-unused": (r"return",),
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
}  # fmt: skip
_ASSIGNED = {"key-from-query-weights": "k", "value-from-keys": "v", "query-from-key-weights": "q",
             "value-from-queries": "v", "key-from-value-weights": "k", "value-not-projected": "v",
             "key-not-projected": "k", "query-not-projected": "q"}  # fmt: skip


@dataclass(frozen=True)
class Text:
    """The source of one class, with its place in the file."""

    source: str
    first: int
    name: str

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
    return Text(
        "\n".join(lines[max(info.line - 1, 0) : info.end_line]), max(info.line, 1), info.name
    )


def locate(id: str, text: Text) -> int | None:
    """The line where we think a mistake is."""
    if id in _ASSIGNED:
        letter = _ASSIGNED[id]
        word = {"q": "quer", "k": "key", "v": "val"}[letter]
        return text.line(rf"^\s*({word}\w*|{letter})\b[^=]*=", rf"\b{letter}\b.*=", word)
    patterns = _LINES.get(id)
    merging = id in ("merge-without-transpose", "heads-interleaved", "heads-summed")
    return text.line(*patterns, last=merging) if patterns else None


def dropped_mask(text: Text) -> int | None:
    """The line where masked_fill's result is thrown away, if there is one."""
    try:
        tree = ast.parse("if True:\n" + text.source if text.source[:1] in " \t" else text.source)
    except SyntaxError:
        return None
    shift = 1 if text.source[:1] in " \t" else 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function = node.value.func
            if isinstance(function, ast.Attribute) and function.attr in (
                "masked_fill", "where", "masked_scatter", "add", "mul", "tril", "triu",
            ):  # fmt: skip
                return text.first + node.lineno - 1 - shift
    return None


def hints_of(text: Text) -> dict[str, float]:
    """Which mistakes the source makes likely, to choose among equal explanations."""
    found: dict[str, float] = {}
    code = text.code
    if re.search(
        r"(view|reshape)\([^)\n]*\w*(head|\bh\b|nh)\w*\s*\*|(view|reshape)\([^)\n]*\*\s*(self\.)?(n_?|num_?)?(h\b|nh\b|n?_?heads?)",
        code,
    ):
        merged = re.search(
            r"(view|reshape)\(\s*(b|B|batch\w*|bs|bsz|N|x\.shape\[0\]|x\.size\(0\))\s*\*", code
        )
        found["heads-folded-into-batch"] = 3.0 if merged else 0.2
    elif re.search(r"(view|reshape)\(", code):
        found["heads-folded-into-batch"] = -1.0
    if re.search(r"softmax\([^\n]*dim\s*=\s*(-2|1|0|2)\b|softmax\([^\n]*,\s*(-2|1|0|2)\)", code):
        found["softmax-over-queries"] = 0.5
        found["softmax-over-heads"] = 0.5
    if re.search(r"tril|triu", code):
        found["mask-inverted"] = 0.1
    return found


def expects_causal(text: Text, info: ClassInfo, takes_mask: bool) -> bool:
    """Whether a class means to be causal: its name, its mask, its context length."""
    built_in = text.has(r"\btril|\btriu|is_causal\s*=\s*(True|self)|causal_mask|_causal\(")
    if takes_mask:
        return text.has(r"\btril\(|\btriu\(|is_causal\s*=\s*True")
    if built_in or re.search(r"causal|masked|gpt|decoder|autoregress", info.name.lower()):
        return not _switched_off(info)
    names = {p.name.lower() for p in info.init}
    context = {"context_length", "block_size", "ctx_len", "context_len", "context_size", "n_ctx"}
    return bool(names & context) or text.has(r"\.(block_size|context_length|ctx_len|n_ctx)\b")


def _switched_off(info: ClassInfo) -> bool:
    return any(
        re.search(r"causal|masked|^mask$", p.name.lower())
        and p.has_default
        and p.default in (False, None)
        for p in (*info.init, *info.forward)
    )  # fmt: skip
