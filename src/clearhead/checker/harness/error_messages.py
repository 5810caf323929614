"""Failures that raise an error: its message, translated into the mistake behind it."""

import ast
import builtins
import difflib
import re
import sys
from collections.abc import Collection, Iterable

import torch
from torch import nn

from clearhead.checker.harness.constructor_arguments import Sizes, meaning_for
from clearhead.checker.harness.weight_roles import role_of
from clearhead.checker.sandbox.submission import ClassInfo, Failure
from clearhead.checker.source.call_sites import (
    assignments,
    class_node,
    family_of,
    fields_read,
    last_name,
    method,
    parsed,
)
from clearhead.checker.source.class_text import Text

_IN_PLACE = r"in-?place|leaf Variable that requires grad"
SIZE_MISMATCH = r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)"
PRODUCT = r"mat1 and mat2 shapes cannot be multiplied \((\d+)x(\d+) and (\d+)x(\d+)\)"


def misspelled(info: ClassInfo) -> tuple[str, str] | None:
    """A method that was meant to be __init__ or forward: the mistake's id, and the name found."""
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
    """The id of the mistake that causes this error, or None."""
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
    product = re.search(PRODUCT, message)
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
    """The mistake in a class that fails only when d_in and d_out differ."""
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
        if any(_adds_x(node) for node in ast.walk(text.tree)):
            return None  # a residual connection rightly needs equal widths
        return "wrong-width" if "mat1" in failure.message else None
    return None


def _adds_x(node: ast.AST) -> bool:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
        return False
    return "x" in map(last_name, (node.left, node.right))


_NO_ATTRIBUTE = re.compile(r"^(?:'(\w+)' object|module '([\w.]+)') has no attribute '(\w+)'")
_NO_NAME = re.compile(r"^name '(\w+)' is not defined")
_WRONG_CALL = re.compile(r"^([\w.]+)\(\) (missing \d+ required|takes .*positional argument)")
# A function in place of a number, and an equation that does not fit its operands.
_NEVER_RIGHT = (
    r"'(numpy\.ufunc|builtin_function_or_method|method)'|"
    r"einsum\(\): (fewer|more) operands were provided than specified in the equation"
)
_GIVES_TUPLE = r"MultiheadAttention\(|\b(LSTM|GRU|RNN)\("
_FLOAT_SIZE = re.compile(r"ints?\b.* (of type|got|not) '?\(?float|float.* as an integer")
_MODULES = {
    "torch": torch, "torch.nn": nn, "torch.nn.functional": nn.functional,
    "torch.functional": torch.functional,
}  # fmt: skip


def own_fault(failure: Failure, file: str, info: ClassInfo, missing: Collection[str]) -> str:
    """What is wrong in the class's own code, if the arguments cannot be to blame; else "".

    Args:
        failure: The failure of every attempt.
        file: The whole file.
        info: The class.
        missing: Names that the file imports from missing modules.
    """
    if failure.line is None or failure.kind != "exception":
        return ""
    said, line, message = f"{failure.type}: {failure.message}"[:300], failure.line, failure.message
    if "'tuple' object has no attribute" in message and re.search(_GIVES_TUPLE, file):
        return f"{said}. This PyTorch layer returns a tuple."
    attribute, name = _NO_ATTRIBUTE.match(message), _NO_NAME.match(message)
    if attribute is not None:
        return _no_attribute(file, attribute, line, missing, said)
    if name is not None and name[1] not in _defined(file):
        return f"{said}. Nothing in the file defines {name[1]}.{_meant(name[1], _defined(file))}"
    if failure.type == "UnboundLocalError":
        return f"{said}. Nothing is assigned to it before on this path."
    if "Explicit attn_mask should not be set when is_causal" in message:
        return f"{said}. Both are passed to scaled_dot_product_attention."
    halved = _divided(file, info, line) if _FLOAT_SIZE.search(message) else ""
    if halved:
        return f"{said}. {halved}"
    if re.search(_NEVER_RIGHT, message) or _of_a_size(file, message, line):
        return f"{said}. No input changes that."
    if "as child module" in message:
        return f"{said}. A layer already has this name."
    words = re.findall(r"\w+", message) if _NO_OPERAND.search(message) else ()
    layer = next((word for word in words if _is_layer(file, word)), "")
    if layer:
        return f"{said}. {layer} is a layer: call it with the tensor, self.layer(x)."
    if failure.type in ("TypeError", "AttributeError") and _fails_when_defined(file, line):
        return f"{said}. The definition itself fails, whatever is passed in later."
    call = _WRONG_CALL.match(message)
    passed = message.startswith("Identity.") and "Identity" not in file  # in place of a layer
    if call is not None and not passed:
        known = "." in call[1] or call[1] in _defined(file)
        if _of_numbers(file, call[1], line) or (known and not _may_be_ours(file, info, line)):
            return f"{said}. The call is in your own code."
    return ""


_NO_OPERAND = re.compile(r"unsupported operand type|must be Tensor, not")


def _is_layer(file: str, name: str) -> bool:
    """Whether a class of the file, or of torch.nn, is a module."""
    known = getattr(nn, name, None)
    if isinstance(known, type) and issubclass(known, nn.Module):
        return name != "Identity"  # may stand for what was passed in
    node = class_node(file, name)
    return node is not None and any("Module" in ast.unparse(base) for base in node.bases)


def _fails_when_defined(file: str, line: int) -> bool:
    """Whether a class or function fails when it is defined, by names of Python or torch alone."""
    for node in parsed(file).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            for inner in ast.walk(node):
                bodies = [inner.body] if isinstance(inner, ast.FunctionDef) else []
                if any(b[0].lineno <= line <= (b[-1].end_lineno or 0) for b in bodies):
                    return False  # it runs when the function is called
            if node.lineno <= line <= (node.end_lineno or 0):
                imports = [
                    n for n in ast.walk(parsed(file)) if isinstance(n, ast.Import | ast.ImportFrom)
                ]
                homes = {n.module or "" for n in imports if isinstance(n, ast.ImportFrom)}
                homes |= {one.name for n in imports if isinstance(n, ast.Import) for one in n.names}
                return {home.partition(".")[0] for home in homes} <= {
                    *sys.stdlib_module_names,
                    "torch",
                    "numpy",
                }
    return False


ALWAYS_OWN = ("NameError", "UnboundLocalError")  # regardless of what is passed in


def _no_attribute(
    file: str, found: re.Match[str], line: int, missing: Collection[str], said: str
) -> str:
    owner, module, name = found.groups()
    if module in _MODULES or owner == "Tensor":
        known = dir(torch.Tensor if owner else _MODULES[module])
        meant = _meant(name, known)
        if module and hasattr(nn.functional, name):
            meant = f" It is in torch.nn.functional: torch.nn.functional.{name}."
        return f"{said}.{meant}" if meant else ""
    node = class_node(file, owner or "")
    if node is None or {ast.unparse(base) for base in node.bases} & set(missing):
        return ""
    family = family_of(file, node)
    plain = ("nn.Module", "Module", "torch.nn.Module", "object", "ABC", "abc.ABC")
    bases = [base for one in family for base in map(ast.unparse, one.bases)]
    if any(base not in plain and class_node(file, base) is None for base in bases):
        return ""
    if name in provided(heirs_of(file, node)):
        return ""  # a base class, whose subclasses provide the attribute
    texts = {n.value for one in family for n in ast.walk(one) if isinstance(n, ast.Constant)}
    set_in = provided(family)
    if name not in set_in and name not in texts:
        return f"{said}. Nothing sets self.{name}.{_meant(name, set_in, 'self.')}"
    init = method(node, "__init__")
    later = [n.lineno for n in ([] if init is None else init.body) if isinstance(n, ast.Assign)
             and f"self.{name}" in map(ast.unparse, n.targets)]  # fmt: skip
    own = init is not None and init.lineno <= line <= (init.end_lineno or 0)
    if own and later and min(later) > line:
        return f"{said}. It is set later, in line {min(later)}."
    return ""


def provided(classes: Iterable[ast.ClassDef]) -> set[str]:
    """The attributes that these classes set, and the methods and fields that they have."""
    found = set()
    for node in (inner for one in classes for inner in ast.walk(one)):
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if ast.unparse(node.value) == "self" else set()
        elif isinstance(node, ast.ClassDef):
            fields = (n for part in node.body if not hasattr(part, "args") for n in ast.walk(part))
            found |= {n.id for n in fields if isinstance(n, ast.Name)}
    return found


def heirs_of(file: str, node: ast.ClassDef) -> list[ast.ClassDef]:
    """The subclasses of a class in a file, and the other bases of those subclasses."""
    classes = [n for n in ast.walk(parsed(file)) if isinstance(n, ast.ClassDef)]
    family = {n.name: family_of(file, n) for n in classes}
    heirs = [n for n in classes if n is not node and node in family[n.name]]
    return [one for heir in heirs for one in family[heir.name] if one is not node]


def _defined(file: str) -> set[str]:
    """The names that a file may define or import; every name, if there is a star import."""
    found = set(dir(builtins))
    tree = parsed(file)
    top = [node for node in tree.body if not _is_main(node)]
    for node in (inner for one in top for inner in ast.walk(one)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {(one.asname or one.name).partition(".")[0] for one in node.names}
            if "*" in names:
                return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
            found |= names
    for node in top:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        else:
            stored = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
            found |= {n.id for n in stored if isinstance(n.ctx, ast.Store)}
    return found


def _is_main(node: ast.stmt) -> bool:
    """Whether a statement runs only if the file is run as a script."""
    return isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)


def _may_be_ours(file: str, info: ClassInfo, line: int) -> bool:
    """Whether a line calls what was passed in, or passes it on: `norm_layer(*args)`."""
    given = {p.name for p in (*info.init, *info.forward)}
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or 0):
            several = any(isinstance(one, ast.Starred) for one in node.args)
            several |= any(one.arg is None for one in node.keywords)
            root = node.func
            while isinstance(root, ast.Attribute | ast.Subscript):
                root = root.value
            passed = isinstance(node.func, ast.Name) and node.func.id in given
            if several or passed or not isinstance(root, ast.Name | ast.Call):
                return True
    return False


def _of_numbers(file: str, name: str, line: int) -> bool:
    """Whether a method is called on a line with constants only: `x.transpose(0, 2, 1, 3)`."""
    return any(
        isinstance(node, ast.Call)
        and node.lineno <= line <= (node.end_lineno or 0)
        and last_name(node.func) == name
        and node.args
        and all(isinstance(one, ast.Constant) for one in node.args)
        for node in ast.walk(parsed(file))
    )


_NO_TENSOR = re.compile(r"(?:(\w+)\(\): argument .* be Tensor, not int|'int' object is not iter)")
_COMPUTED = re.compile(r"//|\.shape\b|\.size\(")


def _of_a_size(file: str, message: str, line: int) -> bool:
    """Whether a function of tensors, or a loop, gets an integer that the code computes."""
    found, given = _NO_TENSOR.match(message), list[ast.expr]()
    scope = ast.Module(
        [n for n in parsed(file).body if n.lineno <= line <= (n.end_lineno or 0)], []
    )
    for node in ast.walk(scope) if found is not None else ():
        if isinstance(node, ast.Call) and found and last_name(node.func) == found[1]:
            given += node.args[:1] if node.lineno <= line <= (node.end_lineno or 0) else []
        elif isinstance(node, ast.For | ast.ListComp | ast.GeneratorExp) and node.lineno == line:
            given.append(node.iter if isinstance(node, ast.For) else node.generators[0].iter)
    names, values = {*map(ast.unparse, given)}, [*given]
    for target, value in assignments(scope):
        several = target.elts if isinstance(target, ast.Tuple) else [target]
        values += [value] if names & {*map(ast.unparse, several)} else []
    made = [one for one in map(ast.unparse, values) if one not in names or _COMPUTED.search(one)]
    return bool(made) and all(map(_COMPUTED.search, made))


def _divided(file: str, info: ClassInfo, line: int) -> str:
    """A sentence on a number in a line that was computed with / and is no integer; "" if none."""
    inside = list(ast.walk(class_node(file, info.name) or parsed(file)))
    read = {
        ast.unparse(n)
        for n in inside
        if isinstance(n, ast.Attribute | ast.Name) and n.lineno == line
    }
    for node in inside:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.BinOp):
            continue
        name = ast.unparse(node.targets[0])
        if isinstance(node.value.op, ast.Div) and name in read:
            return f"{name} is computed with / in line {node.lineno}; // gives an integer."
    return ""


def _meant(name: str, known: Iterable[str], before: str = "") -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.75)
    return f" Did you mean {before}{near[0]}?" if near else ""


def objects_wanted(failure: Failure, file: str, info: ClassInfo) -> str:
    """A sentence on an argument of forward that is a custom object; "" if there is none."""
    forward = method(class_node(file, info.name), "forward", "__call__")
    for parameter in info.forward if forward is not None else ():
        read = fields_read(file, forward, parameter.name) if forward is not None else {}
        fields = [f"{parameter.name}.{name}" for name in read if not hasattr(torch.Tensor, name)]
        if fields:
            return (
                f"forward reads {', '.join(fields[:4])}: it expects a custom object, "
                "such as a graph, and the checker can pass only tensors."
            )
        if re.search(r"edge_index|^graph$|edge_attr", parameter.name):
            return f"{parameter.name} is a graph's edges: attention on graphs is not supported."
    return ""
