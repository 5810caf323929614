"""`Mask`, and the kinds of mask: a band, padding, any matrix, or two masks joined."""

# ruff: noqa: D102  # the methods of the kinds are documented in Mask

import ast
import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NoReturn

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.foreign_names import explained
from clearhead.validation import ShapeError, describe, dtype_name, is_readable

Side = Literal["left", "right"]
Align = Literal["start", "end"]
Device = torch.device | str | None
Part = Bool[Tensor, "#batch #heads rows cols"] | None
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

_WIDEST_PICTURE = 64  # keys; `print` shows larger masks by name only
_WIDTH = "With a cache, keys are all tokens seen so far; with a static cache, its whole capacity."


class Mask:
    """Which query may attend to which key. Built by name, combined with `&` and `|`.

    Examples:
        >>> print(Mask.causal() & Mask.window(2))
             k0 k1 k2 k3 k4 k5
        q0   ■  ·  ·  ·  ·  ·
        q1   ■  ■  ·  ·  ·  ·
        q2   ·  ■  ■  ·  ·  ·
        q3   ·  ·  ■  ■  ·  ·
        q4   ·  ·  ·  ■  ■  ·
        q5   ·  ·  ·  ·  ■  ■
    """

    # Construction

    @explained
    def __init__(self) -> None:
        raise TypeError(
            "Mask: masks are built by name: Mask.causal(), Mask.window(back), Mask.padding(real), "
            "Mask.custom(may_attend)."
        )

    @staticmethod
    def causal(align: Align = "end") -> "Mask":
        """No query attends to a later key.

        Args:
            align: How queries and keys line up if their numbers differ. "end": the last query is
                at the last key, as when decoding with a cache. "start": the first query is at the
                first key, as with `is_causal=True` in `scaled_dot_product_attention`.
        """
        _check_align(align)
        return Band(None, 0, align)

    @staticmethod
    def window(back: int, ahead: int = 0, align: Align = "end") -> "Mask":
        """Each query attends to `back` keys, its own included, and to `ahead` keys after it."""
        whole = all(isinstance(n, int) and not isinstance(n, bool) for n in (back, ahead))
        if not whole or back < 1 or ahead < 0:
            raise ValueError(
                "window: expected integers with back >= 1 (the token itself counts) and "
                f"ahead >= 0, got back={back!r}, ahead={ahead!r}."
            )
        _check_align(align)
        return Band(back - 1, ahead, align)

    @staticmethod
    def padding(
        real: Int[Tensor, " batch"] | Bool[Tensor, "batch keys"] | Sequence[int],
        side: Side = "right",
    ) -> "Mask":
        """Hide the keys that only pad a sequence to the length of its batch.

        Args:
            real: The number of real tokens of each sequence, or True where a token is real. One
                length, or one row, serves the whole batch. While a cache is still growing, the
                lengths of complete texts work too: one greater than the number of keys hides
                nothing.
            side: The side that is padded; used with lengths only. To decode a batch with a cache,
                pad on the left, and count the new tokens in the lengths of each call.
        """
        if side not in ("left", "right"):
            raise ValueError(f'side must be "left" or "right", got {side!r}.')
        real = real if isinstance(real, Tensor) else torch.tensor(real)  # always a copy
        if real.ndim != (2 if real.dtype == torch.bool else 1) or real.is_floating_point():
            hint = ""
            if real.ndim == 2:
                hint = "\n  1 = real token? Try real.bool(). 1 = padding? Try real == 0."
            elif real.ndim == 4 and real.is_floating_point():
                hint = "\n  Added to the scores (0 and -inf)? Try Mask.custom(real == 0)."
            raise ShapeError(
                f"padding: expected lengths (batch,) or bool (batch, tokens), got "
                f"{dtype_name(real)} {describe(real)}.{hint}"
            )
        if real.dtype != torch.bool and is_readable(real) and (real < 0).any():
            raise ValueError(f"padding: expected lengths of 0 or more, got {int(real.min())}.")
        return Padding(real, side)

    @staticmethod
    def custom(may_attend: Bool[Tensor, "..."] | Sequence[object]) -> "Mask":
        """Any mask, given as a matrix.

        Args:
            may_attend: True where the query may attend to the key: bool (queries, keys),
                (batch, queries, keys) or (batch, heads, queries, keys). Axes of size 1 broadcast.
        """
        if not isinstance(may_attend, Tensor):
            may_attend = torch.tensor(may_attend)
        if may_attend.dtype != torch.bool:
            hint = "1 = may attend? Try may_attend.bool(). 1 = hidden? Try may_attend == 0."
            if may_attend.is_floating_point():
                hint = "An additive mask (0 and -inf)? Try may_attend == 0."
            raise ShapeError(
                "custom: expected a bool tensor in which True means may attend, got "
                f"{dtype_name(may_attend)}.\n  {hint}"
            )
        if may_attend.ndim == 3:
            may_attend = may_attend[:, None]
        if may_attend.ndim not in (2, 4):
            raise ShapeError(
                "custom: expected (queries, keys), (batch, queries, keys) or "
                f"(batch, heads, queries, keys), got {describe(may_attend)}."
            )
        return Custom(may_attend.expand(1, 1, -1, -1) if may_attend.ndim == 2 else may_attend)

    def __and__(self, other: "Mask") -> "Mask":
        """Visible where both allow it."""
        other = as_mask(other)
        if isinstance(self, Band) and isinstance(other, Band) and self.align == other.align:
            back, ahead = tighter(self.back, other.back), tighter(self.ahead, other.ahead)
            return Band(back, ahead, self.align)
        return Both(self, other)

    def __or__(self, other: "Mask") -> "Mask":
        """Visible where either allows it."""
        return Either(self, as_mask(other))

    __rand__, __ror__ = __and__, __or__  # `tensor & mask` raises the TypeError of as_mask

    def __invert__(self) -> NoReturn:
        raise TypeError(
            "~: a mask cannot be inverted, because it has no size until it is used.\n"
            "  Invert the matrix: Mask.custom(~mask.dense(queries, keys)), or the tensor before it "
            "becomes a mask: Mask.custom(~hidden), Mask.padding(~is_padding)."
        )

    # Queries, used by the kernels and maps

    def tile(
        self, rows: slice, cols: slice, queries: int, keys: int, device: Device = None
    ) -> Part:
        """The part of the queries × keys matrix at rows × cols; None if all of it is visible.

        Rows and columns are slices with a start and a stop, not ranges: a range would make
        `torch.compile` recompile for every length.
        """
        raise NotImplementedError

    def reach(self, rows: slice, queries: int, keys: int) -> slice:
        """A range of keys outside of which these rows attend to nothing."""
        return slice(0, keys)

    def is_start_causal(self, queries: int, keys: int) -> bool:
        """Whether this mask, at this size, equals SDPA's `is_causal=True`."""
        return False

    def is_same_for_all_queries(self, queries: int, keys: int) -> bool:
        """Whether all queries attend to the same keys, as with padding alone."""
        return False

    def is_never_empty(self, queries: int, keys: int) -> bool:
        """Whether every query is certain to attend to at least one key (its own, in a band)."""
        return False

    def check(
        self,
        batch: int | None,
        heads: int | None,
        queries: int,
        keys: int,
        *,
        complete: bool = False,
    ) -> None:
        """Raise `ShapeError` unless the mask fits weights of this shape.

        Args:
            batch: The number of sequences; None = unknown.
            heads: The number of heads; None = unknown.
            queries: The number of queries.
            keys: The number of keys.
            complete: Whether no more keys will follow, as they do with a cache. Lengths on the CPU
                must then not exceed the number of keys.
        """

    def over(
        self, queries: int, seen: Int[Tensor, ""], capacity: int
    ) -> Bool[Tensor, "#batch #heads #queries #capacity"]:
        """`dense(queries, seen)`, padded to the width of a static cache that holds `seen` tokens.

        The value of `seen` is never read, so a CUDA graph can be captured. A mask that is a matrix
        must be as wide as the capacity. Empty slots count as later keys: causality hides them.
        """
        raise NotImplementedError

    def parts(self) -> list["Mask"]:
        """The masks that `&` joined, or this mask alone."""
        return [self]

    def select(self, batch: Tensor, heads: Tensor) -> "Mask":
        """The mask of the sequences and heads with these indices."""
        return self

    def encode(self, tensors: list[Tensor]) -> str:
        """The mask as text, with its tensors appended to `tensors`; `Mask.decode` reverses it."""
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
        """The mask that `encode` wrote.

        Raises:
            ValueError: `encode` did not write this text, or not for these tensors.
        """
        try:
            return _decode(ast.literal_eval(text), tensors)
        except (SyntaxError, TypeError, LookupError, RecursionError, MemoryError) as error:
            raise ValueError(f"not an encoded mask: {type(error).__name__}") from None

    def dense(
        self, queries: int, keys: int | None = None, device: torch.device | str | None = None
    ) -> Bool[Tensor, "#batch #heads queries keys"]:
        """The whole matrix, for small sizes and for other libraries.

        Examples:
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
        """A likely mistake in this mask at this size, or None. Builds the whole matrix."""
        visible = self.dense(queries, keys)
        empty = ~visible.any(-1)
        if not empty.any():
            return None
        rows = int(empty.flatten(0, 1).any(0).sum())
        return (
            f"{rows} of {queries} queries may attend to nothing.\n"
            "  True means may attend; in many libraries it means the opposite. "
            "Inverted? Try Mask.custom(~may_attend)."
        )

    # Conversion for other libraries

    def to_sdpa(self, queries: int, keys: int | None = None) -> Bool[Tensor, "#batch #heads q k"]:
        """For `scaled_dot_product_attention(attn_mask=...)`: bool, True = may attend."""
        return self.dense(queries, keys)

    def to_additive(
        self, dtype: torch.dtype, queries: int, keys: int | None = None
    ) -> Float[Tensor, "#batch #heads queries keys"]:
        """For code that adds the mask to the scores: 0 = may attend, -inf = hidden."""
        if not isinstance(dtype, torch.dtype):
            raise TypeError(
                f"to_additive: expected a dtype first, got {dtype!r}.\n"
                "  The order: mask.to_additive(torch.float32, queries, keys)."
            )
        visible = self.dense(queries, keys)
        return torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, -torch.inf)

    def to_nn_multihead(
        self, num_heads: int, queries: int, keys: int | None = None
    ) -> dict[str, Tensor]:
        """For `nn.MultiheadAttention`: its `attn_mask` argument, bool, True = *hidden*.

        Its shape is (queries, keys), or (batch * heads, queries, keys) if sequences differ.
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

    # Drawing

    def _natural_size(self) -> tuple[int | None, int | None]:
        """(queries, keys), where the mask itself determines them."""
        return None, None

    def draw(self, queries: int, keys: int | None = None) -> str:
        """A picture: ■ may attend, · hidden. One picture per sequence and head that differ."""
        visible = self.dense(queries, keys)
        pictures = []
        for b in range(visible.shape[0]):
            for h in range(visible.shape[1]):
                title = [f"sequence {b}"] if visible.shape[0] > 1 else []
                title += [f"head {h}"] if visible.shape[1] > 1 else []
                lines = [", ".join(title)] if title else []
                wide = max(3, len(f"k{visible.shape[-1]}") + 1)
                names = (f"k{j}".ljust(wide) for j in range(visible.shape[-1]))
                lines.append("     " + "".join(names))
                for i, row in enumerate(visible[b, h].tolist()):
                    cells = (("■" if cell else "·").ljust(wide) for cell in row)
                    lines.append(f"q{i}".ljust(5) + "".join(cells))
                pictures.append("\n".join(line.rstrip() for line in lines))
        return "\n\n".join(pictures)

    def __str__(self) -> str:
        queries, keys = self._natural_size()
        keys = keys or queries or 6
        return repr(self) if keys > _WIDEST_PICTURE else self.draw(queries or keys, keys)

    def _repr_html_(self) -> str:
        lines = [repr(self), str(self)] if str(self) != repr(self) else [repr(self)]
        style = "font-family: monospace; line-height: 1.2; overflow-x: auto"
        return f'<pre style="{style}">{html.escape(chr(10).join(lines))}</pre>'


@dataclass(frozen=True, eq=False)
class Band(Mask):
    """Key j is visible to query i when -back <= j - position(i) <= ahead; None = unlimited."""

    back: int | None
    ahead: int | None
    align: Align

    def __repr__(self) -> str:
        align = [] if self.align == "end" else [f'align="{self.align}"']
        if self.back is None and self.ahead == 0:
            return f"Mask.causal({', '.join(align)})"
        if self.back is None or self.ahead is None:
            return f"Mask(back={self.back}, ahead={self.ahead}, align={self.align!r})"
        ahead = [f"ahead={self.ahead}"] if self.ahead else []
        return f"Mask.window({', '.join([str(self.back + 1), *ahead, *align])})"

    def offset(self, queries: int, keys: int) -> int:
        """The key position of query 0."""
        return keys - queries if self.align == "end" else 0

    def reach(self, rows: slice, queries: int, keys: int) -> slice:
        offset = self.offset(queries, keys)
        low = 0 if self.back is None else max(0, rows.start + offset - self.back)
        high = keys if self.ahead is None else min(keys, rows.stop + offset + self.ahead)
        return slice(min(low, keys), max(high, min(low, keys)))

    def tile(
        self, rows: slice, cols: slice, queries: int, keys: int, device: Device = None
    ) -> Part:
        offset = self.offset(queries, keys)
        ahead_of_all = self.ahead is None or cols.stop - 1 <= rows.start + offset + self.ahead
        back_of_all = self.back is None or cols.start >= rows.stop - 1 + offset - self.back
        if _always(ahead_of_all) and _always(back_of_all):
            return None
        position = torch.arange(rows.start, rows.stop, device=device)[:, None] + offset
        key = torch.arange(cols.start, cols.stop, device=device)
        return self._visible(position, key)[None, None]

    def is_start_causal(self, queries: int, keys: int) -> bool:
        if self.ahead != 0 or not (self.align == "start" or _always(queries == keys)):
            return False
        return self.back is None or _always(self.back >= queries - 1)

    def is_same_for_all_queries(self, queries: int, keys: int) -> bool:
        offset = self.offset(queries, keys)
        sees_last = self.ahead is None or _always(offset + self.ahead >= keys - 1)
        sees_first = self.back is None or _always(queries - 1 + offset - self.back <= 0)
        return sees_last and sees_first

    def is_never_empty(self, queries: int, keys: int) -> bool:
        return _always(queries == keys)  # then query i is at key i, which every band includes

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
        offset = self.offset(queries, keys)
        return lambda batch, head, query, key: self._visible(query + offset, key)


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """Keys that are real, as lengths (batch,) or as bool (batch, keys)."""

    real: Tensor
    side: Side

    def __repr__(self) -> str:
        if self.real.dtype == torch.bool:
            return f"Mask.padding(bool {describe(self.real)})"
        few = self.real.device.type == "cpu" and self.real.numel() <= 8
        lengths = self.real.tolist() if few else f"lengths {describe(self.real)}"
        return f"Mask.padding({lengths}" + (', side="left")' if self.side == "left" else ")")

    def tile(
        self, rows: slice, cols: slice, queries: int, keys: int, device: Device = None
    ) -> Part:
        self.check(None, None, queries, keys)
        real = self.real.to(device) if device is not None else self.real
        key = torch.arange(cols.start, cols.stop, device=real.device)
        return self._visible(real, key, keys)[:, None, None, :]

    def reach(self, rows: slice, queries: int, keys: int) -> slice:
        if self.real.device.type != "cpu":  # reading values would synchronise the device
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

    def check(
        self,
        batch: int | None,
        heads: int | None,
        queries: int,
        keys: int,
        *,
        complete: bool = False,
    ) -> None:
        real, size = self.real, "batch" if batch is None else f"batch={batch}"
        if real.dtype == torch.bool and real.shape[1] != keys:
            raise ShapeError(
                f"padding mask: expected ({size}, keys={keys}), got {describe(real)}.\n  {_WIDTH}"
            )
        if batch is not None and real.shape[0] != 1 and real.shape[0] != batch:
            wanted = f"({size}, keys={keys})" if real.ndim == 2 else f"lengths ({size},)"
            raise ShapeError(
                f"padding mask: expected {wanted}, got {describe(real)}.\n"
                "  Pass one row or length per sequence of the batch, or one for all of them."
            )
        if complete and real.dtype != torch.bool and is_readable(real) and real.numel():
            longest = int(real.max())
            if longest > keys:
                raise ShapeError(
                    f"padding mask: expected lengths of at most {keys}, the number of keys, got "
                    f"{longest}.\n  Truncated the input? Truncate the lengths too: "
                    f"lengths.clamp(max={keys})."
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

    def visible_keys(self, keys: int, device: Device = None) -> Bool[Tensor, "#batch keys"]:
        """True where a key is real."""
        real = self.real if device is None else self.real.to(device)
        return self._visible(real, torch.arange(keys, device=real.device), keys)

    def _mask_mod(self, queries: int, keys: int) -> MaskMod:
        self.check(None, None, queries, keys)
        visible = self.visible_keys(keys)
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

    def __repr__(self) -> str:
        batch, heads, queries, keys = self.visible.shape
        return f"Mask.custom(batch={batch}, heads={heads}, queries={queries}, keys={keys})"

    def tile(
        self, rows: slice, cols: slice, queries: int, keys: int, device: Device = None
    ) -> Part:
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

    def check(
        self,
        batch: int | None,
        heads: int | None,
        queries: int,
        keys: int,
        *,
        complete: bool = False,
    ) -> None:
        sizes = (batch, heads, queries, keys)
        for own, size in zip(self.visible.shape, sizes, strict=True):
            if own != 1 and size is not None and own != size:
                known = zip(("batch", "heads", "queries", "keys"), sizes, strict=True)
                axes = (name if size is None else f"{name}={size}" for name, size in known)
                wide = self.visible.shape[3] not in (1, keys)
                raise ShapeError(
                    f"custom mask: expected ({', '.join(axes)}), got {describe(self.visible)}; "
                    "axes of size 1 broadcast." + (f"\n  {_WIDTH}" if wide else "")
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


@dataclass(frozen=True, eq=False, repr=False)
class Pair(Mask):
    """Two masks joined."""

    left: Mask
    right: Mask
    name: ClassVar[str]
    sign: ClassVar[str]

    def __repr__(self) -> str:
        parts = (self.left, self.right)
        shown = (
            f"({p!r})" if isinstance(p, Pair) and p.sign != self.sign else repr(p) for p in parts
        )
        return f" {self.sign} ".join(shown)

    def _join(self, left: Tensor, right: Tensor) -> Tensor:
        raise NotImplementedError

    def _natural_size(self) -> tuple[int | None, int | None]:
        a, b = self.left._natural_size(), self.right._natural_size()
        return a[0] or b[0], a[1] or b[1]

    def is_same_for_all_queries(self, queries: int, keys: int) -> bool:
        left = self.left.is_same_for_all_queries(queries, keys)
        return left and self.right.is_same_for_all_queries(queries, keys)

    def is_never_empty(self, queries: int, keys: int) -> bool:
        # True for bands only, and every band includes the key at the query's own position.
        left = self.left.is_never_empty(queries, keys)
        return left and self.right.is_never_empty(queries, keys)

    def select(self, batch: Tensor, heads: Tensor) -> Mask:
        return type(self)(self.left.select(batch, heads), self.right.select(batch, heads))

    def check(
        self,
        batch: int | None,
        heads: int | None,
        queries: int,
        keys: int,
        *,
        complete: bool = False,
    ) -> None:
        self.left.check(batch, heads, queries, keys, complete=complete)
        self.right.check(batch, heads, queries, keys, complete=complete)

    def encode(self, tensors: list[Tensor]) -> str:
        return f"('{self.name}',{self.left.encode(tensors)},{self.right.encode(tensors)})"

    def over(self, queries: int, seen: Tensor, capacity: int) -> Tensor:
        left = self.left.over(queries, seen, capacity)
        return self._join(left, self.right.over(queries, seen, capacity))

    def _mask_mod(self, queries: int, keys: int) -> MaskMod:
        left, right = self.left._mask_mod(queries, keys), self.right._mask_mod(queries, keys)
        return lambda b, h, q, k: self._join(left(b, h, q, k), right(b, h, q, k))


class Both(Pair):
    """Visible where both allow it."""

    name, sign = "both", "&"

    def _join(self, left: Tensor, right: Tensor) -> Tensor:
        return left & right

    def parts(self) -> list[Mask]:
        return self.left.parts() + self.right.parts()

    def reach(self, rows: slice, queries: int, keys: int) -> slice:
        a, b = self.left.reach(rows, queries, keys), self.right.reach(rows, queries, keys)
        low = max(a.start, b.start)
        return slice(low, max(low, min(a.stop, b.stop)))

    def tile(
        self, rows: slice, cols: slice, queries: int, keys: int, device: Device = None
    ) -> Part:
        a = self.left.tile(rows, cols, queries, keys, device)
        b = self.right.tile(rows, cols, queries, keys, device)
        if a is None or b is None:
            return b if a is None else a
        return a & b


class Either(Pair):
    """Visible where either allows it."""

    name, sign = "either", "|"

    def _join(self, left: Tensor, right: Tensor) -> Tensor:
        return left | right

    def reach(self, rows: slice, queries: int, keys: int) -> slice:
        a, b = self.left.reach(rows, queries, keys), self.right.reach(rows, queries, keys)
        return slice(min(a.start, b.start), max(a.stop, b.stop))

    def tile(
        self, rows: slice, cols: slice, queries: int, keys: int, device: Device = None
    ) -> Part:
        a = self.left.tile(rows, cols, queries, keys, device)
        b = self.right.tile(rows, cols, queries, keys, device)
        return None if a is None or b is None else a | b


_DEEPEST = 100  # masks in a mask
_FARTHEST = 2**31  # tokens


def _decode(tree: object, tensors: Sequence[Tensor], deep: int = 0) -> Mask:
    """The mask that `Mask.encode` wrote, parsed into nested tuples; it may be from a file."""
    if deep > _DEEPEST:
        raise ValueError(f"not an encoded mask: more than {_DEEPEST} masks inside each other")
    match tree:
        case ("band", None | int() as back, None | int() as ahead, "start" | "end" as align):
            if all(n is None or (type(n) is int and abs(n) < _FARTHEST) for n in (back, ahead)):
                return Band(back, ahead, align)
        case ("padding", int(index), "left" | "right" as side):
            real = tensors[index]
            if (real.dtype == torch.bool and real.ndim == 2) or (
                not real.is_floating_point() and not real.is_complex() and real.ndim == 1
            ):
                return Padding(real, side)
        case ("custom", int(index)):
            if tensors[index].dtype == torch.bool and tensors[index].ndim == 4:
                return Custom(tensors[index])
        case ("both", tuple(left), tuple(right)):
            return Both(_decode(left, tensors, deep + 1), _decode(right, tensors, deep + 1))
        case ("either", tuple(left), tuple(right)):
            return Either(_decode(left, tensors, deep + 1), _decode(right, tensors, deep + 1))
    raise ValueError(f"not an encoded mask: {repr(tree)[:200]}")


def tighter(a: int | None, b: int | None) -> int | None:
    """The smaller of two limits; None = unlimited."""
    return b if a is None else a if b is None else min(a, b)


def _always(holds: bool) -> bool:
    """Whether a comparison of sizes holds; during `torch.export`, whether it holds for every size.

    A weaker answer would tie the exported graph to the sizes of its example input.
    """
    if torch.compiler.is_exporting():
        from torch.fx.experimental.symbolic_shapes import statically_known_true

        return statically_known_true(holds)
    return holds


def _check_align(align: Align) -> None:
    if align not in ("start", "end"):
        size = "\n  A size? A mask has none: it fits any number of queries and keys."
        raise ValueError(
            f'align must be "start" or "end", got {align!r}.'
            + (size if isinstance(align, int) else "")
        )


def as_mask(mask: object) -> Mask:
    """Return the mask; raise a TypeError that explains what to write if it is not one."""
    if isinstance(mask, Mask):
        return mask
    got = type(mask).__name__
    hint = (
        "Wrap a tensor: Mask.padding(real) for (batch, tokens), "
        "Mask.custom(may_attend) for (queries, keys); True means may attend."
    )
    if isinstance(mask, Tensor):
        got = f"a tensor: {dtype_name(mask)} {describe(mask)}"
        if mask.is_floating_point():
            hint += "\n  Added to the scores (0 and -inf)? Mask.custom(mask == 0)."
        elif mask.dtype != torch.bool:
            hint += (
                "\n  1 = real token, as Hugging Face's attention_mask? Mask.padding(mask.bool())."
            )
    raise TypeError(f"mask: expected a clearhead.Mask, got {got}.\n  {hint}")
