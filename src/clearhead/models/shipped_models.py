"""The models that come with Clearhead: their names, their files and their cards.

    english   any English text; byte pairs as tokens
    grammar   sentences of a small grammar, whose relations between words are known; whole words

Each has a folder with its name. `model.safetensors` holds the weights, `card.json` how it was
trained and what it reaches, `card.md` the same as text, and `heads.json` what its heads do,
measured. The English model's folder also has its vocabulary.
"""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable

from clearhead.gpt2.model import GPT2
from clearhead.models.int8_weights import load_int8
from clearhead.models.trained_model import MODEL, load_model
from clearhead.tokenizers import BytePairTokenizer, WordTokenizer

SHIPPED = ("english", "grammar")  # the first one is the default


def shipped_file(name: str, model: str) -> Traversable:
    """A file of a shipped model, such as "card.json"."""
    return resources.files("clearhead.models") / model / name


def load_english() -> tuple[GPT2, BytePairTokenizer]:
    """The English model in eval mode, and its tokenizer."""
    with resources.as_file(resources.files("clearhead.models") / "english") as folder:
        return load_int8(folder / MODEL), BytePairTokenizer(folder)


def load_grammar() -> tuple[GPT2, WordTokenizer]:
    """The grammar model in eval mode, and its tokenizer."""
    with resources.as_file(shipped_file(MODEL, "grammar")) as file:
        return load_model(file)
