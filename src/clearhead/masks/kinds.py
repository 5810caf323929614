"""What a mask can be: a band around the diagonal, padding, any matrix, or two masks joined."""

# ruff: noqa: D102  # what each method answers stands in Mask

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.masks.mask import Align, Mask, MaskMod, Part, Place, Side
from clearhead.validation import ShapeError, describe

_WIDTH = (
    "With a cache, keys are all the tokens seen so far; with a static one, as many as it can hold."
)


@dataclass(frozen=True, eq=False)
class Band(Mask):
    """Key j is visible to query i when -back <= j - position(i) <= ahead; None = unlimited."""

    back: int | None
    ahead: int | None
    align: Align

    def _offset(self, queries: int, keys: int) -> int:
        return keys - queries if self.align == "end" else 0

    def reach(self, rows: slice, queries: int, keys: int) -> slice:
        offset = self._offset(queries, keys)
        low = 0 if self.back is None else max(0, rows.start + offset - self.back)
        high = keys if self.ahead is None else min(keys, rows.stop + offset + self.ahead)
        return slice(min(low, keys), max(high, min(low, keys)))

    def tile(self, rows: slice, cols: slice, queries: int, keys: int, device: Place = None) -> Part:
        offset = self._offset(queries, keys)
        ahead_of_all = self.ahead is None or cols.stop - 1 <= rows.start + offset + self.ahead
        back_of_all = self.back is None or cols.start >= rows.stop - 1 + offset - self.back
        if _always(ahead_of_all) and _always(back_of_all):
            return None
        position = torch.arange(rows.start, rows.stop, device=device)[:, None] + offset
        key = torch.arange(cols.start, cols.stop, device=device)
        return self._visible(position, key)[None, None]

    def is_start_causal(self, queries: int, keys: int) -> bool:
        unlimited = self.back is None or _always(self.back >= queries - 1)
        return self.ahead == 0 and unlimited and _always(self._offset(queries, keys) == 0)

    def is_same_for_all_queries(self, queries: int, keys: int) -> bool:
        offset = self._offset(queries, keys)
        sees_last = self.ahead is None or _always(offset + self.ahead >= keys - 1)
        sees_first = self.back is None or _always(queries - 1 + offset - self.back <= 0)
        return sees_last and sees_first

    def is_never_empty(self, queries: int, keys: int) -> bool:
        return _always(queries == keys)  # then query i stands at key i, and no band leaves it out

    def _visible(self, position: Tensor, key: Tensor) -> Tensor:
        limits = []
        if self.ahead is not None:
            limits.append(key <= position + self.ahead)
        if self.back is not None:
            limits.append(key >= position - self.back)
        if not limits:
            return torch.ones_like(key, dtype=torch.bool)
        return limits[0] if len(limits) == 1 else limits[0] & limits[1]

    def over(self, queries: int, seen: Tensor, capacity: int) -> Tensor:
        position = torch.arange(queries, device=seen.device)[:, None]
        if self.align == "end":
            position = position + (seen - queries)
        return self._visible(position, torch.arange(capacity, device=seen.device))[None, None]

    def encode(self, tensors: list[Tensor]) -> str:
        return f"('band',{self.back},{self.ahead},'{self.align}')"

    def _mask_mod(self, queries: int, keys: int) -> MaskMod:
        offset = self._offset(queries, keys)
        return lambda batch, head, query, key: self._visible(query + offset, key)


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """Keys that are real, as lengths (batch,) or as bool (batch, keys)."""

    real: Tensor
    side: Side

    def tile(self, rows: slice, cols: slice, queries: int, keys: int, device: Place = None) -> Part:
        self.check(None, None, queries, keys)
        real = self.real.to(device) if device is not None else self.real
        key = torch.arange(cols.start, cols.stop, device=real.device)
        return self._visible(real, key, keys)[:, None, None, :]

    def reach(self, rows: slice, queries: int, keys: int) -> slice:
        if self.real.device.type != "cpu":  # reading values elsewhere means waiting for them
            return slice(0, keys)
        if self.real.dtype == torch.bool:
            seen = self.real.any(0).nonzero()
            return slice(int(seen[0]), int(seen[-1]) + 1) if len(seen) else slice(0, 0)
        longest = min(keys, int(self.real.max()))
        return slice(0, longest) if self.side == "right" else slice(keys - longest, keys)

    def is_same_for_all_queries(self, queries: int, keys: int) -> bool:
        return True

    def select(self, batch: Tensor, heads: Tensor) -> Mask:
        if self.real.shape[0] == 1:
            return self
        return Padding(self.real[batch.to(self.real.device)], self.side)

    def check(self, batch: int | None, heads: int | None, queries: int, keys: int) -> None:
        real, said = self.real, "batch" if batch is None else f"batch={batch}"
        if real.dtype == torch.bool and real.shape[1] != keys:
            raise ShapeError(
                f"padding mask: expected ({said}, keys={keys}), got {describe(real)}.\n  {_WIDTH}"
            )
        if batch is not None and real.shape[0] != 1 and real.shape[0] != batch:
            wanted = f"({said}, keys={keys})" if real.ndim == 2 else f"lengths ({said},)"
            raise ShapeError(
                f"padding mask: expected {wanted}, got {describe(real)}.\n"
                "  It needs one row or length for each sequence of the batch, or one for all."
            )

    def over(self, queries: int, seen: Tensor, capacity: int) -> Tensor:
        self.check(None, None, queries, capacity)
        key = torch.arange(capacity, device=seen.device)
        return self._visible(self.real.to(seen.device), key, seen)[:, None, None, :]

    def _visible(self, real: Tensor, key: Tensor, keys: int | Tensor) -> Tensor:
        if real.dtype == torch.bool:
            return real[:, key]
        return key < real[:, None] if self.side == "right" else key >= keys - real[:, None]

    def encode(self, tensors: list[Tensor]) -> str:
        tensors.append(self.real)
        return f"('padding',{len(tensors) - 1},'{self.side}')"

    def _mask_mod(self, queries: int, keys: int) -> MaskMod:
        self.check(None, None, queries, keys)
        visible = self._visible(self.real, torch.arange(keys, device=self.real.device), keys)
        each = self.real.shape[0] != 1
        return lambda batch, head, query, key: visible[batch * each, key]

    def _natural_size(self) -> tuple[int | None, int | None]:
        if self.real.dtype == torch.bool:
            return None, self.real.shape[1]
        return None, int(self.real.max())


@dataclass(frozen=True, eq=False)
class Custom(Mask):
    """Any bool (batch, heads, queries, keys); axes of size 1 broadcast."""

    visible: Tensor

    def tile(self, rows: slice, cols: slice, queries: int, keys: int, device: Place = None) -> Part:
        self.check(None, None, queries, keys)
        visible = self.visible.to(device) if device is not None else self.visible
        if visible.shape[2] != 1:
            visible = visible[:, :, rows.start : rows.stop]
        if visible.shape[3] != 1:
            visible = visible[:, :, :, cols.start : cols.stop]
        return visible

    def select(self, batch: Tensor, heads: Tensor) -> Mask:
        visible, device = self.visible, self.visible.device
        visible = visible[batch.to(device)] if visible.shape[0] > 1 else visible
        visible = visible[:, heads.to(device)] if visible.shape[1] > 1 else visible
        return Custom(visible)

    def check(self, batch: int | None, heads: int | None, queries: int, keys: int) -> None:
        sizes = (batch, heads, queries, keys)
        for own, size in zip(self.visible.shape, sizes, strict=True):
            if own != 1 and size is not None and own != size:
                known = zip(("batch", "heads", "queries", "keys"), sizes, strict=True)
                axes = (name if size is None else f"{name}={size}" for name, size in known)
                wide = self.visible.shape[3] not in (1, keys)
                raise ShapeError(
                    f"custom mask: expected ({', '.join(axes)}), got {describe(self.visible)}; an "
                    "axis of size 1 serves all." + (f"\n  {_WIDTH}" if wide else "")
                )

    def over(self, queries: int, seen: Tensor, capacity: int) -> Tensor:
        self.check(None, None, queries, capacity)
        return self.visible.to(seen.device)

    def encode(self, tensors: list[Tensor]) -> str:
        tensors.append(self.visible)
        return f"('custom',{len(tensors) - 1})"

    def _mask_mod(self, queries: int, keys: int) -> MaskMod:
        visible = self.visible
        one_batch, one_head, one_query, one_key = (size == 1 for size in visible.shape)

        def mask_mod(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return visible[
                batch * (not one_batch),
                head * (not one_head),
                query * (not one_query),
                key * (not one_key),
            ]

        return mask_mod

    def _natural_size(self) -> tuple[int | None, int | None]:
        return self.visible.shape[2], self.visible.shape[3]


@dataclass(frozen=True, eq=False)
class Pair(Mask):
    """Two masks joined."""

    left: Mask
    right: Mask

    def _natural_size(self) -> tuple[int | None, int | None]:
        a, b = self.left._natural_size(), self.right._natural_size()
        return a[0] or b[0], a[1] or b[1]

    def is_same_for_all_queries(self, queries: int, keys: int) -> bool:
        return self.left.is_same_for_all_queries(
            queries, keys
        ) and self.right.is_same_for_all_queries(queries, keys)

    def is_never_empty(self, queries: int, keys: int) -> bool:
        # Only bands are, and these all show a query the key at its own place.
        left = self.left.is_never_empty(queries, keys)
        return left and self.right.is_never_empty(queries, keys)

    def select(self, batch: Tensor, heads: Tensor) -> Mask:
        return type(self)(self.left.select(batch, heads), self.right.select(batch, heads))

    def check(self, batch: int | None, heads: int | None, queries: int, keys: int) -> None:
        self.left.check(batch, heads, queries, keys)
        self.right.check(batch, heads, queries, keys)


class Both(Pair):
    """Visible where both allow it."""

    def parts(self) -> list[Mask]:
        return self.left.parts() + self.right.parts()

    def reach(self, rows: slice, queries: int, keys: int) -> slice:
        a, b = self.left.reach(rows, queries, keys), self.right.reach(rows, queries, keys)
        low = max(a.start, b.start)
        return slice(low, max(low, min(a.stop, b.stop)))

    def tile(self, rows: slice, cols: slice, queries: int, keys: int, device: Place = None) -> Part:
        a = self.left.tile(rows, cols, queries, keys, device)
        b = self.right.tile(rows, cols, queries, keys, device)
        if a is None or b is None:
            return b if a is None else a
        return a & b

    def encode(self, tensors: list[Tensor]) -> str:
        return f"('both',{self.left.encode(tensors)},{self.right.encode(tensors)})"

    def over(self, queries: int, seen: Tensor, capacity: int) -> Tensor:
        return self.left.over(queries, seen, capacity) & self.right.over(queries, seen, capacity)

    def _mask_mod(self, queries: int, keys: int) -> MaskMod:
        left, right = self.left._mask_mod(queries, keys), self.right._mask_mod(queries, keys)
        return lambda b, h, q, k: left(b, h, q, k) & right(b, h, q, k)


class Either(Pair):
    """Visible where either allows it."""

    def reach(self, rows: slice, queries: int, keys: int) -> slice:
        a, b = self.left.reach(rows, queries, keys), self.right.reach(rows, queries, keys)
        return slice(min(a.start, b.start), max(a.stop, b.stop))

    def tile(self, rows: slice, cols: slice, queries: int, keys: int, device: Place = None) -> Part:
        a = self.left.tile(rows, cols, queries, keys, device)
        b = self.right.tile(rows, cols, queries, keys, device)
        return None if a is None or b is None else a | b

    def encode(self, tensors: list[Tensor]) -> str:
        return f"('either',{self.left.encode(tensors)},{self.right.encode(tensors)})"

    def over(self, queries: int, seen: Tensor, capacity: int) -> Tensor:
        return self.left.over(queries, seen, capacity) | self.right.over(queries, seen, capacity)

    def _mask_mod(self, queries: int, keys: int) -> MaskMod:
        left, right = self.left._mask_mod(queries, keys), self.right._mask_mod(queries, keys)
        return lambda b, h, q, k: left(b, h, q, k) | right(b, h, q, k)


def both(a: Mask, b: Mask) -> Mask:
    """Visible where both allow it; two bands that are aligned alike are one band again."""
    if isinstance(a, Band) and isinstance(b, Band) and a.align == b.align:
        return Band(tighter(a.back, b.back), tighter(a.ahead, b.ahead), a.align)
    return Both(a, b)


def decode(tree: tuple[object, ...], tensors: Sequence[Tensor]) -> Mask:
    """The mask that `Mask.encode` wrote, once it is read as nested tuples."""
    match tree:
        case ("band", back, ahead, align):
            return Band(back, ahead, align)  # type: ignore[arg-type]  # encode() wrote these
        case ("padding", int(index), side):
            return Padding(tensors[index], side)  # type: ignore[arg-type]  # encode() wrote it
        case ("custom", int(index)):
            return Custom(tensors[index])
        case ("both", tuple(left), tuple(right)):
            return Both(decode(left, tensors), decode(right, tensors))
        case ("either", tuple(left), tuple(right)):
            return Either(decode(left, tensors), decode(right, tensors))
    raise ValueError(f"not an encoded mask: {tree!r}")


def tighter(a: int | None, b: int | None) -> int | None:
    """The smaller of two limits; None = unlimited."""
    return b if a is None else a if b is None else min(a, b)


def _always(holds: bool) -> bool:
    """Whether a comparison of sizes holds; in `torch.export`: whether it does for every size.

    Asking for less there would tie the exported graph to the sizes of its example.
    """
    if torch.compiler.is_exporting():
        from torch.fx.experimental.symbolic_shapes import statically_known_true

        return statically_known_true(holds)
    return holds
