"""Failures that are loud: an error message, translated into the mistake behind it."""

import ast
import difflib
import re
from collections.abc import Iterable

import torch
from torch import nn

from clearhead.checker.harness.constructor_arguments import Sizes, meaning_for
from clearhead.checker.harness.weight_roles import role_of
from clearhead.checker.sandbox.submission import ClassInfo, Failure
from clearhead.checker.source.call_sites import class_node, last_name, method, parsed
from clearhead.checker.source.class_text import Text

_IN_PLACE = r"in-?place|leaf Variable that requires grad"
SIZE_MISMATCH = r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)"
_PRODUCT = r"mat1 and mat2 shapes cannot be multiplied \((\d+)x(\d+) and (\d+)x(\d+)\)"


def misspelled(info: ClassInfo) -> tuple[str, str] | None:
    """A method that was meant to be __init__ or forward: the id, and the name found."""
    methods = set(info.methods)
    if "__init__" not in methods:
        for name in info.methods:
            bare = name.removeprefix(f"_{info.name}").strip("_").lower()  # __init is mangled
            if bare in ("init", "int", "inti", "iinit", "initt", "ini", "inint"):
                return "misspelled-init", name
    if "forward" not in methods and "__call__" not in methods:
        for name in info.methods:
            bare = name.strip("_").lower()
            if name != "forward" and difflib.SequenceMatcher(None, bare, "forward").ratio() > 0.75:
                return "misspelled-forward", name
    return None


def translate(failure: Failure, stage: str, text: Text, sizes: Sizes) -> str | None:
    """The id of the mistake that gives this error, or None."""
    message = failure.message
    if re.search(
        r"before Module\.__init__\(\) call|super\(\)\.__init__|'__init__' of 'super' object",
        message,
    ) or (
        failure.type == "AttributeError"
        and re.search(
            r"has no attribute '_(modules|parameters|buffers|backward_hooks|forward_\w+)'", message
        )
    ):
        return "no-super-init"
    if re.search(r"view size is not compatible|\.reshape\(\.\.\.\) instead", message):
        return "view-after-transpose"
    if re.search(_IN_PLACE, message):
        return "in-place-breaks-autograd"
    if failure.type == "NotImplementedError" and "forward" in message:
        return "misspelled-forward"
    if failure.type == "NoTensor":
        return "no-return"
    if stage == "forward":
        return _shapes(message, text, sizes)
    return None


def _shapes(message: str, text: Text, sizes: Sizes) -> str | None:
    product = re.search(_PRODUCT, message)
    tokens, batch, heads = sizes.tokens, sizes.batch, sizes.heads
    if product:
        rows, width = int(product[1]), int(product[2])
        if rows == batch * tokens * heads and text.uses("cat( concat("):
            return "concat-on-wrong-axis"
        if rows == batch * tokens and width == sizes.head_dim and text.uses("sum( mean("):
            return "heads-summed"
    mismatch = re.search(SIZE_MISMATCH, message)
    if mismatch and {int(mismatch[1]), int(mismatch[2])} == {tokens, sizes.context}:
        return "mask-not-sliced"
    return None


def only_with_equal_widths(failure: Failure, text: Text, info: ClassInfo) -> str | None:
    """The mistake of a class that fails when d_in and d_out differ, and only then."""
    meanings = {meaning_for(p) for p in info.init}
    if "d_out" not in meanings or not meanings & {"d_in", "d"}:
        return None
    if re.search(
        r"shape '.*' is invalid for input|split_with_sizes|size mismatch, got|view", failure.message
    ):
        return "view-with-d-in"
    if "mat1 and mat2" in failure.message or "must match" in failure.message:
        there = [word for word, lines in text.words.items() if failure.line in lines]
        if "mat1" in failure.message and "o" in map(role_of, there):
            return "out-proj-takes-d-in"
        sums = (n for n in ast.walk(text.tree) if isinstance(n, ast.BinOp))
        added = (n for n in sums if isinstance(n.op, ast.Add))
        if any("x" in map(last_name, (n.left, n.right)) for n in added):
            return None  # a residual needs equal widths, rightly
        return "wrong-width" if "mat1" in failure.message else None
    return None


_NO_ATTRIBUTE = re.compile(r"^(?:'(\w+)' object|module '([\w.]+)') has no attribute '(\w+)'")
_NO_NAME = re.compile(r"^name '(\w+)' is not defined")
_WRONG_CALL = re.compile(r"^([\w.]+)\(\) (missing \d+ required|takes .*positional argument)")
_PLAIN = ("Module", "object", "ABC")
_MODULES = {"torch": torch, "torch.nn": nn, "torch.nn.functional": nn.functional}


def own_fault(failure: Failure, file: str) -> str:
    """What is wrong in the class's own code, if its error cannot come from what we passed; else "".

    Args:
        failure: What every attempt answered.
        file: The whole file.
    """
    if failure.line is None or failure.kind != "exception":
        return ""
    said, message = f"{failure.type}: {failure.message}"[:300], failure.message
    attribute, name = _NO_ATTRIBUTE.match(message), _NO_NAME.match(message)
    if attribute is not None:
        return _no_attribute(file, attribute, failure.line, said)
    defined = _defined(file)
    if name is not None and name[1] not in defined and "*" not in defined:
        return f"{said}. Nothing in the file defines {name[1]}.{_meant(name[1], defined)}"
    if failure.type == "UnboundLocalError":
        return f"{said}. Nothing is assigned to it before on this path."
    if "as child module" in message:
        return f"{said}. A layer already has this name."
    call = _WRONG_CALL.match(message)
    if call is not None and re.search(rf"\b{call[1].partition('.')[0]}\b", file):
        return f"{said}. The call is in your own code."
    return ""


ALWAYS_OWN = ("NameError", "UnboundLocalError")  # whatever is passed in


def _no_attribute(file: str, found: re.Match[str], line: int, said: str) -> str:
    owner, module, name = found.groups()
    if module in _MODULES or owner == "Tensor":
        meant = _meant(name, dir(torch.Tensor if owner else _MODULES[module]))
        return f"{said}.{meant}" if meant else ""
    node = class_node(file, owner or "")
    bases = [] if node is None else map(last_name, node.bases)
    if node is None or any(b not in _PLAIN and class_node(file, b) is None for b in bases):
        return ""  # something else may set it
    inside = list(ast.walk(parsed(file)))
    known = {n.name for n in inside if isinstance(n, ast.FunctionDef)}
    names = (n for n in inside if isinstance(n, ast.Attribute | ast.Name))
    known |= {last_name(n) for n in names if isinstance(n.ctx, ast.Store)}
    if name not in known | {n.value for n in inside if isinstance(n, ast.Constant)}:
        return f"{said}. Nothing sets self.{name}.{_meant(name, known, 'self.')}"
    init = method(node, "__init__")
    later = [n.lineno for n in ([] if init is None else init.body) if isinstance(n, ast.Assign)
             and f"self.{name}" in map(ast.unparse, n.targets)]  # fmt: skip
    own = init is not None and init.lineno <= line <= (init.end_lineno or 0)
    if own and later and min(later) > line:
        return f"{said}. It is set later, in line {min(later)}."
    return ""


def _defined(file: str) -> set[str]:
    """The names that a file defines or imports at its top level; "*" after a star import."""
    found: set[str] = set()
    for node in parsed(file).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.alias):
                found.add((inner.asname or inner.name).partition(".")[0])
            elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                found.add(inner.id)
    return found


def _meant(name: str, known: Iterable[str], before: str = "") -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.75)
    return f" Did you mean {before}{near[0]}?" if near else ""
