"""Which classes of a file are attention: by name, or failing that, by what they compute."""

import ast
import re
from collections.abc import Sequence

from torch import Tensor

from clearhead.checker.diagnosis import probes
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.error_messages import heirs_of, provided
from clearhead.checker.harness.subject import Inputs, Subject
from clearhead.checker.harness.weight_roles import role_of
from clearhead.checker.report import Report
from clearhead.checker.sandbox.submission import ClassInfo
from clearhead.checker.source.call_sites import class_node, family_of, last_name, method, usage_of
from clearhead.checker.source.class_text import Text, text_of, used_by

_NAMED = r"att|mha|gqa|mqa|head|aten[cç]|aufmerk|k[oö]e?pf|cabe[zç]|t[eê]te|внима|注意"
_OTHERS = (
    r"block|mlp|feed|embed|model$|transformer$|encoder$|decoder$|config|lmhead|classif|cache|test|"
    r"mask$"
)
# A name with such an ending says what the class is, not what it belongs to.
_CLAIMS = r"(att(ention|n)?|mha|gqa|mqa|aten[cç]\w*|aufmerksamkeit)(_?v?\d+)?$"
# Words of the code; see `Text.line_with`.
_WHOLE = "~scaled_dot_product ~multiheadattention ~flex_attention ~flash_attn"
_SOFT = "~softmax ~logsumexp exp("
_PRODUCT = "@ matmul( einsum( bmm( baddbmm( tensordot( dot("
_QUERIES = "~quer ~qkv key keys Key Keys q_proj k_proj wq wk w_q w_k Wq Wk W_q W_k to_q to_k ~att("
# What a block or a model has besides its attention.
_MODEL = "~gelu ~relu ~silu ~swish ~embedding( ~vocab ~cross_entropy ~crossentropy"
_MORE = f"{_MODEL} ~tanh ~embedding ~layernorm ~layer_norm ~rmsnorm ~rms_norm"
NO_ATTENTION = (
    "Nothing in it says that it is attention, and no token sees another: a norm or a layer for "
    "each token alone, perhaps."
)


# Terms for attention over channels, as in XCiT, Restormer, DaViT and EdgeNeXt.
_CHANNELS = r"(?i)channel[\w-]*[ _-]?att|covarian|\bxca\b|\bmdta\b|transposed[\w -]*attention"
OVER_CHANNELS = (
    "Its source speaks of attention over channels, in which features are compared and the tokens "
    "are summed. This kind of attention is not judged."
)


def is_over_channels(text: Text) -> bool:
    """Whether a class says that it attends over channels, where scores without tokens are right."""
    return re.search(_CHANNELS, f"{text.name}\n{text.source}") is not None


def is_attention(info: ClassInfo) -> bool:
    """Whether a class looks like attention, judging by its name."""
    small = info.name.lower()
    return bool(re.search(_NAMED, small)) and not re.search(_OTHERS, small)


def choose(classes: Sequence[ClassInfo], source: str, only: str | None = None) -> list[ClassInfo]:
    """The attention classes of a file, by their names; only the class `only`, if given."""
    if only is not None:
        named = [info for info in classes if info.name == only]
        return [info for info in named if not _is_base(info, classes, source)]
    modules = [info for info in classes if info.is_module]
    bases = {info.name for info in modules if _is_base(info, classes, source)}
    modules = [info for info in modules if info.name not in bases]
    named = [i for i in modules if is_attention(i) or bases & {*i.bases}]
    if named:
        return [info for info in named if may_attend(text_of(source, info))] or named
    if len(modules) == 1:
        return modules
    return [info for info in classes if info.forward and not info.is_module and is_attention(info)]


def _is_base(info: ClassInfo, classes: Sequence[ClassInfo], source: str) -> bool:
    """Whether a class computes nothing without what its subclasses in the file add."""
    node = class_node(source, info.name)
    heirs = [] if node is None else heirs_of(source, node)
    if node is None or not any(i.forward for i in classes if class_node(source, i.name) in heirs):
        return False
    forward = method(node, "forward", "__call__")
    if forward is None or not any(isinstance(n, ast.Return) for n in ast.walk(forward)):
        return forward is not None or not info.forward
    own = (n for n in ast.walk(forward) if isinstance(n, ast.Attribute))
    read = {n.attr for n in own if isinstance(n.value, ast.Name) and n.value.id == "self"}
    return bool((read - provided(family_of(source, node))) & provided(heirs))


def holds_attention(source: str) -> bool:
    """Whether a file may define attention, judging by its names or by what it computes."""
    text = Text(source, 1, "", source)
    nodes = [n for n in ast.walk(text.tree) if isinstance(n, ast.ClassDef | ast.FunctionDef)]
    named = any(re.search(_NAMED, node.name.lower()) for node in nodes)
    return bool(nodes) and (named or text.uses(f"{_WHOLE} {_SOFT}"))


def choose_unnamed(classes: Sequence[ClassInfo], source: str) -> list[ClassInfo]:
    """The classes that compute attention under another name, and those that only combine them.

    Blocks and models are left out: they contain more than that.
    """
    texts = {info.name: text_of(source, info) for info in classes if info.is_module}
    heads = {name for name, text in texts.items() if _attends(text) and not text.uses(_MODEL)}
    chosen = []
    for info in classes:
        if info.name not in texts:
            continue
        used = used_by(texts[info.name])
        around = {part.name for part in used} & heads
        more = any(part.uses(_MORE) for part in (texts[info.name], *used))
        if info.name in heads or (around and not more):
            chosen.append(info)
    return chosen


def choose_blocks(classes: Sequence[ClassInfo], source: str) -> list[ClassInfo]:
    """The classes that themselves compute attention among other things: blocks, layers for sets."""
    modules = [info for info in classes if info.is_module and info.forward]
    return [info for info in modules if _attends(text_of(source, info))]


def owners_of(classes: Sequence[ClassInfo], source: str, inner: str) -> list[ClassInfo]:
    """The classes of a file that build another one and may be checked in its place."""
    found = [info for info in classes if info.name == inner]
    names = usage_of(source, found[0]).owners if found else ()
    return [info for info in classes if info.name in names and info.is_module and info.forward]


def _attends(text: Text, *, around: bool = False) -> bool:
    """Whether a class computes attention weights and applies them.

    Args:
        text: The class.
        around: Whether it may do so through other classes of the file.
    """
    used = [p for p in used_by(text) if around or not isinstance(p.tree, ast.ClassDef)]
    parts = [text, *used]
    whole = any(part.uses(_WHOLE) for part in parts)
    soft, product = (any(part.uses(sign) for part in parts) for sign in (_SOFT, _PRODUCT))
    return whole or (soft and product)


def may_attend(text: Text) -> bool:
    """Whether anything in a class, or in what it uses, may be a part of attention."""
    signs = f"{_WHOLE} {_SOFT} {_PRODUCT} {_QUERIES}"
    bases = text.tree.bases[:1] if isinstance(text.tree, ast.ClassDef) else []
    inherits = any(last_name(base) != "Module" for base in bases)
    return inherits or any(part.uses(signs) for part in (text, *used_by(text)))


def is_no_attention(case: Case, subject: Subject, inputs: Inputs, out: Tensor) -> bool:
    """Whether no token sees another in a class that does not claim to be attention.

    A class with queries and keys, or with such a name, is meant to be attention.
    """
    if {"q", "k", "qkv", "kv"} & {role_of(name) for name in subject.built.parameters}:
        return False
    if re.search(_CLAIMS, case.info.name.lower()):
        return False
    may = subject.separate or is_attention(case.info)
    if may and _attends(case.text, around=True):
        return False
    return out.shape[:2] == inputs[0].shape[:2] and not probes.sees_others(
        case.session, subject, inputs, out
    )


def left_out(reports: Sequence[Report], source: str = "") -> list[Report]:
    """The reports without those of classes that are not attention; all reports if none is.

    A class that could not be run by itself is left out if a class that builds it was judged: it was
    judged as part of that class.

    Args:
        reports: One for each class.
        source: The whole file.
    """
    kept = [r for r in reports if r.is_attention]
    judged = [class_node(source, r.cls) for r in kept if r.verdict in ("correct", "wrong")]
    inside = {n.id for one in judged if one for n in ast.walk(one) if isinstance(n, ast.Name)}
    kept = [r for r in kept if r.verdict != "error" or r.cls not in inside]
    return kept or list(reports)
