"""Axis: what one side of an array stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """One side of an array.

    Attributes:
        title: What it counts.
        size: How many positions it stands for; an array may have fewer cells than that.
        labels: A label a position, or None for numbers.
    """

    title: str
    size: int
    labels: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.labels is not None and len(self.labels) != self.size:
            raise ValueError(
                f"{self.title}: expected {self.size} labels, one a position, "
                f"got {len(self.labels)}."
            )
