"""Tokenizers: text -> token ids and back, and windows of ids to train on.

Enters: text. Leaves: token ids, and the text of each token. All tokenizers follow the protocol in
`tokenizer`: start reading there.

    tokenizer         the Tokenizer protocol, and shared checks
    word_tokenizer    WordTokenizer: one token per word and per punctuation mark
    byte_pair_tokenizer   BytePairTokenizer: byte pairs from vocab.json and merges.txt
    gpt2_tokenizer    GPT2Tokenizer: GPT-2's byte pairs, and where their vocabulary comes from
    sliding_windows   SlidingWindowDataset: pairs of inputs and targets for training
"""

from clearhead.tokenizers.byte_pair_tokenizer import BytePairTokenizer
from clearhead.tokenizers.gpt2_tokenizer import GPT2Tokenizer
from clearhead.tokenizers.sliding_windows import SlidingWindowDataset
from clearhead.tokenizers.tokenizer import END_OF_TEXT, Tokenizer
from clearhead.tokenizers.word_tokenizer import NO_SPACE, UNKNOWN, WordTokenizer

__all__ = [
    "END_OF_TEXT",
    "NO_SPACE",
    "UNKNOWN",
    "BytePairTokenizer",
    "GPT2Tokenizer",
    "SlidingWindowDataset",
    "Tokenizer",
    "WordTokenizer",
]
