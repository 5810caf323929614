"""Record a forward pass: every torch call, with its line, as a list that can be replayed.

Like worker.py, which imports it, this shares a process with code that may be hostile: see there. A
recording is a proposal. The parent replays it on its own inputs, and trusts only the result.
"""

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

MAX_CALLS = 3_000
MAX_CONSTANTS = 48 << 20  # bytes of tensors that are neither inputs nor parameters
# Random numbers are recorded as the constants that they were: weights created in forward, say.
_DRAWS = {
    *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal"),
    *("uniform_", "normal_", "bernoulli_", "exponential_"),
}
_IN_PLACE = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__"}
_OF_TYPE = type(torch.FloatTensor)
_no_grad = torch.no_grad


class NotRecorded(ValueError):
    """The pass cannot be recorded: too long, or with arguments that have no plain form."""


def home_of(func: Any) -> tuple[str, str]:
    """Where a function is found, and its name: ("F", "softmax"), ("Tensor", "view"), ...

    Examples:
        >>> home_of(torch.matmul), home_of(Tensor.view), home_of(F.softmax)
        (('torch', 'matmul'), ('Tensor', 'view'), ('F', 'softmax'))
    """
    name = func.__name__
    if name == "__get__":
        return "get", func.__self__.__name__
    if name.startswith("linalg_"):
        return "linalg", name.removeprefix("linalg_")
    for home, owner in (("torch", torch), ("F", F), ("Tensor", Tensor)):
        if getattr(owner, name, None) is func:
            return home, name
    module = getattr(func, "__module__", None)
    return ("torch" if module == "torch.functional" else "Tensor"), name


def is_in_place(name: str) -> bool:
    """Whether a call changes its first argument.

    Examples:
        >>> is_in_place("masked_fill_"), is_in_place("__setitem__"), is_in_place("__getitem__")
        (True, True, False)
    """
    return name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))


class Recorder(TorchFunctionMode):
    """Records the calls of one forward pass.

    Args:
        named: Tensors that are known by name: ("input", "0"), ("parameter", "W_query.weight").
        own: Whether a file name belongs to the submission.
    """

    def __init__(self, named: dict[tuple[str, str], Tensor], own: Callable[[str], bool]) -> None:
        super().__init__()
        self.calls: list[dict[str, Any]] = []
        self.leaves: list[dict[str, Any]] = []
        self.constants: dict[str, Tensor] = {}
        self.problem = ""
        self._own = own
        self._registers: dict[int, int] = {}
        self._held: list[object] = []  # an id is unique only while its object lives
        self._count = 0
        self._bytes = 0
        for (kind, name), tensor in named.items():
            self.leaves.append({"register": self.new(tensor), "kind": kind, "name": name})

    def new(self, tensor: Tensor) -> int:
        """A new register for this tensor; later uses of the tensor refer to this register."""
        self._registers[id(tensor)] = self._count
        self._held.append(tensor)
        self._count += 1
        return self._count - 1

    def register(self, tensor: Tensor) -> int:
        """The register of a tensor; a tensor not seen before becomes a constant."""
        found = self._registers.get(id(tensor))
        if found is not None:
            return found
        with _no_grad():
            plain = tensor.detach().clone()
        self._bytes += plain.numel() * plain.element_size()
        if self._bytes > MAX_CONSTANTS:
            raise NotRecorded("its constants are too large")
        if plain.is_complex():
            plain = torch.view_as_real(plain)
            kind = "complex"
        else:
            kind = "constant"
        number = self.new(tensor)
        self.leaves.append({"register": number, "kind": kind, "name": f"constant.{number}"})
        self.constants[f"constant.{number}"] = plain
        return number

    def encode(self, value: Any) -> Any:
        """An argument as JSON."""
        if isinstance(value, Tensor):
            return {"register": self.register(value)}
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"float": str(float(value))}
        if isinstance(value, slice):
            return {"slice": [self.encode(v) for v in (value.start, value.stop, value.step)]}
        if value is Ellipsis:
            return {"ellipsis": True}
        if isinstance(value, _OF_TYPE):  # x.type(torch.FloatTensor)
            value = value.dtype
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": True}
        if isinstance(value, torch.memory_format):
            return {"memory_format": str(value).removeprefix("torch.")}
        if isinstance(value, list | tuple):
            kind = "list" if isinstance(value, list) else "tuple"
            return {kind: [self.encode(item) for item in value]}
        if hasattr(value, "item") and hasattr(value, "dtype"):  # a numpy scalar
            return self.encode(value.item())
        raise NotRecorded(f"an argument of type {type(value).__name__}")

    def line(self) -> int | None:
        """The line of the submission that is running."""
        frame = sys._getframe(2)
        while frame is not None:
            if self._own(frame.f_code.co_filename):
                return frame.f_lineno
            frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
        return None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the call, and record it."""
        kwargs = kwargs or {}
        if self.problem or not hasattr(func, "__name__"):
            return func(*args, **kwargs)
        if getattr(func, "__module__", "") == "clearhead.kernels" and func.__name__ == "attend":
            # Our own attention is a single call here; its eager kernel shows the steps.
            eager = func.__globals__["eager"]
            scale = kwargs.get("scale") or args[0].shape[-1] ** -0.5
            with self:
                return eager.attend(*args[:4], scale, kwargs.get("dropout", 0.0))
        home, name = home_of(func)
        if name in _DRAWS or getattr(func, "__module__", "") == "torch.nn.init":
            out = func(*args, **kwargs)
            self._registers.pop(id(out), None)
            return out
        try:
            if len(self.calls) >= MAX_CALLS:
                raise NotRecorded(f"more than {MAX_CALLS} calls")
            written = {
                "home": home,
                "name": name,
                "args": [self.encode(one) for one in args],
                "kwargs": {key: self.encode(one) for key, one in kwargs.items()},
                "line": self.line(),
            }
        except NotRecorded as problem:
            self.problem = str(problem) or "it cannot be recorded"
            return func(*args, **kwargs)
        out = func(*args, **kwargs)
        results = list(out) if isinstance(out, list | tuple) else [out]
        in_place = is_in_place(name) or kwargs.get("inplace") is True
        moved = any(isinstance(one, torch.device) for one in (*args, *kwargs.values()))
        if in_place and args and isinstance(args[0], Tensor):
            results = [args[0]]
        elif len(results) == 1 and id(results[0]) in self._registers and not moved:
            return out  # x.contiguous(), x.to(x.dtype): the same tensor
        if any(isinstance(one, Tensor) for one in results):
            kept = [self.new(one) if isinstance(one, Tensor) else -1 for one in results]
            self.calls.append(written | {"out": kept})
        return out
