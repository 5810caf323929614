"""Text -> token ids: a word tokenizer, GPT-2's byte-pair tokenizer, and windows to train on.

Both tokenizers offer the same four things, named in `Tokenizer`.

    tokenizer   what both tokenizers can do, and the checks they share
    words       WordTokenizer: one token for each word and each punctuation mark
    byte_pairs  GPT2Tokenizer, and where its vocabulary comes from
    windows     SlidingWindowDataset: pairs to learn the next token from
"""

from clearhead.tokenizers.gpt2_tokenizer import GPT2Tokenizer
from clearhead.tokenizers.sliding_windows import SlidingWindowDataset
from clearhead.tokenizers.tokenizer import END_OF_TEXT, Tokenizer
from clearhead.tokenizers.word_tokenizer import NO_SPACE, UNKNOWN, WordTokenizer

__all__ = [
    "END_OF_TEXT",
    "NO_SPACE",
    "UNKNOWN",
    "GPT2Tokenizer",
    "SlidingWindowDataset",
    "Tokenizer",
    "WordTokenizer",
]
