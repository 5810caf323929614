"""Text -> token ids: a word tokenizer, GPT-2's byte-pair tokenizer, and windows to train on.

Both tokenizers offer the same four things, named in `Tokenizer`.

    tokenizer   what both tokenizers can do, and the checks they share
    words       WordTokenizer: one token for each word and each punctuation mark
    byte_pairs  GPT2Tokenizer, and where its vocabulary comes from
    windows     SlidingWindowDataset: pairs to learn the next token from
"""

from clearhead.text.byte_pairs import GPT2Tokenizer
from clearhead.text.tokenizer import END_OF_TEXT, Tokenizer
from clearhead.text.windows import SlidingWindowDataset
from clearhead.text.words import NO_SPACE, UNKNOWN, WordTokenizer

__all__ = [
    "END_OF_TEXT",
    "NO_SPACE",
    "UNKNOWN",
    "GPT2Tokenizer",
    "SlidingWindowDataset",
    "Tokenizer",
    "WordTokenizer",
]
