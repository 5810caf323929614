"""What every tokenizer can do, and the checks that both of ours share."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Protocol

from jaxtyping import Int
from torch import Tensor

END_OF_TEXT = "<|endoftext|>"


class Tokenizer(Protocol):
    """What a tokenizer can do."""

    @property
    def vocab_size(self) -> int:
        """How many different ids there are; they run from 0 to vocab_size - 1."""

    def encode(self, text: str, *, allow_special: bool = True) -> list[int]:
        """Text to ids."""

    def decode(self, ids: Iterable[int] | Int[Tensor, "tokens"]) -> str:
        """Ids to text."""

    def tokens(self, text: str, *, allow_special: bool = True) -> list[str]:
        """Text to the pieces that the ids of `encode` stand for, to be shown to people."""


def check_text(text: str) -> None:
    """Raise for what is not a string."""
    if not isinstance(text, str):
        raise ValueError(
            f"text: expected a string, got {type(text).__name__}.\n"
            f"  Several sentences? Encode them one by one."
        )


def checked_ids(ids: Iterable[int] | Tensor, vocab_size: int) -> list[int]:
    """The ids as plain integers, each in range."""
    checked = []
    for place, value in enumerate(ids):
        try:
            number = operator.index(value)
        except TypeError as error:
            raise ValueError(
                f"ids: expected whole numbers, got {value!r} at place {place}.\n"
                f"  Several sentences? Decode them one by one."
            ) from error
        if not 0 <= number < vocab_size:
            raise ValueError(
                f"ids: expected 0 to {vocab_size - 1}, got {number} at place {place}.\n"
                f"  Was this text encoded with another tokenizer?"
            )
        checked.append(number)
    return checked
