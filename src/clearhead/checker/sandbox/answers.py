"""What comes back from a submission's process: plain data, each field validated before it is used.

An answer may be forged. Anything that does not have exactly the expected form raises `Forged`,
which `submission.py` turns into a Failure of kind "protocol".
"""

import functools
import json
import keyword
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from safetensors.torch import load as read_tensors
from torch import Tensor

from clearhead.checker.sandbox.worker import DTYPES, MAX_CLASSES, MAX_NUMBERS, Header, Tensors

MAX_ITEMS, MAX_NAME, MAX_TEXT, MAX_DIMS = 20_000, 500, 8_000, 16
STRUCTURES = ("tensor", "tuple", "list", "dict", "none", "other")


@dataclass(frozen=True)
class Failure:
    """A question that got no answer.

    Args:
        kind: "exception" (the submission's code raised), "timeout", "memory", "died" (the process
            ended) or "protocol" (an answer in a form that no honest process sends).
        type: The exception's class, for example "RuntimeError".
        message: The exception's message, or what happened.
        line: The last line of the submission's own file that was running.
        traceback: The frames inside the submission's file, then the message.
    """

    kind: str
    type: str = ""
    message: str = ""
    line: int | None = None
    traceback: str = ""

    @property
    def raised(self) -> bool:
        """Whether the submission's own code raised it; any other failure is no evidence."""
        return self.kind == "exception"


@dataclass(frozen=True)
class Parameter:
    """One parameter of a function; `kind` is the name in `inspect`: "POSITIONAL_OR_KEYWORD"..."""

    name: str
    kind: str
    has_default: bool
    default: object
    annotation: str


@dataclass(frozen=True)
class ClassInfo:
    """A class defined in the file; `init` and `forward` leave out `self`."""

    name: str
    line: int
    end_line: int
    is_module: bool
    init: tuple[Parameter, ...]
    forward: tuple[Parameter, ...]
    methods: tuple[str, ...]
    bases: tuple[str, ...]
    fields: tuple[tuple[str, object], ...] = ()  # read from a configuration, with any defaults


@dataclass(frozen=True)
class Built:
    """An object that was built.

    Args:
        weights: The values of the parameters. For an object that is not an `nn.Module`, those of
            the modules among its attributes.
        stray: Tensors that are neither parameters nor buffers, for example "mask", or
            "heads[0].W_query.weight" for modules in a plain list.
        modules: Path to class name: {"W_query": "Linear"}.
        plain: The int, float, bool and str attributes.
        arrays: Whether it computes with numpy: its arrays are the parameters, and it has no
            gradients.
        loose: Whether it is not an `nn.Module`, so that a parameter may also be a mask or a table.
    """

    weights: dict[str, Tensor]
    stray: tuple[str, ...]
    modules: dict[str, str]
    plain: dict[str, object]
    arrays: bool = False
    loose: bool = False

    @functools.cached_property
    def parameters(self) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter."""
        return {name: tuple(value.shape) for name, value in self.weights.items()}


@dataclass(frozen=True)
class Output:
    """What a forward pass returned.

    Args:
        tensors: The tensors in it, in order.
        structure: "tensor", "tuple", "list", "dict", "none" or "other".
        changed: The inputs that it changed in place: their positions, or their names.
    """

    tensors: tuple[Tensor, ...]
    structure: str
    changed: tuple[int | str, ...] = ()


@dataclass(frozen=True)
class Gradients:
    """Gradients for each input, in order, and for each parameter.

    None means that no gradient flows there, or that the input is not a floating-point tensor. A
    tensor passed twice is one input: its whole gradient is at both positions.
    """

    inputs: tuple[Tensor | None, ...]
    parameters: dict[str, Tensor | None]


@dataclass(frozen=True)
class Call:
    """One torch call of a recorded forward pass.

    Args:
        home: Where the function is: "torch", "F", "Tensor", "linalg", or "get" for a property.
        name: The function's name.
        args: Positional arguments as JSON; {"register": 3} is the tensor in register 3.
        kwargs: The same, by name.
        out: The registers of the results; -1 for a result that is not a tensor.
        line: The line of the submission that made the call.
    """

    home: str
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: tuple[int, ...]
    line: int | None


@dataclass(frozen=True)
class Leaf:
    """A tensor that no call created: "input", "parameter", "constant" or "complex" (as pairs)."""

    register: int
    kind: str
    name: str


@dataclass(frozen=True)
class Recording:
    """A recorded forward pass.

    Args:
        calls: What was called, in order.
        leaves: Where the first tensors come from.
        constants: The values of the leaves that are neither inputs nor parameters, by name.
        outputs: The registers of the returned tensors.
        output: What the pass returned.
    """

    calls: tuple[Call, ...]
    leaves: tuple[Leaf, ...]
    constants: dict[str, Tensor]
    outputs: tuple[int, ...]
    output: Output


class Forged(ValueError):
    """An answer in a form that no honest process sends."""


def clean(text: str, most: int = MAX_TEXT) -> str:
    """Text that is safe to print: no control characters, no lone surrogates, not too long."""
    text = text[:most].encode("utf-8", "replace").decode()
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def a_text(value: object, most: int = MAX_TEXT) -> str:
    """The value, if it is text."""
    if not isinstance(value, str) or len(value) > most:
        raise Forged(f"expected text of at most {most} letters, got {type(value).__name__}")
    return clean(value, most)


def a_name(value: object) -> str:
    """The value, if it is a short string."""
    return a_text(value, MAX_NAME)


def an_identifier(value: object) -> str:
    """The value, if it is a valid Python name: adapters are generated with such names."""
    name = a_name(value)
    if not name.isidentifier() or keyword.iskeyword(name):
        raise Forged(f"expected a name as Python allows it, got {name[:50]!r}")
    return name


def a_number(value: object, low: int = 0, high: int = 1 << 40) -> int:
    """The value, if it is an integer in a sensible range."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise Forged(f"expected a whole number from {low} to {high}")
    return value


def a_flag(value: object) -> bool:
    """The value, if it is true or false."""
    if not isinstance(value, bool):
        raise Forged(f"expected true or false, got {type(value).__name__}")
    return value


def a_list(value: object) -> list[Any]:
    """The value, if it is a list of sensible length."""
    if not isinstance(value, list) or len(value) > MAX_ITEMS:
        raise Forged(f"expected a list of at most {MAX_ITEMS} items, got {type(value).__name__}")
    return value


def a_table(value: object) -> dict[str, Any]:
    """The value, if it is a JSON object of sensible length with sensible names."""
    if not isinstance(value, dict) or len(value) > MAX_ITEMS:
        raise Forged(f"expected an object of at most {MAX_ITEMS} items")
    return {a_name(name): item for name, item in value.items()}


def a_plain(value: object) -> object:
    """The value, if it is None, bool, int, finite float or text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return a_number(value, -(2**63), 2**63)
    if isinstance(value, float) and math.isfinite(value):
        return value
    return a_text(value)


def read_header(text: bytes) -> Header:
    """JSON without NaN and Infinity; anything else raises."""

    def refuse(word: str) -> NoReturn:
        raise Forged(f"{word} in an answer")

    header = json.loads(text.decode("utf-8"), parse_constant=refuse)
    if not isinstance(header, dict):
        raise Forged("expected an object")
    return header


def read_blob(blob: bytes) -> Tensors:
    """Tensors from safetensors bytes: known dtypes and few dimensions only."""
    tensors = read_tensors(blob) if blob else {}
    if len(tensors) > MAX_ITEMS:
        raise Forged(f"{len(tensors)} tensors in one answer")
    for name, tensor in tensors.items():
        a_name(name)
        if tensor.dtype not in DTYPES or tensor.ndim > MAX_DIMS:
            raise Forged(f"a tensor of dtype {tensor.dtype} with {tensor.ndim} dimensions")
    return tensors


def read_failure(value: object) -> Failure:
    """A failure that the other side reports about itself."""
    fields = a_table(value)
    kind = a_name(fields["kind"])
    if kind not in ("exception", "memory", "timeout"):
        raise Forged(f"a failure of kind {kind!r}")
    line = fields["line"]
    return Failure(
        kind=kind,
        type=a_text(fields["type"]),
        message=a_text(fields["message"]),
        line=None if line is None else a_number(line),
        traceback=a_text(fields["traceback"]),
    )


def read_parameter(value: object) -> Parameter:
    """One parameter of a signature."""
    fields = a_table(value)
    return Parameter(
        name=an_identifier(fields["name"]),
        kind=a_name(fields["kind"]),
        has_default=a_flag(fields["has_default"]),
        default=a_plain(fields["default"]),
        annotation=a_text(fields["annotation"]),
    )


def read_class(value: object) -> ClassInfo:
    """One class."""
    fields = a_table(value)
    return ClassInfo(
        name=an_identifier(fields["name"]),
        line=a_number(fields["line"]),
        end_line=a_number(fields["end_line"]),
        is_module=a_flag(fields["is_module"]),
        init=tuple(read_parameter(item) for item in a_list(fields["init"])),
        forward=tuple(read_parameter(item) for item in a_list(fields["forward"])),
        methods=tuple(an_identifier(item) for item in a_list(fields["methods"])),
        bases=tuple(an_identifier(item) for item in a_list(fields["bases"])),
    )


def read_start(header: Header) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What was left out when the file ran, and the names whose modules are missing."""
    notes = tuple(a_name(note) for note in a_list(header.get("notes", [])))
    return notes, tuple(an_identifier(name) for name in a_list(header.get("missing", [])))


def read_classes(header: Header, tensors: Tensors) -> tuple[ClassInfo, ...]:
    """All classes."""
    found = a_list(header["classes"])
    if len(found) > MAX_CLASSES:
        raise Forged(f"{len(found)} classes in one file")
    return tuple(read_class(item) for item in found)


def read_built(header: Header, tensors: Tensors) -> Built:
    """An object; the value of every parameter must be there."""
    names = [a_name(name) for name in a_list(header["parameters"])]
    for name in names:
        if name not in tensors:
            raise Forged(f"{name}: its numbers were not sent")
    if sum(tensors[name].numel() for name in names) > MAX_NUMBERS:
        raise Forged("more numbers than an honest process sends")
    return Built(
        weights={name: tensors[name] for name in names},
        stray=tuple(a_name(name) for name in a_list(header["stray"])),
        modules={path: a_name(name) for path, name in a_table(header["modules"]).items()},
        plain={name: a_plain(value) for name, value in a_table(header["plain"]).items()},
        arrays=a_flag(header.get("arrays", False)),
        loose=a_flag(header.get("loose", False)),
    )


def read_output(header: Header, tensors: Tensors) -> Output:
    """An output."""
    structure = a_name(header["structure"])
    names = [a_name(name) for name in a_list(header["tensors"])]
    if structure not in STRUCTURES or not all(name in tensors for name in names):
        raise Forged(f"an output of kind {structure!r} with tensors that were not sent")
    if (structure == "tensor" and len(names) != 1) or (structure == "none" and names):
        raise Forged(f"an output of kind {structure!r} with {len(names)} tensors")
    changed = tuple(a_name(name) for name in a_list(header.get("changed", [])))
    return Output(tuple(tensors[name] for name in names), structure, changed)


def read_gradients(
    header: Header, tensors: Tensors, inputs: list[str | None], given: Mapping[str, Tensor]
) -> Gradients:
    """Gradients; the gradient of an input must have the input's shape.

    Args:
        header: The answer.
        tensors: The tensors that came with it.
        inputs: For each input, the name under which it was sent; None if it is not a tensor.
        given: The tensors that were sent.
    """
    found = [None if name is None else tensors.get(f"gradient.input.{name}") for name in inputs]
    for name, gradient in zip(inputs, found, strict=True):
        if name is not None and gradient is not None and gradient.shape != given[name].shape:
            raise Forged("the gradient of an input does not have the input's shape")
    names = [a_name(name) for name in a_list(header["parameters"])]
    parameters = {name: tensors.get(f"gradient.parameter.{name}") for name in names}
    return Gradients(tuple(found), parameters)


def an_argument(value: object, depth: int = 0) -> Any:
    """The value, if it is an argument in the recorder's format."""
    if depth > 6:
        raise Forged("an argument that is nested too deeply")
    if isinstance(value, dict):
        if len(value) != 1:
            raise Forged("an argument of unknown form")
        ((kind, inner),) = value.items()
        if kind == "register":
            return {kind: a_number(inner)}
        if kind in ("slice", "list", "tuple"):
            return {kind: [an_argument(item, depth + 1) for item in a_list(inner)]}
        if kind in ("float", "dtype", "memory_format"):
            return {kind: a_name(inner)}
        if kind in ("ellipsis", "device"):
            return {kind: True}
        raise Forged(f"an argument of kind {a_name(kind)!r}")
    return a_plain(value)


def read_call(value: object) -> Call:
    """One call of a recording."""
    fields = a_table(value)
    line = fields["line"]
    return Call(
        home=a_name(fields["home"]),
        name=a_name(fields["name"]),
        args=tuple(an_argument(item) for item in a_list(fields["args"])),
        kwargs={name: an_argument(item) for name, item in a_table(fields["kwargs"]).items()},
        out=tuple(a_number(item, low=-1) for item in a_list(fields["out"])),
        line=None if line is None else a_number(line),
    )


def read_recording(header: Header, tensors: Tensors) -> Recording:
    """A recorded forward pass."""
    leaves = []
    for item in a_list(header["leaves"]):
        fields = a_table(item)
        leaf = Leaf(a_number(fields["register"]), a_name(fields["kind"]), a_name(fields["name"]))
        if leaf.kind in ("constant", "complex") and leaf.name not in tensors:
            raise Forged(f"{leaf.name}: its numbers were not sent")
        leaves.append(leaf)
    return Recording(
        calls=tuple(read_call(item) for item in a_list(header["calls"])),
        leaves=tuple(leaves),
        constants={n: tensor for n, tensor in tensors.items() if n.startswith("constant.")},
        outputs=tuple(a_number(item) for item in a_list(header["outputs"])),
        output=read_output(header, tensors),
    )
