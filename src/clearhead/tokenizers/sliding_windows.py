"""SlidingWindowDataset: pairs of inputs and targets for next-token training."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import Dataset

from clearhead.foreign_names import explained
from clearhead.tokenizers.tokenizer import END_OF_TEXT
from clearhead.validation import ShapeError


class SlidingWindowDataset(Dataset[tuple[Tensor, Tensor]]):
    """Pairs (inputs, targets) for next-token training, cut from one long text.

    Window w starts at ``w * stride``. Its inputs are ``context_length`` ids, and its targets are
    the ids one position later. A remainder that does not fill a window is dropped.

    Args:
        ids: The text's token ids, as a list or a one-dimensional tensor of integers.
        context_length: The number of ids per window.
        stride: The distance between window starts; ``context_length`` for no overlap.

    Raises:
        ShapeError: `ids` is not one-dimensional, or has no integer dtype.
        ValueError: The text is too short, or a size is not positive.

    Examples:
        >>> inputs, targets = SlidingWindowDataset([5, 6, 7, 8, 9], context_length=3, stride=1)[0]
        >>> inputs.tolist(), targets.tolist()
        ([5, 6, 7], [6, 7, 8])
    """

    @explained
    def __init__(
        self, ids: Sequence[int] | Int[Tensor, "tokens"], context_length: int, stride: int
    ) -> None:
        if isinstance(ids, str):
            raise ValueError(
                "ids: expected token ids, got text.\n  Encode it first: tokenizer.encode(text)."
            )
        for name, value in (("context_length", context_length), ("stride", stride)):
            if value <= 0:
                raise ValueError(f"{name}: expected 1 or more, got {value}.")
        stored = torch.as_tensor(ids)
        if stored.ndim != 1:
            raise ShapeError(
                f"ids: expected (tokens,), got {tuple(stored.shape)}.\n"
                f"  Windows are cut from one long text: join the sentences with "
                f"{END_OF_TEXT} between them."
            )
        if len(stored) <= context_length:
            raise ValueError(
                f"ids: expected at least context_length + 1 = {context_length + 1} tokens, "
                f"got {len(stored)}.\n"
                f"  Each window needs one more token as its last target. "
                f"Use a longer text or a smaller context_length."
            )
        if stored.is_floating_point() or stored.is_complex() or stored.dtype == torch.bool:
            raise ShapeError(f"ids: expected integers, got {stored.dtype}.")
        self.ids = stored.long()
        self.context_length = context_length
        self.stride = stride

    def __repr__(self) -> str:
        return (
            f"SlidingWindowDataset({len(self)} windows, context_length={self.context_length}, "
            f"stride={self.stride})"
        )

    def __len__(self) -> int:
        return (len(self.ids) - self.context_length - 1) // self.stride + 1

    def __getitem__(
        self, index: int
    ) -> tuple[Int[Tensor, "context_length"], Int[Tensor, "context_length"]]:
        position = index + len(self) if index < 0 else index
        # Iteration over the dataset ends with this IndexError.
        if not 0 <= position < len(self):
            raise IndexError(
                f"index: expected less than {len(self)}, the number of windows, got {index}."
            )
        begin = position * self.stride
        end = begin + self.context_length
        return self.ids[begin:end], self.ids[begin + 1 : end + 1]
