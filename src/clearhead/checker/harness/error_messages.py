"""Failures that are loud: an error message, translated into the mistake behind it."""

import difflib
import re

from clearhead.checker.harness.constructor_arguments import Sizes, meaning_for
from clearhead.checker.sandbox.submission import ClassInfo, Failure
from clearhead.checker.source.text_patterns import Text

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
        if rows == batch * tokens * heads and text.has(r"cat\(|concat"):
            return "concat-on-wrong-axis"
        if rows == batch * tokens and width == sizes.head_dim and text.has(r"sum\(|mean\("):
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
        line = ""
        if failure.line is not None:
            lines = text.source.splitlines()
            place = failure.line - text.first
            line = lines[place] if 0 <= place < len(lines) else ""
        if re.search(r"proj|out|fc|W_?o\b|w_?o\b|dense|linear", line) and "mat1" in failure.message:
            return "out-proj-takes-d-in"
        if re.search(r"\+\s*x\b|\bx\s*\+", text.code):
            return None  # a residual needs equal widths, rightly
        return "wrong-width" if "mat1" in failure.message else None
    return None
