"""The submission's side: run a file, then answer "classes", "build", "load", "forward", "backward".

This file shares its process with code that may be hostile, so nothing here is a defence: the parent
treats every answer as possibly forged. What is needed to answer is bound before the submission
runs, so that a careless monkey-patch of torch or json does not disturb an honest answer. It imports
only the standard library, torch, numpy, safetensors and its neighbours in this folder, so that it
starts quickly.
"""

import argparse
import ast
import contextlib
import inspect
import linecache
import os
import signal
import struct
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from json import dumps, loads
from keyword import iskeyword
from typing import Any, NamedTuple

import torch
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors
from torch import Tensor, nn
from torch.autograd import grad as differentiate
from torch.nn import Module

from clearhead.checker.sandbox.demonstration import Demonstration
from clearhead.checker.sandbox.missing_parts import (
    OnCpu,
    Siblings,
    is_stand_in,
    missing_names,
    run_file,
    wants_gpu,
)
from clearhead.checker.sandbox.object_contents import (
    LETTERS,
    Config,
    KeysAndValues,
    Leaves,
    cast,
    flatten,
    json_value,
)
from clearhead.checker.sandbox.pass_recorder import Recorder
from clearhead.checker.sandbox.recorded_arrays import RecordedArray, recorded_arrays

FRAME = struct.Struct(">4sIQ")  # magic, bytes of JSON, bytes of safetensors
MAGIC = b"CLR1"
MAX_JSON, MAX_TENSORS = 4 << 20, 256 << 20
MAX_NUMBERS = MAX_TENSORS // 4  # values of all parameters together, in whatever dtype they are sent
MAX_CLASSES = 200  # in one file
DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
FRAMES = 12

Header = dict[str, Any]
Tensors = dict[str, Tensor]
NOTHING: Header = {}

_getpid, _read, _write, _exit = os.getpid, os.read, os.write, os._exit
_seed = torch.default_generator.manual_seed
_no_grad, _enable_grad = torch.no_grad, torch.enable_grad
_plain_torch, _as_subclass = torch._C.DisableTorchFunctionSubclass, Tensor.as_subclass
_view_as_complex, _equal = torch.view_as_complex, torch.equal
_set_timer: Any = getattr(signal, "setitimer", None)  # missing on Windows, as is the sandbox


def revive(value: Any, tensors: Tensors, held: Header = NOTHING) -> Any:
    """JSON to arguments: `{"__config__": {..}}`, `{"__tensor__": name}` become objects.

    `{"__returned__": index}` is a part of what the last forward pass returned, and
    `{"__kept__": ..}` is created once, so that later passes get the same object. A list of integers
    becomes a tuple.
    """
    if isinstance(value, list):
        items = [revive(item, tensors, held) for item in value]
        return tuple(items) if items and all(type(item) is int for item in items) else items
    if isinstance(value, dict):
        if set(value) == {"__tensor__"}:
            return tensors[value["__tensor__"]]
        if set(value) == {"__complex__"}:
            return _view_as_complex(tensors[value["__complex__"]])
        if set(value) == {"__returned__"}:
            return held["returned"][value["__returned__"]]
        if set(value) == {"__kept__"}:
            if "kept" not in held:
                held["kept"] = revive(value["__kept__"], tensors)
            return held["kept"]
        if set(value) == {"__object__", "arguments", "keywords"}:
            given, named = (revive(value[part], tensors) for part in ("arguments", "keywords"))
            return callable_named(value["__object__"])(*given, **named)
        if set(value) == {"__callable__", "else"}:
            return callable_named(value["__callable__"]) or callable_named(value["else"])
        if set(value) == {"__config__"}:
            return Config(revive(value["__config__"], tensors))
        return {name: revive(item, tensors, held) for name, item in value.items()}
    return value


def callable_named(name: str) -> Any:
    """A class or function of the submission, or a layer of torch; None if there is none.

    A method of a class is `Name.method`.
    """
    if name == KeysAndValues.__name__:
        return KeysAndValues
    home, _, part = name.partition(".")
    homes = (sys.modules.get("submission"), nn, nn.functional)
    found = (getattr(one, home, None) for one in homes)
    found = (getattr(one, part, None) if part else one for one in found)
    return next((one for one in found if callable(one)), None)


def without_numbers(tensor: Tensor) -> str:
    """What kind of tensor it is, if its values cannot be sent; else ""."""
    if tensor.is_meta:
        return 'a tensor of the device "meta", which has none'
    if tensor.layout != torch.strided:
        return f"a tensor of the layout {tensor.layout}"
    return "" if tensor.dtype in DTYPES else f"a tensor of the dtype {tensor.dtype}"


def plain_tensor(tensor: Tensor) -> Tensor | None:
    """The values alone, on the CPU, without subclass or graph; None if they cannot be sent."""
    with _plain_torch(), _no_grad():
        tensor = _as_subclass(tensor, Tensor)
        if without_numbers(tensor):
            return None
        if tensor.numel() * tensor.element_size() > MAX_TENSORS:
            raise ValueError(
                f"a tensor of shape {tuple(tensor.shape)} is too large: "
                f"at most {MAX_TENSORS >> 20} MiB can be inspected"
            )
        return tensor.detach().cpu().contiguous().clone()


def parameters_of(function: object) -> list[Header]:
    """The parameters of a function without `self`; none if Python cannot tell."""
    try:
        found = list(inspect.signature(function).parameters.values())  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return []
    return [
        {
            "name": one.name,
            "kind": one.kind.name,
            "has_default": one.default is not one.empty,
            "default": None if one.default is one.empty else json_value(one.default),
            "annotation": ""
            if one.annotation is one.empty
            else inspect.formatannotation(one.annotation)[:LETTERS],
        }
        for one in found[1:]
    ]


def named(name: str) -> bool:
    """Whether a name is valid in Python's syntax: `setattr` and `type` accept any string."""
    return name.isidentifier() and not iskeyword(name)


def describe_class(cls: type, lines: tuple[int, int]) -> Header:
    """What is known about a class without building it."""
    forward = getattr(cls, "forward", None)
    if forward is None or forward is getattr(Module, "forward", None):
        forward = vars(cls).get("__call__")
    return {
        "name": cls.__name__,
        "line": lines[0],
        "end_line": lines[1],
        "is_module": issubclass(cls, Module),
        "init": [] if cls.__init__ is object.__init__ else parameters_of(cls.__init__),  # type: ignore[misc]
        "forward": [] if forward is None else parameters_of(forward),
        "methods": [n for n, value in vars(cls).items() if inspect.isfunction(value) and named(n)],
        "bases": [base.__name__ for base in cls.__bases__ if named(base.__name__)],
    }


class TookTooLong(BaseException):
    """The submission is still running shortly before its time is up."""


@contextlib.contextmanager
def interrupted(seconds: float | None) -> Iterator[None]:
    """Raise after this time, so that the running line is known; the parent ends it anyway."""
    if seconds is None:
        yield
        return

    def ring(*_: object) -> None:
        raise TookTooLong(f"it was still running after {seconds:.2g} s")

    signal.signal(signal.SIGALRM, ring)
    _set_timer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        _set_timer(signal.ITIMER_REAL, 0)


@contextlib.contextmanager
def without_sdpa() -> Iterator[None]:
    """PyTorch without its fused attention, for `hasattr(F, "scaled_dot_product_attention")`.

    A class that checks for it then creates what its own code needs instead.
    """
    functional = nn.functional
    fused = functional.scaled_dot_product_attention
    del functional.scaled_dot_product_attention
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = fused


class Known(NamedTuple):
    """A class that can be built, the lines where it is defined, and the callable that builds it."""

    cls: type
    lines: tuple[int, int]
    make: Callable[..., object]


class Worker:
    """Answers questions about the classes of one file, or about one class of this process.

    Args:
        own: Whether a file name is the submission's; tracebacks show only such frames.
        catch: What counts as the submission's failure. A notebook's own process must not catch
            KeyboardInterrupt; a separate process catches everything.
    """

    def __init__(self, own: Callable[[str], bool], catch: type[BaseException]) -> None:
        self.own = own
        self.catch = catch
        self.alone = catch is BaseException  # in a separate process
        self.known: dict[str, Known] = {}
        self.built: object = None
        self.arrays = False  # it computes with numpy
        self.loaded: set[str] = set()  # names; arrays with other names are left over from a call
        self.as_array: Callable[[Tensor], object] = Tensor.numpy
        self.held: Header = {}  # "returned" by the last forward pass, and "kept" between them
        self.on_cpu = False  # it has asked for a GPU
        self.space: dict[str, Any] = {}  # the file's namespace
        self.stood_in: set[str] = set()  # names from missing modules that were given a value

    def answer(
        self, question: str, fields: Header, tensors: Tensors, seconds: float | None = None
    ) -> tuple[Header, Tensors]:
        """Answer one question; an exception becomes {"failure": ..}.

        A question that fails because there is no GPU is asked again on the CPU.

        Args:
            question: What is asked.
            fields: Its arguments.
            tensors: The tensors among them, by name.
            seconds: When to interrupt the submission; None lets it run.
        """
        given = dict(tensors)
        header, found = self.try_answer(question, fields, tensors, seconds)
        if "failure" in header and self.on_cpu and header.pop("again", False):
            return self.try_answer(question, fields, given, seconds)
        return header, found

    def try_answer(
        self, question: str, fields: Header, tensors: Tensors, seconds: float | None
    ) -> tuple[Header, Tensors]:
        """Answer one question once."""
        try:
            with OnCpu() if self.on_cpu else contextlib.nullcontext(), interrupted(seconds):
                header, values = getattr(self, f"do_{question}")(tensors=tensors, **fields)
            sent = {name: plain_tensor(tensor) for name, tensor in values.items()}
            size = sum(t.numel() * t.element_size() for t in sent.values() if t is not None)
            if size > MAX_TENSORS:
                raise ValueError(f"{size >> 20} MiB of tensors are too many to inspect")
            return header, {name: t for name, t in sent.items() if t is not None}
        except self.catch as error:
            again = wants_gpu(error) and not self.on_cpu
            self.on_cpu |= again
            return {"failure": self.failure(error)} | ({"again": True} if again else {}), {}

    def failure(self, error: BaseException) -> Header:
        """What went wrong, and where in the submission's file."""
        frames = [
            one for one in traceback.extract_tb(error.__traceback__) if self.own(one.filename)
        ]
        line = frames[-1].lineno if frames else None
        if isinstance(error, SyntaxError) and self.own(error.filename or ""):
            line = error.lineno
        try:
            message = str(error)
            last = "".join(traceback.format_exception_only(error))
        except Exception as lie:  # the submission's own __str__
            message = last = f"(its message could not be read: {type(lie).__name__})"
        text = "".join(traceback.format_list(frames[-FRAMES:])) + last
        no_memory = isinstance(error, MemoryError) or "can't allocate memory" in message
        late = isinstance(error, TookTooLong)
        return {
            "kind": "memory" if no_memory else "timeout" if late else "exception",
            "type": "" if late else type(error).__name__[:LETTERS],
            "message": message[:LETTERS],
            "line": line,
            "traceback": text[-2 * LETTERS :],
        }

    def do_start(
        self, tensors: Tensors, source: str, filename: str, siblings: dict[str, str] | None = None
    ) -> tuple[Header, Tensors]:
        """Run the file as a module named "submission", not as a program."""
        if siblings:
            sys.meta_path.append(Siblings(siblings))
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        module = types.ModuleType("submission")
        module.__file__ = filename
        if filename.endswith(".ipynb"):
            vars(module)["display"] = print
        sys.modules["submission"] = module
        tree = ast.parse(source, filename)
        notes = run_file(tree, filename, vars(module))
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        where = {node.name: (node.lineno, node.end_lineno or node.lineno) for node in nodes}
        for cls in vars(module).values():
            if isinstance(cls, type) and cls.__module__ == "submission" and cls.__name__ in where:
                self.known[cls.__name__] = Known(cls, where[cls.__name__], cls)
        self.space = vars(module)
        return {"notes": notes, "missing": missing_names(self.space)}, {}

    def do_classes(self, tensors: Tensors) -> tuple[Header, Tensors]:
        """The classes defined in the file, from top to bottom."""
        ordered = sorted(self.known.values(), key=lambda one: one.lines)
        if len(ordered) > MAX_CLASSES:
            raise ValueError(f"{len(ordered)} classes in one file: at most {MAX_CLASSES} are read")
        return {"classes": [describe_class(one.cls, one.lines) for one in ordered]}, {}

    def do_build(
        self,
        tensors: Tensors,
        name: str,
        arguments: list[Any],
        keywords: Header,
        constants: Header | None = None,
        switches: Header | None = None,
    ) -> tuple[Header, Tensors]:
        """Build an object of a class; the random initial values are always the same.

        `constants` are values for names that the file imports from missing modules, `switches` are
        values for attributes once it is built.
        """
        for known, value in (constants or {}).items():
            if is_stand_in(self.space.get(known)) or known in self.stood_in:
                self.space[known] = value
                self.stood_in.add(known)
        if name not in self.known:
            raise NameError(f"there is no class {name!r}; there are: {', '.join(self.known)}")
        _seed(0)
        Config.homes = tuple(k.cls for k in self.known.values() if not issubclass(k.cls, Module))
        self.built, self.held = None, {}
        with without_sdpa() if switches and self.alone else contextlib.nullcontext():
            self.built = self.known[name].make(
                *revive(arguments, tensors), **{n: revive(v, tensors) for n, v in keywords.items()}
            )
        for attribute, value in (switches or {}).items():
            setattr(self.built, attribute, value)
        return self.do_describe(tensors)

    def do_demonstrate(self, tensors: Tensors, body: str) -> tuple[Header, Tensors]:
        """Run the file's own demonstration, and keep the first module that it calls."""
        _seed(0)
        self.built, self.held = None, {}
        self.built = Demonstration(body, self.space)
        return self.do_describe(tensors)

    def do_describe(self, tensors: Tensors) -> tuple[Header, Tensors]:
        """Parameters, stray tensors and attributes, as they are now."""
        leaves = Leaves(self.built)
        numbers = 0
        with _plain_torch():
            for name, tensor in leaves.parameters.items():
                numbers += tensor.numel()
                if kind := without_numbers(tensor):
                    raise ValueError(f"parameter {name}: expected plain numbers, got {kind}")
        if numbers > MAX_NUMBERS:
            raise ValueError(f"{numbers:,} numbers in its parameters: at most {MAX_NUMBERS:,}")
        header: Header = {"parameters": list(leaves.parameters), "stray": list(leaves.stray)}
        header |= {"modules": leaves.modules, "plain": leaves.plain}
        header["arrays"] = self.arrays = leaves.arrays
        header["loose"] = leaves.loose
        return header, dict(leaves.parameters)

    def do_load(self, tensors: Tensors) -> tuple[Header, Tensors]:
        """Set parameters by name and cast the module to their dtype."""
        self.loaded = set(tensors)
        leaves = Leaves(self.built)
        targets = leaves.stray | leaves.parameters
        for name, value in tensors.items():
            if name not in targets:
                raise KeyError(f"no parameter {name!r}; there are: {', '.join(targets)}")
            if targets[name].shape != value.shape:
                wanted, got = tuple(targets[name].shape), tuple(value.shape)
                raise ValueError(f"{name}: expected shape {wanted}, got {got}")
        dtype = next((value.dtype for value in tensors.values() if value.is_floating_point()), None)
        own_parts = vars(self.built).values() if hasattr(self.built, "__dict__") else ()
        for part in (self.built, *own_parts):
            if dtype is not None and isinstance(part, Module):
                cast(part, dtype)
        leaves = Leaves(self.built)
        targets = leaves.stray | leaves.parameters
        for name, value in tensors.items():
            if leaves.arrays:
                targets[name].copy_(value)
            else:
                targets[name].data = value.clone()
        return {}, {}

    def call(
        self, arguments: list[Any], keywords: Header, train: bool, seed: int, applies: Any
    ) -> object:
        """One forward pass."""
        if self.built is None:
            raise RuntimeError("nothing is built yet: ask build first")
        if isinstance(self.built, Module):
            self.built.train(train)
        _seed(seed)
        if self.arrays:
            as_array = self.as_array
            arguments = [as_array(one) if isinstance(one, Tensor) else one for one in arguments]
            keywords = {n: as_array(v) if isinstance(v, Tensor) else v for n, v in keywords.items()}
        forward = self.built if callable(self.built) else self.built.forward  # type: ignore[attr-defined]
        result = forward(*arguments, **keywords)
        return result if applies is None else self.applied(result, applies, arguments, keywords)

    def applied(self, result: Any, applies: Any, arguments: list[Any], keywords: Header) -> Tensor:
        """The memory, weighted by what a class returns that gives the weights alone.

        Args:
            result: What the class returned.
            applies: Which argument is the memory, and whether its tokens come first.
            arguments: What the class got.
            keywords: The same, by name.
        """
        name, first = applies
        known = inspect.signature(self.built.forward)  # type: ignore[attr-defined]
        memory: Tensor = known.bind(*arguments, **keywords).arguments[name]
        memory = memory.transpose(0, 1) if first else memory
        weights = flatten(result)[1][0].reshape(len(memory), 1, -1)
        return (weights @ memory).squeeze(1)

    def do_forward(
        self,
        tensors: Tensors,
        inputs: list[Any],
        keywords: Header,
        train: bool,
        seed: int,
        applies: Any = None,
    ) -> tuple[Header, Tensors]:
        """The output for these inputs, without gradients, and which inputs it changed in place."""
        before = {name: tensor.clone() for name, tensor in tensors.items()}
        positional, named = (revive(given, tensors, self.held) for given in (inputs, keywords))
        with _no_grad():
            self.held["returned"] = self.call(positional, named, train, seed, applies)
        header, found = self.output(self.held["returned"])
        with _plain_torch():
            changed = [name for name, old in before.items() if not _equal(old, tensors[name])]
        return header | {"changed": changed}, found

    def do_record(
        self,
        tensors: Tensors,
        inputs: list[Any],
        keywords: Header,
        train: bool,
        seed: int,
        applies: Any = None,
    ) -> tuple[Header, Tensors]:
        """A forward pass, recorded call by call."""
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}  # it may change them
        leaves = Leaves(self.built)
        named = {("input", name): tensor for name, tensor in tensors.items()}
        parameters = {
            name: tensor
            for name, tensor in leaves.parameters.items()
            if name in self.loaded or not self.arrays
        }
        named |= {("parameter", name): tensor for name, tensor in parameters.items()}
        recorder = Recorder(named, self.own)
        positional, by_name = (revive(given, tensors, self.held) for given in (inputs, keywords))
        with _no_grad(), recorder, self.recorded_arrays(parameters):
            self.held["returned"] = self.call(positional, by_name, train, seed, applies)
        if recorder.problem:
            raise ValueError(f"the pass could not be recorded: {recorder.problem}")
        header, found = self.output(self.held["returned"])
        _, results = flatten(self.held["returned"])
        outputs = [recorder.register(one) for one in results]
        header |= {"calls": recorder.calls, "leaves": recorder.leaves, "outputs": outputs}
        return header, found | recorder.constants

    @contextlib.contextmanager
    def recorded_arrays(self, parameters: Tensors) -> Iterator[None]:
        """Replace numpy arrays with tensors while a pass is recorded."""
        if not self.arrays:
            yield
            return
        with recorded_arrays(self.built, parameters):
            self.as_array = RecordedArray
            try:
                yield
            finally:
                self.as_array = Tensor.numpy

    def output(self, result: object) -> tuple[Header, Tensors]:
        """An output as its kind and its named tensors."""
        structure, found = flatten(result)
        with _plain_torch():
            fine = [one for one in found if one.dtype in DTYPES and one.layout == torch.strided]
        if len(fine) < len(found):
            structure = "other"
        named = {f"output.{i}": tensor for i, tensor in enumerate(fine)}
        return {"structure": structure, "tensors": list(named)}, named

    def do_own_backward(
        self,
        tensors: Tensors,
        inputs: list[Any],
        keywords: Header,
        train: bool,
        seed: int,
        applies: Any = None,
    ) -> tuple[Header, Tensors]:
        """What the object's own `backward(gradient)` returns after a forward pass."""
        given: Any = tensors.pop("cotangent")
        with _no_grad():
            self.call(revive(inputs, tensors), revive(keywords, tensors), train, seed, applies)
            if self.arrays:
                given = self.as_array(given)
            return self.output(self.built.backward(given))  # type: ignore[attr-defined]

    def do_backward(
        self,
        tensors: Tensors,
        inputs: list[Any],
        keywords: Header,
        train: bool,
        seed: int,
        applies: Any = None,
    ) -> tuple[Header, Tensors]:
        """The gradients of sum(first output * cotangent)."""
        cotangent = tensors.pop("cotangent")
        leaves = {
            name: tensor.detach().requires_grad_()
            for name, tensor in tensors.items()
            if tensor.is_floating_point()
        }
        # In a model the inputs are not leaves, and a leaf cannot be changed in place.
        given = tensors | {name: leaf.clone() for name, leaf in leaves.items()}
        with _enable_grad():
            result = self.call(revive(inputs, given), revive(keywords, given), train, seed, applies)
            _, found = self.output(result)
            parameters = Leaves(self.built).parameters
            wanted = {f"input.{name}": leaf for name, leaf in leaves.items()}
            wanted |= {f"parameter.{n}": p for n, p in parameters.items() if p.requires_grad}
            if not found:
                raise ValueError("the forward pass returned no tensor to differentiate")
            first = found["output.0"]
            if first.shape != cotangent.shape:
                shapes = f"{tuple(cotangent.shape)}, got {tuple(first.shape)}"
                raise ValueError(f"output: expected shape {shapes}")
            grads: tuple[Tensor | None, ...] = (None,) * len(wanted)
            if first.requires_grad:
                # With a cotangent, torch would first import a symbolic library: half a second.
                loss = (first * cotangent.to(first.dtype)).sum()
                grads = differentiate(loss, list(wanted.values()), allow_unused=True)
        named = {name: one for name, one in zip(wanted, grads, strict=True) if one is not None}
        learned = [name for name, parameter in parameters.items() if parameter.requires_grad]
        gradients = {f"gradient.{name}": one for name, one in named.items()}
        return {"parameters": learned}, gradients


def receive(reader: int) -> tuple[Header, Tensors] | None:
    """The next question; None when the parent has closed its end."""

    def take(count: int) -> bytes:
        data = bytearray()
        while len(data) < count and (piece := _read(reader, min(count - len(data), 1 << 20))):
            data += piece
        return bytes(data)

    start = take(FRAME.size)
    if len(start) < FRAME.size:
        return None
    _, text, blob = FRAME.unpack(start)
    header = loads(take(text))
    return header, read_tensors(take(blob)) if blob else {}


def pack(header: Header, tensors: Tensors) -> bytes:
    """One frame: sizes, JSON, safetensors."""
    text = dumps(header).encode()
    blob = write_tensors(tensors) if tensors else b""
    return FRAME.pack(MAGIC, len(text), len(blob)) + text + blob


def serve(reader: int, writer: int) -> None:
    """Answer questions until the parent closes its end."""
    torch.set_num_threads(1)
    # There is no command line here: a program's arguments keep their defaults.
    argparse.ArgumentParser.error = lambda *_: None  # type: ignore[assignment, method-assign]
    home = _getpid()
    name = ""
    worker = Worker(lambda file: file == name, BaseException)

    def send(header: Header, tensors: Tensors) -> None:
        left = memoryview(pack(header, tensors))
        while left:
            left = left[_write(writer, left) :]

    send({"id": 0}, {})
    while (request := receive(reader)) is not None:
        fields, tensors = request
        number, question, seconds = (fields.pop(name) for name in ("id", "question", "seconds"))
        name = fields.get("filename", name)
        header, found = worker.answer(question, fields, tensors, seconds)
        if _getpid() != home:
            _exit(1)  # a fork made by the submission got here: only the first process answers
        send({"id": number, **header}, found)
    _exit(0)
