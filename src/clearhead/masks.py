"""Who may attend to whom. True means "may attend", everywhere in Clearhead.

A `Mask` is a small description, not a matrix: `Mask.causal() & Mask.padding(lengths)` holds a few
numbers, and any tile of the queries × keys matrix is computed when somebody asks for it. Other
libraries want other polarities and shapes; the `to_*` methods convert explicitly.
"""

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.shapes import ShapeError, describe

Side = Literal["left", "right"]
Align = Literal["start", "end"]
Place = torch.device | str | None
Part = Bool[Tensor, "#batch #heads rows cols"] | None
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Mask:
    """Which query may look at which key; build one by name, combine with `&` and `|`.

    >>> print(Mask.causal() & Mask.window(2))
         k0 k1 k2 k3 k4 k5
    q0   ■  ·  ·  ·  ·  ·
    q1   ■  ■  ·  ·  ·  ·
    q2   ·  ■  ■  ·  ·  ·
    q3   ·  ·  ■  ■  ·  ·
    q4   ·  ·  ·  ■  ■  ·
    q5   ·  ·  ·  ·  ■  ■
    """

    # Building.

    @staticmethod
    def causal(align: Align = "end") -> "Mask":
        """No query sees a later key.

        Args:
            align: With more keys than queries, "end" makes the last query the last key's position
                (decoding with a cache); "start" makes the first query the first key's position,
                which is what `is_causal=True` of `scaled_dot_product_attention` means.
        """
        if align not in ("start", "end"):
            raise ValueError(f'align must be "start" or "end", got {align!r}.')
        return _Band(None, 0, align)

    @staticmethod
    def window(back: int, ahead: int = 0, align: Align = "end") -> "Mask":
        """Each query sees `back` keys, itself included, and `ahead` keys after itself."""
        if back < 1 or ahead < 0:
            raise ValueError(
                f"window: expected at least 1 key (the token itself is the first) and ahead >= 0, "
                f"got back={back}, ahead={ahead}."
            )
        return _Band(back - 1, ahead, align)

    @staticmethod
    def padding(
        real: Int[Tensor, " batch"] | Bool[Tensor, "batch keys"] | Sequence[int],
        side: Side = "right",
    ) -> "Mask":
        """Hide the keys that only fill a batch up to one length.

        Args:
            real: How many real tokens each sequence has, or True where a token is real.
            side: With lengths: the side on which the filling stands.
        """
        if side not in ("left", "right"):
            raise ValueError(f'side must be "left" or "right", got {side!r}.')
        real = torch.as_tensor(real)
        if real.dtype != torch.bool and real.ndim == 2:
            raise ShapeError(
                f"padding: expected lengths (batch,) or bool (batch, tokens), got "
                f"{str(real.dtype).removeprefix('torch.')} {describe(real)}.\n"
                "  1 = real token? Try real.bool(). 1 = filling? Try real == 0."
            )
        if real.ndim != (2 if real.dtype == torch.bool else 1) or real.is_floating_point():
            raise ShapeError(
                f"padding: expected lengths (batch,) or bool (batch, tokens), got "
                f"{str(real.dtype).removeprefix('torch.')} {describe(real)}."
            )
        return _Padding(real, side)

    @staticmethod
    def custom(may_attend: Bool[Tensor, "..."]) -> "Mask":
        """Any mask at all, as bool (queries, keys), (batch, queries, keys) or with heads.

        Args:
            may_attend: True where the query may look at the key. Axes of size 1 broadcast.
        """
        if may_attend.dtype != torch.bool:
            hint = "1 = may attend? Try may_attend.bool(). 1 = hidden? Try may_attend == 0."
            if may_attend.is_floating_point():
                hint = "Added to the scores (0 and -inf)? Try may_attend == 0."
            raise ShapeError(
                f"custom: expected a bool tensor in which True means may attend, got "
                f"{str(may_attend.dtype).removeprefix('torch.')}.\n  {hint}"
            )
        if may_attend.ndim == 3:
            may_attend = may_attend[:, None]
        if may_attend.ndim not in (2, 4):
            raise ShapeError(
                "custom: expected (queries, keys), (batch, queries, keys) or "
                f"(batch, heads, queries, keys), got {describe(may_attend)}."
            )
        return _Custom(may_attend.expand(1, 1, -1, -1) if may_attend.ndim == 2 else may_attend)

    def __and__(self, other: "Mask") -> "Mask":
        """Visible where both allow it."""
        if isinstance(self, _Band) and isinstance(other, _Band) and self.align == other.align:
            return _Band(
                _tighter(self.back, other.back), _tighter(self.ahead, other.ahead), self.align
            )
        return _Both(self, other)

    def __or__(self, other: "Mask") -> "Mask":
        """Visible where either allows it."""
        return _Either(self, other)

    # Asking.

    def tile(self, rows: slice, cols: slice, queries: int, keys: int, device: Place = None) -> Part:
        """The part of the queries × keys matrix at rows × cols; None when all of it is visible.

        Rows and columns are slices with a start and a stop: `range` would make a compiled graph
        recompile for every length.
        """
        raise NotImplementedError

    def reach(self, rows: slice, queries: int, keys: int) -> slice:
        """The smallest range of keys outside which these rows certainly see nothing."""
        return slice(0, keys)

    def is_start_causal(self, queries: int, keys: int) -> bool:
        """Whether this is exactly what SDPA means by `is_causal=True` at this size."""
        return False

    def is_same_for_all_queries(self, queries: int, keys: int) -> bool:
        """Whether every query sees the same keys, as with padding alone."""
        return False

    def parts(self) -> list["Mask"]:
        """The masks that must all allow it: this one, or what `&` joined."""
        return [self]

    def select(self, batch: Tensor, heads: Tensor) -> "Mask":
        """The mask of some sequences and heads, given by number."""
        return self

    def encode(self, tensors: list[Tensor]) -> str:
        """The mask as text, its tensors appended to `tensors`; see `Mask.decode`."""
        raise NotImplementedError

    def to(self, device: torch.device | str) -> "Mask":
        """The same mask with its tensors on another device."""
        tensors: list[Tensor] = []
        text = self.encode(tensors)
        if not tensors:
            return self
        return Mask.decode(text, [tensor.to(device) for tensor in tensors])

    @staticmethod
    def decode(text: str, tensors: Sequence[Tensor]) -> "Mask":
        """The mask that `encode` wrote."""
        return _decode(ast.literal_eval(text), tensors)

    def dense(
        self, queries: int, keys: int | None = None, device: torch.device | str | None = None
    ) -> Bool[Tensor, "#batch #heads queries keys"]:
        """The whole matrix, for small sizes and for other libraries.

        >>> Mask.causal().dense(2, 3)
        tensor([[[[ True,  True, False],
                  [ True,  True,  True]]]])
        """
        keys = queries if keys is None else keys
        tile = self.tile(slice(0, queries), slice(0, keys), queries, keys, device)
        if tile is None:
            tile = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=device)
        return tile.expand(-1, -1, queries, keys)

    def problem(self, queries: int, keys: int) -> str | None:
        """What looks wrong with this mask at this size, or None. Reads values: for teaching."""
        visible = self.dense(queries, keys)
        empty = ~visible.any(-1)
        if not empty.any():
            return None
        rows = int(empty.flatten(0, 1).any(0).sum())
        return (
            f"{rows} of {queries} queries may attend to nothing.\n"
            "  True means may attend here; many libraries mean the opposite. "
            "Inverted? Give Mask.custom(~may_attend)."
        )

    # Converting.

    def to_sdpa(self, queries: int, keys: int | None = None) -> Bool[Tensor, "#batch #heads q k"]:
        """For `scaled_dot_product_attention(attn_mask=...)`: bool, True = may attend."""
        return self.dense(queries, keys)

    def to_additive(
        self, dtype: torch.dtype, queries: int, keys: int | None = None
    ) -> Float[Tensor, "#batch #heads queries keys"]:
        """For code that adds the mask to the scores: 0 = may attend, -inf = hidden."""
        visible = self.dense(queries, keys)
        return torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, -torch.inf)

    def to_nn_multihead(
        self, num_heads: int, queries: int, keys: int | None = None
    ) -> dict[str, Tensor]:
        """For `nn.MultiheadAttention`: its `attn_mask` argument, bool, True = *hidden*.

        It wants (queries, keys), or (batch * heads, queries, keys) when sequences differ.
        """
        hidden = ~self.dense(queries, keys)
        if hidden.shape[:2] == (1, 1):
            return {"attn_mask": hidden[0, 0]}
        return {"attn_mask": hidden.expand(-1, num_heads, -1, -1).flatten(0, 1)}

    def to_flex(self, queries: int, keys: int | None = None) -> MaskMod:
        """For `flex_attention`: the `mask_mod` that `create_block_mask` takes."""
        return self._mask_mod(queries, queries if keys is None else keys)

    def _mask_mod(self, queries: int, keys: int) -> MaskMod:
        raise NotImplementedError

    # Drawing.

    def _natural_size(self) -> tuple[int | None, int | None]:
        """(queries, keys) as far as the mask itself knows them."""
        return None, None

    def draw(self, queries: int, keys: int | None = None) -> str:
        """A picture: ■ may attend, · hidden. One picture for each sequence that differs."""
        visible = self.dense(queries, keys)
        pictures = []
        for b in range(visible.shape[0]):
            for h in range(visible.shape[1]):
                title = [f"sequence {b}"] if visible.shape[0] > 1 else []
                title += [f"head {h}"] if visible.shape[1] > 1 else []
                lines = [", ".join(title)] if title else []
                lines.append("    " + "".join(f" k{j}".ljust(3) for j in range(visible.shape[-1])))
                for i, row in enumerate(visible[b, h].tolist()):
                    lines.append(f"q{i}".ljust(5) + "  ".join("■" if cell else "·" for cell in row))
                pictures.append("\n".join(line.rstrip() for line in lines))
        return "\n\n".join(pictures)

    def __str__(self) -> str:
        queries, keys = self._natural_size()
        keys = keys or queries or 6
        return self.draw(queries or keys, keys)


@dataclass(frozen=True, eq=False)
class _Band(Mask):
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
        unlimited = self.back is None or _always(self.back >= keys - 1)
        return self.ahead == 0 and unlimited and _always(self._offset(queries, keys) == 0)

    def is_same_for_all_queries(self, queries: int, keys: int) -> bool:
        offset = self._offset(queries, keys)
        sees_last = self.ahead is None or _always(offset + self.ahead >= keys - 1)
        sees_first = self.back is None or _always(queries - 1 + offset - self.back <= 0)
        return sees_last and sees_first

    def _visible(self, position: Tensor, key: Tensor) -> Tensor:
        visible = torch.ones((), dtype=torch.bool, device=key.device)
        if self.ahead is not None:
            visible = visible & (key <= position + self.ahead)
        if self.back is not None:
            visible = visible & (key >= position - self.back)
        return visible

    def encode(self, tensors: list[Tensor]) -> str:
        return f"('band',{self.back},{self.ahead},'{self.align}')"

    def _mask_mod(self, queries: int, keys: int) -> MaskMod:
        offset = self._offset(queries, keys)
        return lambda batch, head, query, key: self._visible(query + offset, key)


@dataclass(frozen=True, eq=False)
class _Padding(Mask):
    """Keys that are real, as lengths (batch,) or as bool (batch, keys)."""

    real: Tensor
    side: Side

    def tile(self, rows: slice, cols: slice, queries: int, keys: int, device: Place = None) -> Part:
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
        return _Padding(self.real[batch.to(self.real.device)], self.side)

    def _visible(self, real: Tensor, key: Tensor, keys: int) -> Tensor:
        if real.dtype == torch.bool:
            if real.shape[1] != keys:
                raise ShapeError(
                    f"padding mask: expected (batch, keys={keys}), got {describe(real)}."
                )
            return real[:, key]
        return key < real[:, None] if self.side == "right" else key >= keys - real[:, None]

    def encode(self, tensors: list[Tensor]) -> str:
        tensors.append(self.real)
        return f"('padding',{len(tensors) - 1},'{self.side}')"

    def _mask_mod(self, queries: int, keys: int) -> MaskMod:
        visible = self._visible(self.real, torch.arange(keys, device=self.real.device), keys)
        return lambda batch, head, query, key: visible[batch, key]

    def _natural_size(self) -> tuple[int | None, int | None]:
        if self.real.dtype == torch.bool:
            return None, self.real.shape[1]
        return None, int(self.real.max())


@dataclass(frozen=True, eq=False)
class _Custom(Mask):
    """Any bool (batch, heads, queries, keys); axes of size 1 broadcast."""

    visible: Tensor

    def tile(self, rows: slice, cols: slice, queries: int, keys: int, device: Place = None) -> Part:
        visible = self.visible.to(device) if device is not None else self.visible
        if visible.shape[2] not in (1, queries) or visible.shape[3] not in (1, keys):
            raise ShapeError(
                f"custom mask: expected (.., queries={queries}, keys={keys}), "
                f"got {describe(self.visible)}."
            )
        if visible.shape[2] != 1:
            visible = visible[:, :, rows.start : rows.stop]
        if visible.shape[3] != 1:
            visible = visible[:, :, :, cols.start : cols.stop]
        return visible

    def select(self, batch: Tensor, heads: Tensor) -> Mask:
        visible, device = self.visible, self.visible.device
        visible = visible[batch.to(device)] if visible.shape[0] > 1 else visible
        visible = visible[:, heads.to(device)] if visible.shape[1] > 1 else visible
        return _Custom(visible)

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
class _Pair(Mask):
    left: Mask
    right: Mask

    def _natural_size(self) -> tuple[int | None, int | None]:
        a, b = self.left._natural_size(), self.right._natural_size()
        return a[0] or b[0], a[1] or b[1]

    def is_same_for_all_queries(self, queries: int, keys: int) -> bool:
        return self.left.is_same_for_all_queries(
            queries, keys
        ) and self.right.is_same_for_all_queries(queries, keys)

    def select(self, batch: Tensor, heads: Tensor) -> Mask:
        return type(self)(self.left.select(batch, heads), self.right.select(batch, heads))


class _Both(_Pair):
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

    def _mask_mod(self, queries: int, keys: int) -> MaskMod:
        left, right = self.left._mask_mod(queries, keys), self.right._mask_mod(queries, keys)
        return lambda b, h, q, k: left(b, h, q, k) & right(b, h, q, k)


class _Either(_Pair):
    def reach(self, rows: slice, queries: int, keys: int) -> slice:
        a, b = self.left.reach(rows, queries, keys), self.right.reach(rows, queries, keys)
        return slice(min(a.start, b.start), max(a.stop, b.stop))

    def tile(self, rows: slice, cols: slice, queries: int, keys: int, device: Place = None) -> Part:
        a = self.left.tile(rows, cols, queries, keys, device)
        b = self.right.tile(rows, cols, queries, keys, device)
        return None if a is None or b is None else a | b

    def encode(self, tensors: list[Tensor]) -> str:
        return f"('either',{self.left.encode(tensors)},{self.right.encode(tensors)})"

    def _mask_mod(self, queries: int, keys: int) -> MaskMod:
        left, right = self.left._mask_mod(queries, keys), self.right._mask_mod(queries, keys)
        return lambda b, h, q, k: left(b, h, q, k) | right(b, h, q, k)


def as_band(
    mask: Mask | None, queries: int, keys: int, device: torch.device
) -> dict[str, Any] | None:
    """The mask for a kernel that knows causality, a window and padding; None for any other mask.

    Returns:
        causal: Whether key j is hidden from query i when j > i + causal_offset.
        causal_offset: Where the diagonal begins.
        window: How many keys up to the diagonal are visible, or None.
        key_valid: Which keys are visible at all, bool (batch, keys), or None.
    """
    found: dict[str, Any] = {
        "causal": False,
        "causal_offset": keys - queries,
        "window": None,
        "key_valid": None,
    }
    offsets = set()
    for part in [] if mask is None else mask.parts():
        if isinstance(part, _Band) and part.ahead in (None, 0):
            offsets.add(part._offset(queries, keys))
            found["causal"] |= part.ahead == 0
            found["window"] = _tighter(
                found["window"], None if part.back is None else part.back + 1
            )
        elif isinstance(part, _Padding):
            real = part.real.to(device)
            valid = part._visible(real, torch.arange(keys, device=device), keys)
            found["key_valid"] = valid if found["key_valid"] is None else found["key_valid"] & valid
        else:
            return None
    if len(offsets) > 1:
        return None
    return found | ({"causal_offset": offsets.pop()} if offsets else {})


def _always(holds: bool) -> bool:
    """Whether a comparison of sizes holds; in `torch.export`: whether it does for every size.

    Asking for less there would tie the exported graph to the sizes of its example.
    """
    if torch.compiler.is_exporting():
        from torch.fx.experimental.symbolic_shapes import statically_known_true

        return statically_known_true(holds)
    return holds


def _tighter(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _decode(tree: tuple[object, ...], tensors: Sequence[Tensor]) -> Mask:
    match tree:
        case ("band", back, ahead, align):
            return _Band(back, ahead, align)  # type: ignore[arg-type]  # encode() wrote these
        case ("padding", int(index), side):
            return _Padding(tensors[index], side)  # type: ignore[arg-type]  # encode() wrote it
        case ("custom", int(index)):
            return _Custom(tensors[index])
        case ("both", tuple(left), tuple(right)):
            return _Both(_decode(left, tensors), _decode(right, tensors))
        case ("either", tuple(left), tuple(right)):
            return _Either(_decode(left, tensors), _decode(right, tensors))
    raise ValueError(f"not an encoded mask: {tree!r}")
