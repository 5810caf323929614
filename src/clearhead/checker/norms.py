"""Norms that stand inside a class: on queries and keys, or around the attention."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional


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
