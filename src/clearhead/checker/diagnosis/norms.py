"""Norms that stand inside a class: on queries and keys, or around the attention."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional

from clearhead.checker.harness.weight_roles import role_of


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm on queries or keys: over one head's width, or over all heads together."""

    weight: Tensor
    bias: Tensor | None
    eps: float
    root_mean_square: bool

    def apply(self, x: Tensor) -> Tensor:
        """The normed vectors."""
        if self.root_mean_square:
            scaled = x * (x.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight
            return scaled if self.bias is None else scaled + self.bias
        shape = self.weight.shape
        return functional.layer_norm(x, shape, self.weight, self.bias, self.eps)


class Around(NamedTuple):
    """A norm around the attention: a layer norm, or over groups of channels and all tokens."""

    weight: Tensor
    bias: Tensor | None
    groups: int = 0

    def apply(self, x: Tensor, eps: float) -> Tensor:
        """The normed vectors."""
        if self.groups:
            channels = x.transpose(1, 2)
            normed = functional.group_norm(channels, self.groups, self.weight, self.bias, eps)
            return normed.transpose(1, 2)
        return functional.layer_norm(x, x.shape[-1:], self.weight, self.bias, eps)


_MEMORY = re.compile(r"(?i)ctx|context|mem|kv|enc|cond|src|source|text|prompt|media|latent")


def norms_around(
    weights: Mapping[str, Tensor], modules: Mapping[str, str]
) -> tuple[Around | None, Around | None]:
    """A norm around the attention, and the one of the keys' and values' own input."""
    found: dict[str, Around] = {}
    for path, kind in modules.items():
        usual = kind == "LayerNorm" or kind.startswith("GroupNorm")
        if usual and f"{path}.weight" in weights and role_of(path) not in ("q", "k"):
            groups = int(kind.partition(" ")[2] or 0)
            found[path] = Around(weights[f"{path}.weight"], weights.get(f"{path}.bias"), groups)
    memory = [path for path in found if _MEMORY.search(path)]
    if len(found) == 2 and len(memory) == 1:
        other = found.pop(memory[0])
        return next(iter(found.values())), other
    return next(iter(found.values()), None), None


def norms_of_queries_and_keys(
    weights: Mapping[str, Tensor], modules: Mapping[str, str]
) -> list[tuple[Norm, Norm] | None]:
    """Norms on queries and keys, with each usual epsilon; [None] if there are none."""
    paths = {
        role_of(path): path
        for path, kind in modules.items()
        if "Norm" in kind and f"{path}.weight" in weights
    }
    if "q" not in paths or "k" not in paths:
        return [None]
    simple = "RMS" in modules[paths["q"]]
    found: list[tuple[Norm, Norm] | None] = []
    for eps in (1e-6, 1e-5, 2.220446049250313e-16, 1e-8) if simple else (1e-5, 1e-6):
        q, k = (
            Norm(weights[f"{paths[r]}.weight"], weights.get(f"{paths[r]}.bias"), eps, simple)
            for r in "qk"
        )
        found.append((q, k))
    return found
