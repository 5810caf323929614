"""Mask: who may attend to whom, built by name, combined, asked, converted and drawn."""

import ast
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.validation import ShapeError, describe, is_readable

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
        _check_align(align)
        return kinds.Band(None, 0, align)

    @staticmethod
    def window(back: int, ahead: int = 0, align: Align = "end") -> "Mask":
        """Each query sees `back` keys, itself included, and `ahead` keys after itself."""
        whole = all(isinstance(n, int) and not isinstance(n, bool) for n in (back, ahead))
        if not whole or back < 1 or ahead < 0:
            raise ValueError(
                "window: expected whole numbers, at least 1 key (the token itself is the first) "
                f"and ahead >= 0, got back={back!r}, ahead={ahead!r}."
            )
        _check_align(align)
        return kinds.Band(back - 1, ahead, align)

    @staticmethod
    def padding(
        real: Int[Tensor, " batch"] | Bool[Tensor, "batch keys"] | Sequence[int],
        side: Side = "right",
    ) -> "Mask":
        """Hide the keys that only fill a batch up to one length.

        Args:
            real: How many real tokens each sequence has, or True where a token is real. More than
                there are keys hides none: so lengths of whole texts serve while tokens still come.
            side: With lengths: the side on which the filling stands.
        """
        if side not in ("left", "right"):
            raise ValueError(f'side must be "left" or "right", got {side!r}.')
        real = real if isinstance(real, Tensor) else torch.tensor(real)  # a copy: ours alone
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
        if real.dtype != torch.bool and is_readable(real) and (real < 0).any():
            raise ValueError(f"padding: expected lengths of 0 or more, got {int(real.min())}.")
        return kinds.Padding(real, side)

    @staticmethod
    def custom(may_attend: Bool[Tensor, "..."] | Sequence[object]) -> "Mask":
        """Any mask at all, as bool (queries, keys), (batch, queries, keys) or with heads.

        Args:
            may_attend: True where the query may look at the key. Axes of size 1 broadcast.
        """
        if not isinstance(may_attend, Tensor):
            may_attend = torch.tensor(may_attend)
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
        return kinds.Custom(may_attend.expand(1, 1, -1, -1) if may_attend.ndim == 2 else may_attend)

    def __and__(self, other: "Mask") -> "Mask":
        """Visible where both allow it."""
        return kinds.both(self, as_mask(other))

    def __or__(self, other: "Mask") -> "Mask":
        """Visible where either allows it."""
        return kinds.Either(self, as_mask(other))

    __rand__, __ror__ = __and__, __or__  # reached by what is no mask: to say so

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

    def is_never_empty(self, queries: int, keys: int) -> bool:
        """Whether every query surely sees something: with causality or a window, itself."""
        return False

    def check(self, batch: int | None, heads: int | None, queries: int, keys: int) -> None:
        """Raise `ShapeError` unless the mask fits weights of this shape; None = not known yet."""

    def over(
        self, queries: int, seen: Int[Tensor, ""], capacity: int
    ) -> Bool[Tensor, "#batch #heads #queries #capacity"]:
        """What `dense(queries, seen)` says, as wide as a cache that holds `seen` of its places.

        `seen` stays a tensor: nobody reads it, so that a graph can be captured. A mask that is a
        matrix itself must be as wide as the capacity. Of places that are empty yet the mask says
        what it says of later keys: causality hides them.
        """
        raise NotImplementedError

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
        return kinds.decode(ast.literal_eval(text), tensors)

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


def _check_align(align: Align) -> None:
    if align not in ("start", "end"):
        raise ValueError(f'align must be "start" or "end", got {align!r}.')


def as_mask(mask: object) -> Mask:
    """The mask itself, or a TypeError that says what to write instead."""
    if isinstance(mask, Mask):
        return mask
    raise TypeError(
        f"mask: expected a clearhead.Mask, got {type(mask).__name__}.\n"
        "  Say what it means: Mask.padding(real) for (batch, tokens), "
        "Mask.custom(may_attend) for (queries, keys); True means may attend."
    )


# Down here, since every kind of mask is itself a Mask.
from clearhead.masks import kinds  # noqa: E402  # see above
