"""A module's projections: plain layers, or what adapters and other tools made of them."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_MANY_TOKENS = 256  # from here on queries, keys and values are one product on a GPU
_HOOKS_FOR_ALL = (  # hooks that torch calls for every module
    nn.modules.module._global_forward_hooks,
    nn.modules.module._global_forward_pre_hooks,
    nn.modules.module._global_backward_hooks,
    nn.modules.module._global_backward_pre_hooks,
)


def some_weight(linear: nn.Module) -> Tensor | None:
    """A weight that says dtype and device; what an adapter wraps or a tool packs may have none."""
    weight = getattr(linear, "weight", None)
    if isinstance(weight, Tensor) and weight.is_floating_point():
        return weight
    return next((p for p in linear.parameters() if p.is_floating_point()), None)


def apply_norm(norm: nn.Module, x: Tensor) -> Tensor:
    """In the norm's own precision: under autocast x is rounded more."""
    weight = some_weight(norm)
    normed: Tensor = norm(x if weight is None else x.to(weight.dtype))
    return normed.to(x.dtype)


def one_product_is_faster(x: Tensor, linears: Sequence[nn.Linear]) -> bool:
    """Whether the products of plain layers are better done as one."""
    if x.device.type != "cuda" or torch.compiler.is_exporting() or not torch.is_grad_enabled():
        return False
    weights = [some_weight(linear) for linear in linears]
    learns = x.requires_grad or any(w is not None and w.requires_grad for w in weights)
    return learns and x.shape[0] * x.shape[1] >= _MANY_TOKENS


def are_plain(linears: Sequence[nn.Linear]) -> bool:
    """Whether calling them is their products and nothing else: no hook, no adapter, no shards."""
    if any(_HOOKS_FOR_ALL) or any(type(linear) is not nn.Linear for linear in linears):
        return False
    without_bias = linears[0].bias is None
    for linear in linears:
        own = linear.__dict__
        if (
            type(linear.weight) is not nn.Parameter
            or (linear.bias is None) is not without_bias
            or "forward" in own
            or own["_forward_hooks"]
            or own["_forward_pre_hooks"]
            or own["_backward_hooks"]
            or own["_backward_pre_hooks"]
        ):
            return False
    return True
