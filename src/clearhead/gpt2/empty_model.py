"""Build a model without memory: parameter names and shapes, but no values."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

M = TypeVar("M", bound=nn.Module)


def without_numbers(make: Callable[[], M]) -> M:
    """Build a model on the "meta" device, without initialising its weights."""
    with torch.device("meta"), _NoInitialisation():
        return make()


class _NoInitialisation(TorchFunctionMode):
    """Skips random initialisation.

    On "meta" it would have no effect, but torch imports its compiler for it: two seconds, 170 MiB.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in ("normal_", "uniform_", "kaiming_uniform_"):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
