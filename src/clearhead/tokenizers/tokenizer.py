"""Tokenizer: the protocol that both tokenizers follow, and the checks they share."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import NoReturn, Protocol

from jaxtyping import Int
from torch import Tensor

END_OF_TEXT = "<|endoftext|>"


class Tokenizer(Protocol):
    """The interface of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """The number of ids, which run from 0 to vocab_size - 1."""

    def encode(self, text: str, *, allow_special: bool = True) -> list[int]:
        """Text to ids."""

    def decode(self, ids: Iterable[int] | Int[Tensor, "tokens"]) -> str:
        """Ids to text."""

    def tokens(self, text: str, *, allow_special: bool = True) -> list[str]:
        """The text of each token, one string per id of `encode`, for display."""


class EncodesText:
    """What both tokenizers have besides the protocol: a repr, and an error for a call."""

    @property
    def vocab_size(self) -> int:
        """The number of ids."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.vocab_size:,} tokens)"

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        """Not supported, unlike in Hugging Face's tokenizers."""
        raise TypeError(
            f"{type(self).__name__}: tokenizer.encode(text) gives a list of ids, "
            "torch.tensor([ids]) a batch for a model, and model.generate takes the list."
        )


def check_text(text: str) -> None:
    """Raise unless `text` is a string."""
    if not isinstance(text, str):
        raise ValueError(
            f"text: expected a string, got {type(text).__name__}.\n"
            f"  Several sentences? Encode them one by one."
        )


def checked_ids(ids: Iterable[int] | Tensor, vocab_size: int) -> list[int]:
    """The ids as Python integers; raise if one is out of range."""
    checked = []
    for index, value in enumerate(ids):
        try:
            number = operator.index(value)
        except TypeError as error:
            raise ValueError(
                f"ids: expected integers, got {value!r} at index {index}.\n"
                f"  Several sentences? Decode them one by one."
            ) from error
        if not 0 <= number < vocab_size:
            raise ValueError(
                f"ids: expected 0 to {vocab_size - 1}, got {number} at index {index}.\n"
                f"  Was this text encoded with another tokenizer?"
            )
        checked.append(number)
    return checked
