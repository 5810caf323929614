"""Summary, Top and Distance: what the statistics of a map give."""

from dataclasses import dataclass, fields

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Distance:
    """How far a map looks, in tokens.

    Attributes:
        mean: The mean distance of each query, (batch, heads, queries).
        quantiles: The distances within which the shares `levels` of all weight lie.
        levels: The shares.
    """

    mean: Float[Tensor, "batch heads queries"]
    quantiles: Float[Tensor, "batch heads levels"]
    levels: tuple[float, ...]


@dataclass(frozen=True)
class Top:
    """The largest weights of each query, and the keys they belong to (-1: nothing more to see)."""

    weights: Float[Tensor, "batch heads queries k"]
    keys: Int[Tensor, "batch heads queries k"]


@dataclass(frozen=True)
class Summary:
    """What `AttentionMap.summary` was asked for; the rest is None."""

    entropy: Tensor | None = None
    received: Tensor | None = None
    top: Top | None = None
    thumbnail: Tensor | None = None
    distance: Distance | None = None
    sink: Tensor | None = None
    previous: Tensor | None = None
    same_token: Tensor | None = None
    induction: Tensor | None = None
    relation: Tensor | None = None

    def __repr__(self) -> str:
        names = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        return f"Summary({', '.join(names)})"
