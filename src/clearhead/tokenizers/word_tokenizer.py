"""WordTokenizer: one token per word and per punctuation mark."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from itertools import pairwise

from jaxtyping import Int
from torch import Tensor

from clearhead.foreign_names import explained
from clearhead.tokenizers.tokenizer import END_OF_TEXT, EncodesText, check_text, checked_ids

UNKNOWN = "<unk>"
NO_SPACE = "<|nospace|>"


class WordTokenizer(EncodesText):
    r"""One token per word and per punctuation mark.

    A word is a run of letters, digits and underscores, which may have apostrophes and hyphens
    inside (``don't``, ``self-attention``). Every other visible character is a token by itself.
    White space is handled so that nothing is lost and most spaces need no token:

    * a single space before a word is implied and gets no token;
    * any other white space gets one token per character;
    * ``<|nospace|>`` comes before a word that follows a token directly, as in ``"(cat"``.

    So ``decode(encode(text)) == text`` whenever every token of the text is in the vocabulary; a
    token that is not becomes ``<unk>``. Upper and lower case are distinct. In a language written
    without spaces between words, tokens become very long: use `GPT2Tokenizer` instead.

    Args:
        vocab: The tokens; the index in the list is the id. ``<unk>``, ``<|endoftext|>`` and
            ``<|nospace|>`` are appended if they are missing.

    Raises:
        ValueError: A token occurs twice, or is empty.

    Examples:
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
                "  To build the vocabulary from a text: WordTokenizer.from_text(text)."
            )
        tokens = list(vocab)
        tokens += [s for s in (UNKNOWN, END_OF_TEXT, NO_SPACE) if s not in tokens]
        self._tokens = tokens
        self._ids: dict[str, int] = {}
        for index, token in enumerate(tokens):
            if not token:
                raise ValueError(f"vocab: token {index} is the empty string.\n  Remove it.")
            if token in self._ids:
                raise ValueError(
                    f"vocab: {token!r} occurs twice, as ids {self._ids[token]} and {index}.\n"
                    f"  Each token has one id: sorted(set(vocab)) removes duplicates."
                )
            self._ids[token] = index

    @classmethod
    def from_text(cls, text: str) -> WordTokenizer:
        """Build the vocabulary from a text: its distinct tokens, sorted.

        Args:
            text: The text whose words become the vocabulary.

        Returns:
            A tokenizer that encodes this text without ``<unk>``.

        Examples:
            >>> WordTokenizer.from_text("to be or not to be").vocab_size
            7
        """
        special = {UNKNOWN, END_OF_TEXT, NO_SPACE}
        return cls(sorted(set(_with_spacing(_pieces(text, allow_special=True))) - special))

    @property
    def vocab_size(self) -> int:
        """The number of ids, including the three special tokens.

        Examples:
            >>> WordTokenizer(["cat", "mat"]).vocab_size
            5
        """
        return len(self._tokens)

    @explained
    def encode(self, text: str, *, allow_special: bool = True) -> list[int]:
        """Text to ids; a token outside the vocabulary becomes ``<unk>``.

        Args:
            text: Any text.
            allow_special: Read ``<|endoftext|>`` in the text as the special token. False reads it
                as ordinary characters, which is safer for untrusted text.

        Returns:
            One id per token.

        Examples:
            >>> WordTokenizer(["cat", "mat"]).encode("cat mat <|endoftext|> dog")
            [0, 1, 3, 2]
        """
        unknown = self._ids[UNKNOWN]
        pieces = _with_spacing(_pieces(text, allow_special=allow_special))
        return [self._ids.get(piece, unknown) for piece in pieces]

    @explained
    def decode(self, ids: Iterable[int] | Int[Tensor, "tokens"]) -> str:
        """Ids to text.

        Args:
            ids: Integers from 0 to ``vocab_size - 1``, as a list or a one-dimensional tensor.

        Returns:
            The text, with ``<unk>`` for unknown words.

        Raises:
            ValueError: An id is out of range.

        Examples:
            >>> WordTokenizer(["cat", "mat", "."]).decode([0, 1, 2])
            'cat mat.'
        """
        tokens = [self._tokens[i] for i in checked_ids(ids, self.vocab_size)]
        text = ""
        for before, token in pairwise(["", *tokens]):
            if before and _space_is_implied(before, token):
                text += " "
            if token != NO_SPACE:
                text += token
        return text

    def tokens(self, text: str, *, allow_special: bool = True) -> list[str]:
        """The tokens of a text as strings, one per id of `encode`.

        Args:
            text: Any text.
            allow_special: As in `encode`.

        Returns:
            The tokens as a model sees them: ``<unk>`` for tokens outside the vocabulary.

        Examples:
            >>> WordTokenizer.from_text("(cat)").tokens("(cat)")
            ['(', '<|nospace|>', 'cat', ')']
        """
        return [self._tokens[i] for i in self.encode(text, allow_special=allow_special)]


def _is_word_character(character: str) -> bool:
    # Letters, marks and numbers. Without marks, most Hindi words would be split.
    return character == "_" or unicodedata.category(character)[0] in "LMN"


def _is_word(token: str) -> bool:
    """Whether a single space before this token is implied."""
    return _is_word_character(token[0]) or token in (UNKNOWN, END_OF_TEXT)


def _space_is_implied(before: str, token: str) -> bool:
    return _is_word(token) and before != NO_SPACE and not before[-1].isspace()


def _pieces(text: str, *, allow_special: bool) -> list[str]:
    """Split a text into words and single other characters, without losing anything."""
    check_text(text)
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
    """Drop the spaces that are implied, and mark where an implied space is missing."""
    tokens: list[str] = []
    for index, piece in enumerate(pieces):
        before = pieces[index - 1] if index else ""
        if _is_word(piece) and before and not before.isspace():
            tokens.append(NO_SPACE)
        elif _is_word(piece) and before == " " and index > 1 and not pieces[index - 2].isspace():
            tokens.pop()
        tokens.append(piece)
    return tokens
