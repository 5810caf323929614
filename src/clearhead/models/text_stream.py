"""Text in, text out: a model's tokenizer, whole characters from tokens, and what was looked at.

GPT-2's tokens are pieces of bytes, and a character outside English letters is often cut in two or
three of them. `Characters` keeps such pieces back until the character is whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from clearhead.models.hugging_face import reason
from clearhead.tokenizers import GPT2Tokenizer

if TYPE_CHECKING:
    pass

_GPT2_VOCAB_SIZE = 50257
# On the hub, under any owner's name.
_GPT2_NAMES = ("gpt2", "gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2")
_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "vocab.bpe", "merges.txt", "encoder.json")
_BROKEN = "\N{REPLACEMENT CHARACTER}"
_MOST_PIECES = 4  # of one character: UTF-8 takes up to four bytes


class Tokenizer(Protocol):
    """What is needed of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Text to ids."""

    def decode(self, ids: Sequence[int]) -> str:
        """Ids to text."""


class _Theirs:
    """A tokenizer of Hugging Face's, with our two methods."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        found: list[int] = self.tokenizer.encode(text)
        return found

    def decode(self, ids: Sequence[int]) -> str:
        found: str = self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
        return found


def find_tokenizer(path_or_name: str | Path, vocab_size: int) -> tuple[Tokenizer, int | None]:
    """The tokenizer that belongs to a model, and the id of its end of text.

    The one in the model's folder if there is one, else GPT-2's own.

    Args:
        path_or_name: Where the model came from.
        vocab_size: How many tokens the model knows.
    """
    path = Path(path_or_name)
    folder = path if path.is_dir() else path.parent if path.is_file() else None
    present = [] if folder is None else [n for n in _TOKENIZER_FILES if (folder / n).is_file()]
    if folder is not None and present:
        try:
            return GPT2Tokenizer(folder), _GPT2_VOCAB_SIZE - 1
        except ValueError:  # another vocabulary, or the same one in other files
            return _load_theirs(folder, local=True)
    if folder is None and path.name.lower() not in _GPT2_NAMES:
        return _load_theirs(path_or_name, local=False)
    if vocab_size != _GPT2_VOCAB_SIZE:
        raise ValueError(
            f"{path_or_name}: no tokenizer beside the weights, and GPT-2's own does not fit: "
            f"it has {_GPT2_VOCAB_SIZE:,} tokens, the model {vocab_size:,}.\n"
            "  Save the model's tokenizer there, too: tokenizer.save_pretrained(folder)."
        )
    return GPT2Tokenizer(), _GPT2_VOCAB_SIZE - 1


def _load_theirs(where: str | Path, *, local: bool) -> tuple[Tokenizer, int | None]:
    """The tokenizer of a folder or of a name on the hub, by Hugging Face's library."""
    try:
        import transformers
    except ImportError:
        raise ValueError(
            f"{where}: its tokenizer needs transformers, which is not installed.\n"
            "  Install it: pip install transformers"
        ) from None
    try:
        found = transformers.AutoTokenizer.from_pretrained(
            where, local_files_only=local, trust_remote_code=False
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{where}: the tokenizer cannot be loaded.\n  {reason(error)}") from None
    return _Theirs(found), found.eos_token_id


class Characters:
    """Token ids, one by one -> text in whole characters.

    Args:
        tokenizer: What turns ids into text.
        before: The ids that stand before them: whether there is a space may depend on the last.

    >>> characters = Characters(GPT2Tokenizer())
    >>> [characters.add(token) for token in GPT2Tokenizer().encode(" 猫!")]
    ['', '', ' 猫', '!']
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._before = list(before[-1:])
        self._waiting: list[int] = []

    def add(self, token: int) -> str:
        """What can be shown now that this token is there, too."""
        self._waiting.append(token)
        text = self._text()
        if text.endswith(_BROKEN) and len(self._waiting) < _MOST_PIECES:
            return ""
        self._before, self._waiting = self._waiting, []
        return text

    def rest(self) -> str:
        """What is left at the end: broken characters, if any."""
        text = self._text()
        self._waiting.clear()
        return text

    def _text(self) -> str:
        """The text of the waiting ids, with the space that parts them from what stands before."""
        alone = self._tokenizer.decode(self._waiting)
        before = self._tokenizer.decode(self._before)
        together = self._tokenizer.decode([*self._before, *self._waiting])
        return together.removeprefix(before) if together.startswith(before) else alone
