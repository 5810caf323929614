"""Numpy arrays as torch tensors, so that a pass written with numpy is recorded like any other.

`RecordedArray` supports numpy's functions and operators through numpy's own protocols, and computes
each of them with torch, where a recorder sees it. What has no counterpart here raises
`NotRecorded`. Like worker.py, this shares a process with code that may be hostile: see there.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin
from torch import Tensor

from clearhead.checker.sandbox.pass_recorder import NotRecorded


class RecordedArray(NDArrayOperatorsMixin):
    """An array whose values are a tensor.

    Args:
        tensor: The values.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        """An elementwise function, or a product: `exp`, `add`, `matmul`."""
        if method == "reduce":
            named = {"add": "sum", "maximum": "max", "minimum": "min"}.get(ufunc.__name__, "")
            return _call(named, inputs, keywords)
        if method != "__call__":
            raise NotRecorded(f"numpy's {ufunc.__name__}.{method}")
        return _call(ufunc.__name__, inputs, keywords)

    def __array_function__(self, function: Any, types: Any, args: Any, keywords: Any) -> Any:
        """Any other function: `einsum`, `where`, `concatenate`."""
        return _call(function.__name__, args, keywords)

    def __getattr__(self, name: str) -> Any:
        """A method that is a function too: `x.max(-1)` is `np.max(x, -1)`."""
        if name.startswith("__") or name not in _METHODS:
            raise AttributeError(f"numpy's array.{name} is not recorded")
        return lambda *args, **keywords: _call(name, (self, *args), keywords)

    def __getitem__(self, index: Any) -> Any:
        return _wrapped(self.tensor[_plain(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        value = _plain(value)
        self.tensor[_plain(index)] = value.to(self.tensor.dtype) if _is(value) else value

    def __len__(self) -> int:
        return len(self.tensor)

    def __iter__(self) -> Iterator[Any]:
        return iter([self[i] for i in range(len(self))])

    def __float__(self) -> float:
        return float(self.tensor)

    def __bool__(self) -> bool:
        return bool(self.tensor)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Leave the recording: anything computed from this is a constant."""
        return np.asarray(self.tensor.numpy(), dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        return tuple(self.tensor.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.tensor.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.tensor.numel()

    @property
    def dtype(self) -> Any:
        """The dtype of its values."""
        return np.dtype(str(self.tensor.dtype).removeprefix("torch."))

    @property
    def T(self) -> "RecordedArray":
        """The array with its axes reversed."""
        return RecordedArray(self.tensor.permute(*reversed(range(self.ndim))))


def _is(value: object) -> bool:
    return isinstance(value, Tensor)


def _plain(value: Any) -> Any:
    """An argument for torch."""
    if isinstance(value, RecordedArray):
        return value.tensor
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple | list):
        return type(value)(_plain(item) for item in value)
    return value


def _wrapped(value: Any) -> Any:
    if isinstance(value, Tensor):
        return RecordedArray(value)
    return [_wrapped(item) for item in value] if isinstance(value, tuple | list) else value


def _call(name: str, args: Any, keywords: Any) -> Any:
    """One of numpy's functions, computed by torch's."""
    out = keywords.pop("out", None)
    where = keywords.pop("where", True)
    if name not in _FUNCTIONS or where is not True:
        raise NotRecorded(f"numpy's {name or 'reduction'}")
    given = [_plain(one) for one in args]
    named = {_KEYWORDS.get(key, key): _plain(value) for key, value in keywords.items()}
    result = _wrapped(_FUNCTIONS[name](*given, **named))
    if out is not None:
        (target,) = out if isinstance(out, tuple) else (out,)
        if not isinstance(target, RecordedArray):
            raise NotRecorded(f"numpy's {name} into another array")
        target.tensor = result.tensor.to(target.tensor.dtype)
        return target
    return result


_KEYWORDS = {"axis": "dim", "keepdims": "keepdim"}


def _two(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of two arrays, one of which may be a number; both get the same dtype."""

    def call(x: Any, y: Any) -> Tensor:
        if _is(x) and _is(y):
            wide = torch.promote_types(x.dtype, y.dtype)
            x, y = (t if t.dtype == wide else t.to(wide) for t in (x, y))
        elif not _is(x):
            x = torch.as_tensor(x, dtype=y.dtype)
        return function(x, y)

    return call


def _number(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of two arrays that torch supports for tensors only."""
    return lambda x, y: function(
        x if _is(x) else torch.as_tensor(x, dtype=y.dtype),
        y if _is(y) else torch.as_tensor(y, dtype=x.dtype),
    )


def _over(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function along axes, or over everything."""

    def call(x: Tensor, dim: Any = None, keepdim: bool = False, **more: Any) -> Tensor:
        if more.pop("dtype", None) is not None or more.pop("ddof", 0):
            raise NotRecorded("numpy's sum in another dtype")
        dims = tuple(range(x.ndim)) if dim is None else dim
        return function(x, dims, keepdim=keepdim)

    return call


def _reshape(x: Tensor, *shape: Any, order: str = "C") -> Tensor:
    if order != "C":
        raise NotRecorded("numpy's reshape in another order")
    return x.reshape(*shape)


def _transpose(x: Tensor, *axes: Any) -> Tensor:
    order = axes[0] if len(axes) == 1 else axes or None
    return x.permute(*(order if order is not None else reversed(range(x.ndim))))


def _where(condition: Tensor, x: Any, y: Any) -> Tensor:
    return torch.where(condition.bool(), x, y)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    if y.ndim > 2:
        raise NotRecorded("numpy's dot of more than two axes")
    return _two(torch.matmul)(x, y)


def _joined(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda parts, dim=0: function(list(parts), dim)


def _cut(x: Tensor, parts: Any, dim: int = 0) -> Any:
    return torch.tensor_split(x, tuple(parts) if isinstance(parts, list) else parts, dim)


def _triangle(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, k=0: function(x, k)


def _like(number: float) -> Callable[..., Tensor]:
    return lambda x, dtype=None, **_: torch.full_like(x, number, dtype=_dtype(dtype))


def _einsum(equation: str, *parts: Tensor, **_: Any) -> Tensor:
    wide = parts[0].dtype
    for part in parts[1:]:
        wide = torch.promote_types(wide, part.dtype)
    return torch.einsum(equation, *(p if p.dtype == wide else p.to(wide) for p in parts))


def _squeeze(x: Tensor, dim: Any = None) -> Tensor:
    return x.squeeze() if dim is None else x.squeeze(dim)


def _norm(x: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False) -> Tensor:
    if ord not in (None, 2) or (dim is None and x.ndim > 1):
        raise NotRecorded("numpy's norm of another kind")
    found: Tensor = torch.linalg.vector_norm(x, dim=dim, keepdim=keepdim)
    return found


def _dtype(kind: Any) -> torch.dtype | None:
    if kind is None:
        return None
    found = getattr(torch, np.dtype(kind).name, None)
    if not isinstance(found, torch.dtype):
        raise NotRecorded(f"numpy's dtype {kind}")
    return found


def _softmax(x: Tensor, dim: int | None = None) -> Tensor:
    return x.softmax(dim) if dim is not None else x.flatten().softmax(0).view(x.shape)


_SAME = [
    "exp", "exp2", "log", "log2", "log1p", "expm1", "sqrt", "square", "abs", "absolute", "tanh",
    "sin", "cos", "sign", "floor", "isnan", "isinf", "isfinite", "logical_not", "nan_to_num",
]  # fmt: skip
_PAIRS = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div",
    "power": "pow", "float_power": "pow", "floor_divide": "floor_divide", "greater": "gt",
    "less": "lt", "greater_equal": "ge", "less_equal": "le", "equal": "eq", "not_equal": "ne",
    "matmul": "matmul", "remainder": "remainder",
}  # fmt: skip
_OF_TENSORS = ("maximum", "minimum", "logical_and", "logical_or")
_OVER = {
    "sum": "sum", "mean": "mean", "max": "amax", "amax": "amax", "min": "amin", "amin": "amin",
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in _SAME},
    **{name: _two(getattr(torch, there)) for name, there in _PAIRS.items()},
    **{name: _number(getattr(torch, name)) for name in _OF_TENSORS},
    **{name: _over(getattr(torch, there)) for name, there in _OVER.items()},
    "any": _over(torch.any), "all": _over(torch.all),
    "var": _over(lambda x, d, keepdim: torch.var(x, d, correction=0, keepdim=keepdim)),
    "std": _over(lambda x, d, keepdim: torch.std(x, d, correction=0, keepdim=keepdim)),
    "negative": torch.neg, "invert": torch.logical_not, "bitwise_and": torch.logical_and,
    "bitwise_or": torch.logical_or, "reciprocal": torch.reciprocal,
    "reshape": _reshape, "transpose": _transpose, "swapaxes": torch.swapaxes,
    "moveaxis": torch.movedim, "expand_dims": torch.unsqueeze, "squeeze": _squeeze,
    "ravel": torch.flatten, "flatten": torch.flatten, "broadcast_to": torch.broadcast_to,
    "concatenate": _joined(torch.cat), "stack": _joined(torch.stack),
    "hstack": lambda parts: torch.hstack(list(parts)),
    "vstack": lambda parts: torch.vstack(list(parts)),
    "split": _cut, "array_split": _cut, "dsplit": lambda x, n: _cut(x, n, 2),
    "hsplit": lambda x, n: _cut(x, n, 1 if x.ndim > 1 else 0),
    "repeat": lambda x, n, dim=None: x.repeat_interleave(n, dim), "tile": torch.tile,
    "where": _where, "einsum": _einsum, "dot": _dot, "outer": torch.outer,
    "tril": _triangle(torch.tril), "triu": _triangle(torch.triu),
    "zeros_like": _like(0), "ones_like": _like(1), "empty_like": _like(0),
    "full_like": lambda x, value, dtype=None: torch.full_like(x, value, dtype=_dtype(dtype)),
    "clip": torch.clip, "norm": _norm, "softmax": _softmax, "copy": torch.clone,
    "astype": lambda x, kind, **_: x.to(_dtype(kind)), "asarray": lambda x, *_, **__: x,
    "ascontiguousarray": lambda x: x.contiguous(),
}  # fmt: skip
_METHODS = {
    "sum", "mean", "max", "min", "any", "all", "var", "std", "reshape", "transpose", "swapaxes",
    "squeeze", "ravel", "flatten", "repeat", "dot", "clip", "copy", "astype",
}  # fmt: skip


def _made(function: Callable[..., Any]) -> Callable[..., Any]:
    """A numpy function that creates an array, so that results can be stored in that array."""

    def call(*args: Any, **keywords: Any) -> Any:
        if args and isinstance(args[0], RecordedArray):
            return RecordedArray(args[0].tensor.clone())
        if args and isinstance(args[0], list) and _recorded_inside(args[0]):
            return _call("stack", [[call(item) for item in args[0]]], {})
        found = function(*args, **keywords)
        if function.__name__ in ("zeros", "empty") and found.dtype.kind == "f":
            return RecordedArray(torch.zeros(found.shape, dtype=_dtype(found.dtype)))
        return found

    return call


def _recorded_inside(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_recorded_inside, value))
    return isinstance(value, RecordedArray)


@contextmanager
def recorded_arrays(owner: object, tensors: dict[str, Tensor]) -> Iterator[None]:
    """Temporarily record the arrays of an object, and those that numpy creates.

    Args:
        owner: The object.
        tensors: Tensors that share memory with its arrays.
    """
    by_memory = {tensor.data_ptr(): tensor for tensor in tensors.values()}

    def taken(value: Any, depth: int = 3) -> Any:
        if isinstance(value, np.ndarray):
            tensor = by_memory.get(value.ctypes.data)
            return value if tensor is None or tensor.shape != value.shape else RecordedArray(tensor)
        if type(value) in (list, tuple) and depth:
            return type(value)(taken(item, depth - 1) for item in value)
        if type(value) is dict and depth:
            return {key: taken(item, depth - 1) for key, item in value.items()}
        return value

    own = vars(owner)
    kept = dict(own)
    made = {name: getattr(np, name) for name in ("zeros", "empty", "array", "asarray")}
    own.update({name: taken(value) for name, value in kept.items()})
    vars(np).update({name: _made(function) for name, function in made.items()})
    try:
        yield
    finally:
        own.clear()
        own.update(kept)
        vars(np).update(made)
