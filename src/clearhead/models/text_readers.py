"""Text readers: text -> token ids and labels, and token ids -> text, for each kind of model.

    WordTextReader       models of the grammar: whole words, some of them unknown
    BytePairTextReader   byte pairs: GPT-2's, or the vocabulary of another model
    HubTextReader        any other tokenizer, through transformers

`find_reader` finds the one that belongs to a GPT-2. `Characters` turns a stream of new tokens into
whole characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from jaxtyping import Int
from torch import Tensor

from clearhead.tokenizers import (
    END_OF_TEXT,
    UNKNOWN,
    BytePairTokenizer,
    GPT2Tokenizer,
    WordTokenizer,
)
from clearhead.tokenizers.gpt2_tokenizer import GPT2_VOCAB_SIZE

# On the hub, under any owner's name.
_GPT2_NAMES = ("gpt2", "gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2")
_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "vocab.bpe", "merges.txt", "encoder.json")
_MAX_UNKNOWN = 0.5  # of the words; beyond it, a map shows little about the text
_BROKEN = "\N{REPLACEMENT CHARACTER}"
_MAX_PIECES = 4  # per character: UTF-8 takes up to four bytes


@dataclass(frozen=True)
class Reading:
    """A text as a model reads it.

    Attributes:
        text: The text, with white space normalised where the tokenizer ignores it.
        ids: The token ids.
        labels: One label per token, for tables and pages.
        notes: What the user should know about this text.
    """

    text: str
    ids: list[int]
    labels: list[str]
    notes: list[str] = field(default_factory=list)

    def tensor(self, limit: int | None = None) -> Int[Tensor, "1 tokens"]:
        """The first `limit` ids (all by default) as a batch of one sequence."""
        return torch.tensor([self.ids[:limit]], dtype=torch.long)


class TextReader(Protocol):
    """What commands need to know about a model's tokenizer."""

    @property
    def kind(self) -> str:
        """One of "word", "gpt2", "byte pairs" and "its own"."""

    @property
    def tokenizer(self) -> Any:
        """The tokenizer itself."""

    @property
    def end(self) -> int | None:
        """The id that ends a text; None if there is none."""

    @property
    def longest(self) -> int | None:
        """The largest number of tokens, as the tokenizer reports it; see `LoadedModel.longest`."""

    def read(self, text: str) -> Reading:
        """Text to token ids and labels."""

    def decode(self, ids: Sequence[int]) -> str:
        """Token ids to text."""


class WordTextReader:
    """Reads text for a model with a vocabulary of whole words.

    "The" is read as "the" and "mary" as "Mary". A word outside the vocabulary becomes `<unk>`, and
    its label gets a `?`.

    Examples:
        >>> reader = WordTextReader(WordTokenizer(["the", "cat", "sat", "Mary"]))
        >>> reader.read("The blue cat sat").labels
        ['The', 'blue?', 'cat', 'sat']
    """

    kind = "word"
    longest = None

    def __init__(self, tokenizer: WordTokenizer) -> None:
        self.tokenizer = tokenizer
        self.end = tokenizer.encode(END_OF_TEXT)[0]

    def read(self, text: str) -> Reading:
        """Text to token ids and labels.

        Raises:
            ValueError: More than half of the words are outside the vocabulary.
        """
        unknown_id = self.tokenizer.encode(UNKNOWN)[0]
        text = " ".join(text.split())
        reading = Reading(text, [], [])
        unknown: list[str] = []
        for piece in WordTokenizer.from_text(text).tokens(text):
            forms = (piece, piece.lower(), piece.capitalize())
            found = [number for form in forms for number in self.tokenizer.encode(form)[:1]]
            known = [number for number in found if number != unknown_id]
            reading.ids.append(known[0] if known else unknown_id)
            reading.labels.append(piece if known else f"{piece}?")
            unknown += [] if known else [piece]
        if unknown:
            reading.notes.append(self._note(unknown, len(reading.ids)))
        return reading

    def _note(self, unknown: list[str], count: int) -> str:
        different = list(dict.fromkeys(unknown))
        size = self.tokenizer.vocab_size - 3  # without the special tokens
        if len(unknown) > _MAX_UNKNOWN * count:
            some = ", ".join(different[:5]) + (", ..." if len(different) > 5 else "")
            raise ValueError(
                f"TEXT: of its {count} words, {len(unknown)} are not among the {size} English "
                f"words of this model ({some}), so its attention would say nothing about "
                "them.\n  The English model reads any words: --model english."
            )
        are = "is" if len(different) == 1 else "are"
        return (
            f"{', '.join(different)} {are} not among the {size} words of this model, which "
            f"reads {UNKNOWN} instead."
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Token ids to text."""
        return self.tokenizer.decode(ids)


class BytePairTextReader:
    """Reads text with byte pairs: GPT-2's, or those of another vocabulary."""

    longest = None

    def __init__(self, tokenizer: BytePairTokenizer) -> None:
        self.tokenizer = tokenizer
        self.kind = "gpt2" if isinstance(tokenizer, GPT2Tokenizer) else "byte pairs"
        self.end = tokenizer.end

    def read(self, text: str) -> Reading:
        """Text to token ids and labels."""
        ids = self.tokenizer.encode(text)
        return Reading(text, ids, self.tokenizer.labels(ids))

    def decode(self, ids: Sequence[int]) -> str:
        """Token ids to text."""
        return self.tokenizer.decode(ids)


class HubTextReader:
    """Reads text with a tokenizer of transformers."""

    kind = "its own"

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.end: int | None = tokenizer.eos_token_id
        self.longest: int | None = getattr(tokenizer, "model_max_length", None)

    def read(self, text: str) -> Reading:
        """Text to token ids and labels; a label includes the space before the token."""
        ids: list[int] = list(self.tokenizer(text, verbose=False)["input_ids"])
        different = sorted(set(ids))
        labels = {}
        raw = self.tokenizer.convert_ids_to_tokens(different)
        for number, token in zip(different, raw, strict=True):
            label = self.decode([number])
            # SentencePiece writes the space as ▁ and drops it from the first token of a text.
            dropped = str(token).startswith("\u2581") and not label.startswith(" ")
            labels[number] = f" {label}" if dropped else label
        return Reading(text, ids, [labels[number] for number in ids])

    def decode(self, ids: Sequence[int]) -> str:
        """Token ids to text."""
        found: str = self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
        return found


def find_reader(path_or_name: str | Path, vocab_size: int) -> TextReader:
    """The reader of a GPT-2: with the tokenizer in its folder if there is one, else GPT-2's own.

    Args:
        path_or_name: Where the model was loaded from.
        vocab_size: The size of the model's vocabulary.

    Raises:
        ValueError: The tokenizer cannot be loaded, or does not fit the model.
    """
    path = Path(path_or_name)
    folder = path if path.is_dir() else path.parent if path.is_file() else None
    if folder is not None and any((folder / name).is_file() for name in _TOKENIZER_FILES):
        for kind in (GPT2Tokenizer, BytePairTokenizer):
            try:
                return BytePairTextReader(kind(folder))
            except ValueError:  # another vocabulary, or the same one in other files
                continue
        return _load_from_hub(folder, local=True)
    if folder is None and path.name.lower() not in _GPT2_NAMES:
        return _load_from_hub(path_or_name, local=False)
    if vocab_size != GPT2_VOCAB_SIZE:
        raise ValueError(
            f"{path_or_name}: no tokenizer beside the weights, and GPT-2's own does not fit: "
            f"it has {GPT2_VOCAB_SIZE:,} tokens, the model {vocab_size:,}.\n"
            "  Save the model's tokenizer in the same folder: tokenizer.save_pretrained(folder)."
        )
    return BytePairTextReader(GPT2Tokenizer())


def _load_from_hub(where: str | Path, *, local: bool) -> HubTextReader:
    """The tokenizer of a folder or of a name on the hub, loaded by transformers."""
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
    return HubTextReader(found)


def reason(error: Exception) -> str:
    """The message of transformers, without its advice to run the folder's own code."""
    if "trust_remote_code" in str(error):
        return "It needs Python code from its own folder, and Clearhead never runs such code."
    return str(error)


class Characters:
    """Turns a stream of token ids into text, one whole character at a time.

    GPT-2's tokens are runs of bytes, and a character outside ASCII often spans two or three of
    them. Such tokens are held back until the character is complete.

    Args:
        reader: Turns ids into text.
        before: The ids that precede the stream: whether a space is needed may depend on the last.

    Examples:
        >>> reader = BytePairTextReader(GPT2Tokenizer())
        >>> characters = Characters(reader)
        >>> [characters.add(token) for token in reader.read(" 猫!").ids]
        ['', '', ' 猫', '!']
    """

    def __init__(self, reader: TextReader, before: Sequence[int] = ()) -> None:
        self._reader = reader
        self._before = list(before[-1:])
        self._waiting: list[int] = []

    def add(self, token: int) -> str:
        """The text that is complete after this token."""
        self._waiting.append(token)
        text = self._text()
        if text.endswith(_BROKEN) and len(self._waiting) < _MAX_PIECES:
            return ""
        self._before, self._waiting = self._waiting, []
        return text

    def rest(self) -> str:
        """What is left at the end: an incomplete character, if any."""
        text = self._text()
        self._waiting.clear()
        return text

    def _text(self) -> str:
        """The text of the waiting ids, with the space that separates them from the ids before."""
        alone = self._reader.decode(self._waiting)
        before = self._reader.decode(self._before)
        together = self._reader.decode([*self._before, *self._waiting])
        return together.removeprefix(before) if together.startswith(before) else alone
