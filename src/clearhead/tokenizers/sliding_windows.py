"""SlidingWindowDataset: pairs to learn the next token from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import Dataset

from clearhead.tokenizers.tokenizer import END_OF_TEXT
from clearhead.validation import ShapeError


class SlidingWindowDataset(Dataset[tuple[Tensor, Tensor]]):
    """Pairs (inputs, targets) to learn the next token from, cut out of one long text.

    Window number w begins at ``w * stride``. Its inputs are ``context_length`` ids, and its targets
    the same ids one step further on. A rest at the end that does not fill a window is left out.

    Args:
        ids: the text's token ids, as a list or a one-dimensional tensor of integers.
        context_length: ids in a window.
        stride: steps from one window to the next; equal to ``context_length``, no two overlap.

    Raises:
        ShapeError: ids is not one-dimensional, or not whole numbers.
        ValueError: the text is too short, or a number is not positive.

    Example:
        >>> inputs, targets = SlidingWindowDataset([5, 6, 7, 8, 9], context_length=3, stride=1)[0]
        >>> inputs.tolist(), targets.tolist()
        ([5, 6, 7], [6, 7, 8])
    """

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
                f"  The windows are cut from one long text: join the sentences, with "
                f"{END_OF_TEXT} between them."
            )
        if len(stored) <= context_length:
            raise ValueError(
                f"ids: expected at least context_length + 1 = {context_length + 1} tokens, "
                f"got {len(stored)}.\n"
                f"  Each window needs one token more, its last target. "
                f"Take a longer text or a smaller context_length."
            )
        if stored.is_floating_point() or stored.is_complex() or stored.dtype == torch.bool:
            raise ShapeError(f"ids: expected whole numbers, got {stored.dtype}.")
        self.ids = stored.long()
        self.context_length = context_length
        self.stride = stride

    def __len__(self) -> int:
        return (len(self.ids) - self.context_length - 1) // self.stride + 1

    def __getitem__(
        self, index: int
    ) -> tuple[Int[Tensor, "context_length"], Int[Tensor, "context_length"]]:
        number = index + len(self) if index < 0 else index
        # A loop over the dataset ends at this IndexError.
        if not 0 <= number < len(self):
            raise IndexError(f"index: expected less than {len(self)} windows, got {index}.")
        begin = number * self.stride
        end = begin + self.context_length
        return self.ids[begin:end], self.ids[begin + 1 : end + 1]
