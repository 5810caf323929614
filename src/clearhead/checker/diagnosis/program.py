"""A recorded forward pass as a program that can be run again, in whole or in part.

Registers hold tensors, and every call writes new ones: a call that changes its argument in place
works on a copy here. So any register can be given other values, and everything that depends on it
is recomputed. This is how the meaning of each axis is found: change a token and see what moves.

Only functions that compute are run, and only at affordable sizes, because a recording may be
forged.
"""

from __future__ import annotations

import math
import time
import warnings
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.checker.sandbox.answers import Call, Recording
from clearhead.checker.sandbox.pass_recorder import is_in_place

Values = dict[int, Tensor]

MOST_NUMBERS = 1 << 22  # in one result
MOST_IN_ALL = 1 << 26
MOST_SECONDS = 20.0  # of CPU time, for all runs of one program

_COMPUTES = {
    "H", "T", "__and__", "__eq__", "__floordiv__", "__ge__", "__getitem__", "__gt__",
    "__iadd__", "__idiv__", "__imul__", "__invert__", "__isub__", "__itruediv__", "__le__",
    "__lt__", "__matmul__", "__mod__", "__ne__", "__or__", "__rdiv__", "__rfloordiv__",
    "__rmatmul__", "__rpow__", "__rsub__", "__setitem__", "__xor__", "abs",
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "add", "add_", "addbmm", "addmm", "all",
    "alpha_dropout", "amax", "amin", "any", "arange", "argmax", "argmin", "argsort",
    "as_tensor", "asinh", "atan", "avg_pool1d", "avg_pool2d", "baddbmm", "batch_norm",
    "bfloat16", "bitwise_and", "bitwise_not", "bitwise_or", "bmm", "bool",
    "broadcast_tensors", "broadcast_to", "bucketize", "cat", "ceil", "celu", "chain_matmul",
    "chunk", "clamp", "clamp_", "clamp_max", "clamp_min", "clip", "clone", "complex", "concat",
    "concatenate", "contiguous", "conv1d", "conv2d", "conv3d", "copy_", "cos", "cosh",
    "cosine_similarity", "cpu", "cross", "cuda", "cummax", "cumsum", "data", "detach",
    "detach_", "diag", "diagonal", "diff", "div", "div_", "dot", "double",
    "dropout", "dropout1d", "dropout2d", "dropout_", "einsum", "elu", "embedding", "empty",
    "empty_like", "eq", "erf", "exp", "exp2", "exp_", "expand", "expand_as", "expm1", "eye",
    "fill_", "flatten", "flip", "float", "floor", "floor_divide", "fmod", "full",
    "full_like", "gather", "ge", "gelu", "glu", "group_norm", "gt", "half", "hstack", "imag",
    "index_fill", "index_select", "inner", "instance_norm", "int", "isfinite",
    "isinf", "isnan", "layer_norm", "le", "leaky_relu", "lerp", "lgamma", "linear", "linspace",
    "log", "log10", "log1p", "log2", "log_softmax", "logical_and", "logical_not", "logical_or",
    "logical_xor", "logsumexp", "long", "lt", "mH", "mT", "masked_fill", "masked_fill_",
    "matmul", "max", "maximum", "mean", "meshgrid", "min", "minimum", "mish", "mm", "moveaxis",
    "movedim", "mul", "mul_", "multi_head_attention_forward", "multiply", "mv", "nan_to_num",
    "nan_to_num_", "narrow", "ne", "neg", "neg_", "negative", "new_empty", "new_full",
    "new_ones", "new_tensor", "new_zeros", "norm", "normalize", "not_equal", "ones",
    "ones_like", "outer", "pad", "permute", "polar", "pow", "pow_", "prelu", "prod", "real",
    "reciprocal", "relu", "relu6", "relu_", "remainder", "repeat", "repeat_interleave",
    "requires_grad_", "reshape", "reshape_as", "rms_norm", "roll", "round", "rsqrt", "rsub",
    "scalar_tensor", "scaled_dot_product_attention", "scatter", "scatter_", "searchsorted",
    "select", "selu", "sigmoid", "sign", "silu", "sin", "softmax", "softmin", "softplus",
    "sort", "split", "split_with_sizes", "sqrt", "square", "squeeze", "squeeze_", "stack",
    "std", "sub", "sub_", "subtract", "sum", "swapaxes", "swapdims", "t", "tan", "tanh",
    "tensor", "tensor_split", "tensordot", "threshold", "tile", "to", "topk", "transpose",
    "transpose_", "tril", "tril_", "tril_indices", "triu", "triu_", "triu_indices",
    "true_divide", "type", "type_as", "unbind", "unflatten", "unfold", "unsqueeze",
    "unsqueeze_", "var", "vecdot", "vector_norm", "view", "view_as", "view_as_complex",
    "view_as_real", "vstack", "where", "xlogy", "zero_", "zeros", "zeros_like",
}  # fmt: skip
_JOINS = {
    "cat",
    "concat",
    "concatenate",
    "stack",
    "hstack",
    "vstack",
    "meshgrid",
    "broadcast_tensors",
}
_DROPOUTS = {"dropout", "dropout_", "dropout1d", "dropout2d", "alpha_dropout"}
# The result is no larger than an argument, whatever numbers are passed.
_KEEPS = {
    "layer_norm", "group_norm", "batch_norm", "rms_norm", "instance_norm", "softmax", "dropout",
    "multi_head_attention_forward", "view", "reshape", "transpose", "permute", "__getitem__",
    "chunk", "split", "sum", "mean", "flatten", "unflatten", "unbind", "squeeze", "unsqueeze",
}  # fmt: skip
# Elementwise: each entry comes from one entry of each argument.
_EACH = {
    "add", "add_", "__iadd__", "sub", "sub_", "__isub__", "rsub", "__rsub__", "mul", "mul_",
    "__imul__", "div", "div_", "__itruediv__", "true_divide", "pow", "where", "masked_fill",
    "masked_fill_", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge", "__eq__", "__lt__",
    "__le__", "__gt__", "__ge__", "__and__", "__or__", "logical_and", "logical_or", "exp",
}  # fmt: skip
_HOMES: dict[str, Any] = {"torch": torch, "F": F, "Tensor": Tensor, "linalg": torch.linalg}


class NotRunnable(ValueError):
    """Raised for a recorded call that is not run again, with the reason."""


def registers_in(value: Any) -> Iterable[int]:
    """The registers that an argument refers to."""
    if isinstance(value, dict):
        if "register" in value:
            yield value["register"]
        for inner in value.values():
            if isinstance(inner, list):
                for item in inner:
                    yield from registers_in(item)


def _integers(value: Any) -> Iterable[int]:
    if isinstance(value, dict):
        for kind, inner in value.items():
            if kind in ("list", "tuple"):
                for item in inner:
                    yield from _integers(item)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield value


def _length(call: Call) -> float:
    """The number of entries that arange or linspace returns."""
    numbers = [v for v in call.args if isinstance(v, int | float)]
    if len(numbers) < len(call.args) or set(call.kwargs) - {"dtype", "device", "steps"}:
        raise NotRunnable(f"{call.name} with other arguments than numbers")
    if call.name == "linspace":
        return abs(float(call.kwargs.get("steps", numbers[-1])))
    start, end = (0.0, numbers[0]) if len(numbers) == 1 else numbers[:2]
    step = numbers[2] if len(numbers) > 2 else 1.0
    return abs((end - start) / step) if step else math.inf


def _repeats_told(call: Call) -> bool:
    """Whether repeat_interleave gets its repeats as an integer rather than a tensor."""
    return isinstance(call.kwargs.get("repeats", (*call.args, None, None)[1]), int)


def function_of(call: Call) -> Callable[..., Any]:
    """The function that a call names."""
    if call.name not in _COMPUTES:
        raise NotRunnable(f"{call.name} is not run again")
    if call.home == "get":
        return lambda tensor: getattr(tensor, call.name)
    function = getattr(_HOMES.get(call.home), call.name, None)
    if function is None:
        raise NotRunnable(f"{call.home}.{call.name} is not known")
    return function  # type: ignore[no-any-return]


def revived(value: Any, values: Mapping[int, Tensor]) -> Any:
    """An argument of a recorded call, with its registers replaced by tensors."""
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "register":
        return values[inner]
    if kind == "slice":
        return slice(*(revived(item, values) for item in inner))
    if kind == "list":
        return [revived(item, values) for item in inner]
    if kind == "tuple":
        return tuple(revived(item, values) for item in inner)
    if kind == "ellipsis":
        return ...
    if kind == "device":
        return torch.device("cpu")
    if kind == "float":
        return float(inner)
    found = getattr(torch, inner, None)
    if not isinstance(found, torch.dtype | torch.memory_format):
        raise NotRunnable(f"{inner[:40]} is not known")
    return found


@dataclass(frozen=True, eq=False)
class Program:
    """A recorded pass.

    Args:
        recording: The recording.
        weights: The values of the parameters.
        given: The inputs of the recorded pass, by name.
        deadline: The CPU time at which its runs must end; time spent waiting does not count.
    """

    recording: Recording
    weights: dict[str, Tensor]
    given: dict[str, Tensor]
    deadline: float = field(default_factory=lambda: time.thread_time() + MOST_SECONDS)

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls, in order."""
        return self.recording.calls

    @cached_property
    def inputs(self) -> dict[str, int]:
        """The registers of the inputs, by name."""
        return {leaf.name: leaf.register for leaf in self.recording.leaves if leaf.kind == "input"}

    @cached_property
    def parameters(self) -> dict[int, str]:
        """The names of the parameters, by register."""
        leaves = self.recording.leaves
        return {leaf.register: leaf.name for leaf in leaves if leaf.kind == "parameter"}

    @cached_property
    def maker(self) -> dict[int, int]:
        """The call that made each register."""
        return {out: i for i, call in enumerate(self.calls) for out in call.out if out >= 0}

    @cached_property
    def sources(self) -> tuple[tuple[int, ...], ...]:
        """The registers that each call reads, without repetitions."""
        return tuple(
            tuple(
                dict.fromkeys(
                    number
                    for value in (*call.args, *call.kwargs.values())
                    for number in registers_in(value)
                )
            )
            for call in self.calls
        )

    @cached_property
    def users(self) -> dict[int, tuple[int, ...]]:
        """The calls that read each register."""
        found: dict[int, list[int]] = {}
        for i, sources in enumerate(self.sources):
            for register in sources:
                found.setdefault(register, []).append(i)
        return {register: tuple(calls) for register, calls in found.items()}

    @cached_property
    def _before(self) -> dict[int, set[int]]:
        return {}

    def first_values(self, inputs: Mapping[str, Tensor]) -> Values:
        """The values of the registers before the first call."""
        values: Values = {}
        for leaf in self.recording.leaves:
            if leaf.kind == "input":
                values[leaf.register] = inputs[leaf.name]
            elif leaf.kind == "parameter":
                values[leaf.register] = self.weights[leaf.name]
            elif leaf.kind == "complex":
                values[leaf.register] = torch.view_as_complex(
                    self.recording.constants[leaf.name].contiguous()
                )
            else:
                values[leaf.register] = self.recording.constants[leaf.name]
        return values

    def run(self, inputs: Mapping[str, Tensor] | None = None) -> Values:
        """The values of every register, for these inputs or, by default, the recorded ones."""
        values = self.first_values(self.given if inputs is None else inputs)
        total = 0
        with warnings.catch_warnings(action="ignore"):  # the recorded pass gave them already
            for i in range(len(self.calls)):
                total = self._step(i, values, values, total)
        return values

    def again(self, base: Values, changed: Mapping[int, Tensor]) -> Values:
        """The registers that differ when some are given other values, including those."""
        new = dict(changed)
        view = ChainMap(new, base)
        total = 0
        with warnings.catch_warnings(action="ignore"):
            for i, call in enumerate(self.calls):
                if any(out in changed for out in call.out):
                    continue
                if any(register in new for register in self.sources[i]):
                    total = self._step(i, view, new, total)
        return new

    def _step(self, i: int, values: Mapping[int, Tensor], results: Values, total: int) -> int:
        """Run one call; the number of entries computed so far, including earlier calls."""
        call = self.calls[i]
        function = function_of(call)
        for register in self.sources[i]:
            if register not in values:
                raise NotRunnable(f"register {register} is read before it is written")
        self._check_size(i, values)
        args = [revived(value, values) for value in call.args]
        kwargs = {name: revived(value, values) for name, value in call.kwargs.items()}
        kwargs.pop("device", None)
        kwargs.pop("inplace", None)
        if call.name in _DROPOUTS:  # dropout is skipped
            function, args, kwargs = (lambda x: x.view_as(x)), args[:1], {}
        if is_in_place(call.name):
            args[0] = args[0].clone()
        if call.name == "view" and len(args) > 1 and not isinstance(args[1], torch.dtype):
            function = Tensor.reshape  # strides may differ from the recorded pass
        with torch.no_grad():
            got = function(*args, **kwargs)
        if is_in_place(call.name):
            got = args[0]
        made = list(got) if isinstance(got, list | tuple) else [got]
        for register, tensor in zip(call.out, made, strict=True):
            if register >= 0:
                if not isinstance(tensor, Tensor):
                    raise NotRunnable(f"{call.name} gave no tensor")
                if tensor.numel() > MOST_NUMBERS:
                    raise NotRunnable(f"{call.name} gives more values than are allowed")
                results[register] = tensor
                total += tensor.numel()
        if total > MOST_IN_ALL:
            raise NotRunnable("it keeps more values than are allowed")
        return total

    def _check_size(self, i: int, values: Mapping[int, Tensor]) -> None:
        """Refuse a call whose result may be larger than in an honest pass on a small input.

        The bound is generous: the product of all sizes and integers that the call mentions.
        """
        if time.thread_time() > self.deadline:
            raise NotRunnable("it takes too long")
        call = self.calls[i]
        tensors = [values[register] for register in self.sources[i]]
        sizes = [max(tensor.numel(), 1) for tensor in tensors]
        everything = (*call.args, *call.kwargs.values())
        integers = [max(abs(n), 1) for v in everything for n in _integers(v)]
        largest: float = math.prod(integers)
        if call.name in ("arange", "linspace"):
            largest = _length(call)
        elif call.name == "repeat_interleave" and not _repeats_told(call):
            if tensors[-1].is_floating_point():
                raise NotRunnable("repeat_interleave with a fraction of repeats")
            largest = sizes[0] * float(tensors[-1].to(torch.float64).clamp_min(1).sum())
        elif call.name in ("linear", "embedding") and len(tensors) > 1 and tensors[1].ndim:
            largest = sizes[0] * max(tensors[1].shape)
        elif call.name in ("conv1d", "conv2d", "conv3d") and len(tensors) > 1 and tensors[1].ndim:
            padding = call.kwargs.get("padding", call.args[4] if len(call.args) > 4 else 0)
            wider = 1 + 2 * max((abs(n) for n in _integers(padding)), default=0)
            largest = sizes[0] * tensors[1].shape[0] * wider ** int(call.name[4])
        elif call.name == "scaled_dot_product_attention" and len(tensors) > 2:
            rows, keys = sizes[0] // max(tensors[0].shape[-1:], default=1), tensors[1].shape[-2:-1]
            largest = max(rows * math.prod(keys), sizes[0], sizes[2])
        elif call.name in ("matmul", "bmm", "__matmul__") and len(tensors) == 2:
            shapes = [tensor.shape for tensor in tensors]
            largest = math.prod(sizes) / max(shapes[0][-1:], default=1) ** 2
        elif call.name in _EACH and tensors:
            sides = [reversed(tensor.shape) for tensor in tensors]
            largest = math.prod(max(one) for one in zip_longest(*sides, fillvalue=1))
        elif call.name in _JOINS:
            largest *= sum(sizes)
        elif call.name in _KEEPS:
            largest = max(sizes, default=1)
        else:
            largest *= math.prod(sizes)
        if largest > MOST_NUMBERS * 64:
            raise NotRunnable(f"{call.name} on sizes that are not tried")

    def before(self, register: int) -> set[int]:
        """The calls that a register depends on."""
        known = self._before.get(register)
        if known is not None:
            return known
        found: set[int] = set()
        ahead = [register]
        while ahead:
            maker = self.maker.get(ahead.pop())
            if maker is not None and maker not in found:
                found.add(maker)
                ahead.extend(self.sources[maker])
        self._before[register] = found
        return found

    def after(self, register: int) -> set[int]:
        """The calls that depend on a register."""
        found: set[int] = set()
        ahead = [register]
        while ahead:
            for i in self.users.get(ahead.pop(), ()):
                if i not in found:
                    found.add(i)
                    ahead.extend(out for out in self.calls[i].out if out >= 0)
        return found
