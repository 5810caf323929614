"""The models that come with Clearhead: their names, their files and their cards.

Each has a folder with its name and four files: `model.safetensors`, `card.json` (how it was trained
and what it reaches), `card.md` (the same as text) and `heads.json` (what its heads do, measured).
"""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from clearhead.gpt2.model import GPT2
from clearhead.models.trained_model import MODEL, load_model
from clearhead.tokenizers import WordTokenizer

SHIPPED = ("grammar",)  # the first one is the default
SHIPPED_NAME = "the lab's model"


def shipped_file(name: str, model: str | Path = "grammar") -> Traversable:
    """A file of a shipped model, such as "card.json"."""
    return resources.files("clearhead.models") / str(model) / name


def load_shipped(model: str | Path = "grammar") -> tuple[GPT2, WordTokenizer]:
    """A shipped model in eval mode, and its tokenizer."""
    with resources.as_file(shipped_file(MODEL, model)) as file:
        return load_model(file)
