"""Removing heads while a model runs, by replacing their slice of the output projection's input.

The heads' outputs are concatenated before the output projection mixes them. So each head is a slice
of the projection's input, and replacing that slice removes the head and nothing else: by zeros, or
by the head's mean output over other sentences, which keeps what does not depend on the sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

Head = tuple[str, int]  # the name of a layer, and the index of a head in it

_NAMES = ("out_proj", "c_proj", "o_proj")


def projections(model: nn.Module, layers: Sequence[str]) -> dict[str, nn.Module] | None:
    """The output projection of each attention layer; None if any is not found."""
    found: dict[str, nn.Module] = {}
    for layer in layers:
        module = model.get_submodule(layer)
        inside = [getattr(module, name) for name in _NAMES if hasattr(module, name)]
        # nn.MultiheadAttention reads its projection's weights without calling the module.
        if not inside or isinstance(module, nn.MultiheadAttention):
            return None
        found[layer] = inside[0]
    return found


@contextmanager
def _before(hooks: Mapping[nn.Module, Callable[[Tensor], Tensor | None]]) -> Iterator[None]:
    """Within the block, pass each module's input through its function first."""

    def hook(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        changed = hooks[module](inputs[0])
        return None if changed is None else (changed, *inputs[1:])

    handles = [module.register_forward_pre_hook(hook) for module in hooks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def without(
    projections: Mapping[str, nn.Module],
    heads: Sequence[Head],
    sizes: Mapping[str, int],
    means: Mapping[str, Float[Tensor, " d_out"]] | None = None,
) -> Iterator[None]:
    """Within the block, the model runs without these heads.

    Args:
        projections: The output projection of each layer.
        heads: The heads to remove.
        sizes: The number of heads in each layer.
        means: What to replace their output with, from `head_means`; zeros if None.
    """

    def replacing(layer: str, numbers: list[int]) -> Callable[[Tensor], Tensor]:
        def change(x: Tensor) -> Tensor:
            width = x.shape[-1] // sizes[layer]
            x = x.clone()
            for number in numbers:
                part = slice(number * width, (number + 1) * width)
                x[..., part] = 0.0 if means is None else means[layer][part]
            return x

        return change

    layers = dict.fromkeys(layer for layer, _ in heads)
    hooks = {
        projections[layer]: replacing(layer, [n for where, n in heads if where == layer])
        for layer in layers
    }
    with _before(hooks):
        yield


@torch.no_grad()
def head_means(
    projections: Mapping[str, nn.Module],
    run: Callable[[], Any],
    real: Bool[Tensor, "batch tokens"],
) -> dict[str, Float[Tensor, " d_out"]]:
    """The mean output of each layer's heads, over the real tokens of one run."""
    means: dict[str, Tensor] = {}

    def keeping(layer: str) -> Callable[[Tensor], None]:
        def keep(x: Tensor) -> None:
            means[layer] = x[real].mean(0)

        return keep

    with _before({module: keeping(layer) for layer, module in projections.items()}):
        run()
    return means
