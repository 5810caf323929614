"""A tokenizer of few words, for folders with small models of Hugging Face."""

from pathlib import Path

import transformers
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from tokenizers import Tokenizer


def save_words(folder: Path, words: list[str]) -> None:
    """Save a tokenizer of these words; the id of <unk> is 0."""
    known = {word: i for i, word in enumerate(["<unk>", *words])}
    tokenizer = Tokenizer(WordLevel(known, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    fast.save_pretrained(folder)
