"""Indexing a map the way a tensor is indexed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.validation import ShapeError

Index = int | slice | Tensor | list[int]

_AXES = ("batch", "heads", "queries", "keys")


def indices_of(index: object, shape: torch.Size) -> tuple[list[Tensor], list[int]]:
    """The indices along each of the four axes, and the axes that an integer removes."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if sum(part is Ellipsis for part in parts) > 1 or len(parts) > 4 + (Ellipsis in parts):
        raise IndexError(f"an attention map has 4 axes, got the index {index!r}.")
    if Ellipsis in parts:
        at = parts.index(Ellipsis)
        parts[at : at + 1] = [slice(None)] * (5 - len(parts))
    parts += [slice(None)] * (4 - len(parts))
    if sum(_axes(part) > 0 for part in parts) > 1:
        raise IndexError(
            f"expected at most one list, got the index {index!r}.\n"
            "  With two lists a tensor takes pairs. The weights at pairs: "
            "m.relation([(query, key), ...]); a block: m[0, 3, [1, 2]][:, [4, 5]]."
        )
    chosen = [numbers(*each) for each in zip(parts, shape, _AXES, strict=True)]
    removed = [axis for axis, (_, single) in enumerate(chosen) if single]
    return [found for found, _ in chosen], removed


def numbers(part: object, size: int, axis: str) -> tuple[Tensor, bool]:
    """The indices that `part` picks from an axis, and whether it is one integer."""
    if isinstance(part, bool) or part is None:
        raise IndexError(f"{axis}: expected an integer, a slice or a list of integers, got {part}.")
    if isinstance(part, slice):  # not by slicing a tensor, which does not support negative steps
        chosen = range(*part.indices(size))
        return chosen.start + chosen.step * torch.arange(len(chosen)), False
    single = isinstance(part, int) or (isinstance(part, Tensor) and part.ndim == 0)
    if _axes(part) > 1:
        raise IndexError(f"{axis}: expected a list of integers, got one with {_axes(part)} axes.")
    found = torch.as_tensor(part).reshape(-1)
    if found.dtype == torch.bool:
        found = found.nonzero().flatten()
    if found.is_floating_point():
        raise IndexError(f"{axis}: expected an integer, a slice or a list of integers, got {part}.")
    if found.numel() and (int(found.min()) < -size or int(found.max()) >= size):
        raise IndexError(f"{axis}: index {part} is out of range for {size}.")
    return found % size if size else found, single


def squeeze(x: Tensor, axes: list[int]) -> Tensor:
    """Remove these axes of size 1."""
    for axis in reversed(axes):
        x = x.squeeze(axis)
    return x


def check_batch(batch: int, size: int) -> None:
    """Raise IndexError unless a map of `size` sequences has this one."""
    if not -size <= batch < size:
        raise IndexError(f"batch: {batch} is not one of the {size} sequences of this map.")


def as_tensor(
    name: str, given: Tensor | Sequence[Sequence[int]], device: torch.device | None = None
) -> Tensor:
    """A tensor from a tensor or from lists of integers."""
    try:
        return torch.as_tensor(given, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ShapeError(
            f"{name}: expected integers, as a tensor or as lists of equal length, got a value that "
            f"cannot become a tensor ({error})."
        ) from None


def _axes(part: object) -> int:
    """How many axes a list or a tensor has; 0 for anything else."""
    if not isinstance(part, Tensor | Sequence) and not hasattr(part, "__array__"):
        return 0
    return torch.as_tensor(part).ndim
