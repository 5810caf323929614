"""BytePairTokenizer: byte pairs from a vocabulary in two files, run by tiktoken.

A text is cut into words, and a word into bytes. Then the neighbours that come first in the list of
merges are joined, again and again, until no neighbours are in the list. Any text can be encoded,
because every single byte is a token.

    vocab.json   {token: id}; the bytes of a token are written as printable characters, as in GPT-2
    merges.txt   one merge per line, the first ones first: the two tokens that it joins

Source: Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units" (2016);
Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), for the bytes.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxtyping import Int
from torch import Tensor

from clearhead.atomic_files import beside
from clearhead.foreign_names import explained
from clearhead.tokenizers.tokenizer import END_OF_TEXT, EncodesText, check_text, checked_ids

if TYPE_CHECKING:
    import tiktoken

VOCABULARY, MERGES = "vocab.json", "merges.txt"


class BytePairTokenizer(EncodesText):
    r"""A byte-pair tokenizer, which can encode any text.

    Args:
        path: A folder with ``vocab.json`` and ``merges.txt``, as `clearhead train --text` and
            Hugging Face's tokenizers write them.

    Attributes:
        source: Where the vocabulary came from, for messages.

    Raises:
        ValueError: A file is missing, or is not the vocabulary of byte pairs.
    """

    source: str

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._encoding, self.source = read_encoding(Path(path)), f"the folder {path}"

    @property
    def vocab_size(self) -> int:
        """The number of ids."""
        return self._encoding.n_vocab

    @property
    def end(self) -> int:
        """The id of ``<|endoftext|>``, which separates documents."""
        return self._encoding.eot_token

    @explained
    def encode(self, text: str, *, allow_special: bool = True) -> list[int]:
        """Text to ids.

        Args:
            text: Any text.
            allow_special: Read ``<|endoftext|>`` in the text as the special token, as the book
                does. False reads it as ordinary characters, which is safer for untrusted text.

        Returns:
            One id per token.

        Examples:
            >>> import clearhead
            >>> clearhead.GPT2Tokenizer().encode("Hello<|endoftext|>")
            [15496, 50256]
        """
        check_text(text)
        allowed = {END_OF_TEXT} if allow_special else set()
        return self._encoding.encode(text, allowed_special=allowed, disallowed_special=())

    @explained
    def decode(self, ids: Iterable[int] | Int[Tensor, "tokens"]) -> str:
        """Ids to text.

        Args:
            ids: Integers from 0 to vocab_size - 1, as a list or a one-dimensional tensor.

        Returns:
            The text. A token can be part of a character; an incomplete character is decoded as
            the replacement character, U+FFFD.

        Raises:
            ValueError: An id is out of range.
        """
        return self._encoding.decode(checked_ids(ids, self.vocab_size))

    def tokens(self, text: str, *, allow_special: bool = True) -> list[str]:
        r"""The tokens of a text as strings, one per id of `encode`.

        Args:
            text: Any text.
            allow_special: As in `encode`.

        Returns:
            The text of each token. Bytes of incomplete characters are escaped.

        Examples:
            >>> import clearhead
            >>> clearhead.GPT2Tokenizer().tokens("the cat 猫")
            ['the', ' cat', ' \\xe7', '\\x8c', '\\xab']
        """
        return self.labels(self.encode(text, allow_special=allow_special))

    def labels(self, ids: Sequence[int]) -> list[str]:
        """The text of each id; bytes of incomplete characters are escaped."""
        pieces = self._encoding.decode_tokens_bytes(ids)
        return [piece.decode("utf-8", errors="backslashreplace") for piece in pieces]

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write vocab.json and merges.txt, which Hugging Face's transformers loads too.

        Args:
            folder: The folder to write to; created if it does not exist.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        pieces = [self._encoding.decode_single_token_bytes(i) for i in range(self.end)]
        letters = {byte: letter for letter, byte in byte_letters().items()}

        def written(piece: bytes) -> str:
            return "".join(letters[byte] for byte in piece)

        vocabulary = {written(piece): i for i, piece in enumerate(pieces)} | {END_OF_TEXT: self.end}
        ranks = {piece: i for i, piece in enumerate(pieces)}
        merges = [
            " ".join(written(half) for half in _halves(piece, ranks))
            for piece in pieces
            if len(piece) > 1
        ]
        write_vocabulary(folder, vocabulary, merges)


def write_vocabulary(folder: Path, vocabulary: dict[str, int], merges: list[str]) -> None:
    """Write vocab.json and merges.txt."""
    with beside(folder / VOCABULARY) as file:
        file.write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    with beside(folder / MERGES) as file:
        file.write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")


def _halves(piece: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """The two tokens that the merge of a token joins: its bytes, joined by all earlier merges."""
    parts = [piece[i : i + 1] for i in range(len(piece))]
    while len(parts) > 2:
        joined = [ranks.get(a + b, len(ranks)) for a, b in itertools.pairwise(parts)]
        first = min(range(len(joined)), key=joined.__getitem__)
        parts[first : first + 2] = [parts[first] + parts[first + 1]]
    return parts


def read_encoding(folder: Path) -> tiktoken.Encoding:
    """The encoding of a folder with vocab.json and merges.txt.

    Raises:
        ValueError: A file is missing, or the files are not a vocabulary of byte pairs.
    """
    import tiktoken
    from tiktoken_ext.openai_public import r50k_pat_str  # type: ignore[import-untyped]  # has none

    for name in (VOCABULARY, MERGES):
        if not (folder / name).is_file():
            raise ValueError(
                f"{folder}: no {name}.\n  A byte-pair tokenizer has {VOCABULARY} and {MERGES}."
            )
    letters = byte_letters()
    try:
        vocabulary = json.loads((folder / VOCABULARY).read_text(encoding="utf-8"))
        end = vocabulary.pop(END_OF_TEXT)
        ranks = {bytes(letters[c] for c in token): number for token, number in vocabulary.items()}
        merges = [
            tuple(line.split(" "))
            for line in (folder / MERGES).read_text(encoding="utf-8").splitlines()
            if line and not line.startswith("#version")
        ]
        # tiktoken joins two neighbours if the vocabulary has what they make, lowest id first. That
        # is the order of the merges only if each has an id of its own, in that order.
        made = [bytes(letters[c] for c in first + second) for first, second in merges]
        in_order = [ranks[each] for each in made] == list(range(256, 256 + len(made)))
        complete = sorted(ranks.values()) == list(range(256 + len(made))) and end == len(ranks)
        if not (in_order and complete):
            raise ValueError(
                "expected 256 bytes, one token per merge in their order, then <|endoftext|>"
            )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{folder}: {VOCABULARY} and {MERGES} are not a vocabulary of byte pairs as in GPT-2 "
            f"({type(error).__name__}: {error})."
        ) from None
    return tiktoken.Encoding(
        name=str(folder),
        pat_str=r50k_pat_str,
        mergeable_ranks=ranks,
        special_tokens={END_OF_TEXT: end},
    )


def byte_letters() -> dict[str, int]:
    """The character that GPT-2's files write for each byte, and the byte.

    Printable bytes stand for themselves; the others get the characters from U+0100 on.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + index): byte for index, byte in enumerate(others)
    }
