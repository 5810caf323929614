"""Taking heads out of a model while it runs: their part of the input of the output projection.

Step 5 puts the heads side by side, step 6 mixes them. What one head gives is therefore a slice of
what the projection reads, and replacing that slice removes the head and nothing else: by zeros, or
by its own mean over other sentences, which leaves in place what it says whatever the sentence is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

Place = tuple[str, int]  # the name of a layer, and the number of a head in it

_NAMES = ("out_proj", "c_proj", "o_proj")


def projections(model: nn.Module, layers: Sequence[str]) -> dict[str, nn.Module] | None:
    """The output projection of each of these attention layers; None if one is not found."""
    found: dict[str, nn.Module] = {}
    for layer in layers:
        module = model.get_submodule(layer)
        inside = [getattr(module, name) for name in _NAMES if hasattr(module, name)]
        # nn.MultiheadAttention uses its projection's weights without calling it.
        if not inside or isinstance(module, nn.MultiheadAttention):
            return None
        found[layer] = inside[0]
    return found


@contextmanager
def _before(hooks: Mapping[nn.Module, Callable[[Tensor], Tensor | None]]) -> Iterator[None]:
    """While the block runs, each module reads what its function makes of its input."""

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
    heads: Sequence[Place],
    sizes: Mapping[str, int],
    means: Mapping[str, Float[Tensor, " d_out"]] | None = None,
) -> Iterator[None]:
    """Run a model without these heads.

    Args:
        projections: The output projection of each layer.
        heads: Which heads.
        sizes: How many heads each layer has.
        means: What takes their place, from `head_means`; zeros if None.
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
    """What each layer's heads give on average, over the real tokens of one run."""
    means: dict[str, Tensor] = {}

    def keeping(layer: str) -> Callable[[Tensor], None]:
        def keep(x: Tensor) -> None:
            means[layer] = x[real].mean(0)

        return keep

    with _before({module: keeping(layer) for layer, module in projections.items()}):
        run()
    return means
