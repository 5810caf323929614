"""The contents of an object that a submission built, and of what its forward pass returned.

Like worker.py, which imports it, this shares a process with code that may be hostile: see there.
"""

import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from inspect import getattr_static
from types import FunctionType, MethodType, ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy

from clearhead.checker.sandbox.recorded_arrays import RecordedArray

Tensors = dict[str, Tensor]
LETTERS = 4000  # the most characters of a string

_from_numpy = torch.from_numpy


def json_value(value: object) -> object:
    """The value if JSON can represent it, else None."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < 2**63 else None
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return str(value)[:LETTERS] if isinstance(value, str) else None


class Config(dict[str, Any]):
    """A configuration object for every style: `c.n_head`, `c["n_head"]`, `c.get(..)`, `**c`.

    What it was not given, it takes from the file's own classes: defaults, properties and methods.
    """

    homes: ClassVar[tuple[type, ...]] = ()

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        missing = object()
        for home in () if name.startswith("__") else Config.homes:
            found = getattr_static(home, name, missing)
            if isinstance(found, property) and found.fget is not None:
                return found.fget(self)
            if isinstance(found, FunctionType):
                return MethodType(found, self)
            if found is None or isinstance(found, bool | int | float | str):
                return found
        raise AttributeError(f"the config has no {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class KeysAndValues:
    """A cache of past keys and values, such as Hugging Face models pass to their layers."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def update(
        self, keys: Tensor, values: Tensor, layer: int = 0, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Add keys and values, (.., tokens, head_dim), and return all of them."""
        layer = layer if isinstance(layer, int) else 0
        if layer in self.layers:
            keys, values = (
                torch.cat(pair, -2) for pair in zip(self.layers[layer], (keys, values), strict=True)
            )
        self.layers[layer] = keys, values
        return keys, values

    def get_seq_length(self, layer: int | None = 0) -> int:
        """How many tokens it holds."""
        return self.layers[layer or 0][0].shape[-2] if (layer or 0) in self.layers else 0

    def __len__(self) -> int:
        return len(self.layers)


def cast(module: Module, dtype: torch.dtype) -> None:
    """Cast a module's floating-point tensors; complex buffers (rotary angles) stay complex."""
    complex_ones = [
        (part, name, buffer)
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None and buffer.is_complex()
    ]
    for part, name, _ in complex_ones:
        part._buffers[name] = None
    module.to(dtype)
    wide = torch.complex128 if dtype == torch.float64 else torch.complex64
    for part, name, buffer in complex_ones:
        part._buffers[name] = buffer.to(wide)


def array_type() -> Any:
    """The type of numpy's arrays; () as long as numpy is not imported."""
    return getattr(sys.modules.get("numpy"), "ndarray", ())


def knows_only_numpy(owner: object) -> bool:
    """Whether the file of an object imports numpy, but not torch."""
    names = vars(sys.modules.get(type(owner).__module__, object)).values()
    homes = {one.__name__.partition(".")[0] for one in names if isinstance(one, ModuleType)}
    return "numpy" in homes and "torch" not in homes


def flatten(value: object) -> tuple[str, list[Tensor]]:
    """What a forward pass returned: its kind, and the tensors inside, in order."""
    if isinstance(value, Tensor):
        return "tensor", [value]
    if isinstance(value, array_type()):
        return "tensor", [_from_numpy(value.copy())]
    if isinstance(value, RecordedArray):
        return "tensor", [value.tensor]
    if value is None:
        return "none", []
    if isinstance(value, tuple | list | Mapping):
        items = value.values() if isinstance(value, Mapping) else value
        inside = [tensor for item in items for tensor in flatten(item)[1]]
        kinds = {tuple: "tuple", list: "list"}
        return next((kinds[kind] for kind in kinds if isinstance(value, kind)), "dict"), inside
    return "other", []


def tensors_below(
    value: object, path: str, kind: Any = Tensor, depth: int = 3
) -> Iterator[tuple[str, Any]]:
    """Tensors (or objects of another type) in an attribute: `heads[0].W_query.weight`."""
    if isinstance(value, kind):
        yield path, value
    elif isinstance(value, Module):
        yield from ((f"{path}.{name}", tensor) for name, tensor in value.named_parameters())
    elif isinstance(value, list | tuple | dict) and depth:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from tensors_below(item, f"{path}[{key!r}]", kind, depth - 1)


def kind_of(module: Module) -> str:
    """A module's class; for a group norm, with the number of its groups: "GroupNorm 8"."""
    name = type(module).__name__
    groups = json_value(getattr(module, "num_groups", None)) if name == "GroupNorm" else None
    return f"{name} {groups}" if isinstance(groups, int) else name


_NO_WEIGHT = re.compile(r"(?i)grad|^d_?[wb](_|$)|^d_?[qkvo](?![a-z])")


def _own(found: Iterable[tuple[str, Tensor]]) -> Tensors:
    """Floating-point tensors, each under its first name only, without those for gradients."""
    held: Tensors = {}
    seen = set[tuple[int, torch.Size]]()  # a view of another shape is a weight of its own
    for path, tensor in found:
        if tensor.layout != torch.strided or tensor.is_meta or not tensor.is_floating_point():
            continue
        memory = tensor.data_ptr(), tensor.shape
        if memory not in seen and not _NO_WEIGHT.search(path):
            held[path] = tensor
        seen.add(memory)
    return held


class Leaves:
    """The tensors and attributes of a built object, found by name.

    For an object that is not an `nn.Module`, the modules among its attributes are its parts, and
    the floating-point tensors or numpy arrays are its parameters; those here share their memory.
    """

    def __init__(self, built: object) -> None:
        self.parameters: Tensors = {}
        self.stray: Tensors = {}
        self.modules: dict[str, str] = {}
        self.plain: dict[str, object] = {}
        if isinstance(built, Module):
            self.add_module(built, "")
        self.add_attributes(built, "")
        self.loose = not isinstance(built, Module)
        if self.loose:
            self.parameters |= _own(self.stray.items())
            self.stray = {n: one for n, one in self.stray.items() if n not in self.parameters}
        self.arrays = not (self.parameters or self.stray) and self.add_arrays(built)
        for name, value in getattr(built, "__dict__", {}).items():
            if type(value) in (bool, int, float, str) and not name.startswith("_"):
                self.plain[name] = json_value(value)
        self.plain.pop("training", None)

    def add_arrays(self, owner: object) -> bool:
        """Take the arrays of an object without tensors; return whether it computes with arrays."""
        if isinstance(owner, Module):
            return False
        own = getattr(owner, "__dict__", {})
        found = (one for name in own for one in tensors_below(own[name], name, array_type()))
        self.parameters |= _own(
            (path, _from_numpy(array))
            for path, array in found
            if array.flags.writeable and min(array.strides, default=0) >= 0  # all torch supports
            if array.dtype.kind == "f"
        )
        return bool(self.parameters) or knows_only_numpy(owner)

    def add_module(self, module: Module, prefix: str) -> None:
        """Take the registered tensors of a module and of the modules inside it."""
        for name, tensor in module.named_parameters(prefix, remove_duplicate=False):
            if not is_lazy(tensor):
                self.parameters[name] = tensor
        for path, inner in module.named_modules(prefix=prefix):
            if path:
                self.modules[path] = kind_of(inner)
            if inner is not module or prefix:
                self.add_attributes(inner, path)

    def add_attributes(self, owner: object, path: str) -> None:
        """Take the tensors that an object holds without registering them."""
        for name, value in getattr(owner, "__dict__", {}).items():
            here = f"{path}.{name}" if path else name
            if isinstance(value, Module) and not isinstance(owner, Module):
                self.add_module(value, here)
            elif name not in ("_parameters", "_buffers", "_modules") and (
                f"{here}_orig" not in self.parameters  # otherwise spectral_norm computes it
            ):
                self.stray.update(tensors_below(value, here))
