"""A model with names and shapes but without numbers: what a file must hold, before it is read."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

M = TypeVar("M", bound=nn.Module)


def without_numbers(make: Callable[[], M]) -> M:
    """A model that has names and shapes, but no numbers and no memory for them."""
    with torch.device("meta"), _Unfilled():
        return make()


class _Unfilled(TorchFunctionMode):
    """While it is on, weights are made but not filled with random numbers.

    For weights without memory that would do nothing, after torch has imported its compiler for it:
    two seconds and 170 MiB.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in ("normal_", "uniform_", "kaiming_uniform_"):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
