"""How far an output is from what was expected."""

import math

import torch
from torch import Tensor


def difference(got: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the size of the expected values; NaN equals NaN.

    Examples:
        >>> difference(torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]))
        0.0
    """
    if got.shape != expected.shape:
        return math.inf
    if not expected.numel():
        return 0.0
    finite = expected.isfinite()
    if finite.all():
        gap, size = (got - expected).abs().max(), expected.abs().max()
        return math.inf if gap.isnan() else float(gap / size.clamp_min(1e-12))
    if not torch.equal(finite, got.isfinite()) or not finite.any():
        return math.inf
    return difference(got[finite], expected[finite])


def percent(gap: float) -> str:
    """A relative difference as a percentage.

    Examples:
        >>> percent(0.823), percent(1.5), percent(0.00021), percent(math.inf)
        ('82 %', '150 %', '0.021 %', 'more than 1,000 %')
    """
    if not gap <= 10:
        return "more than 1,000 %"
    return f"{100 * gap:.0f} %" if gap >= 0.1 else f"{100 * gap:.2g} %"
