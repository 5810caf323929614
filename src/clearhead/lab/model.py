"""The model in the box: a GPT-2 of our own parts, trained on the grammar, as one small file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from clearhead.embedding import Rope
from clearhead.gpt2.model import GPT2
from clearhead.gpt2.reading import GPT2Model
from clearhead.lab.reading import read
from clearhead.lab.relations import WordReader
from clearhead.lab.train import write_safetensors
from clearhead.text import WordTokenizer
from clearhead.watching.checkpoints import Checkpoint

_METADATA = "clearhead.lab"


def save_model(file: Path, model: GPT2, vocabulary: Sequence[str], about: dict[str, Any]) -> None:
    """Write weights, sizes and vocabulary to one safetensors file; what `about` says, too."""
    described = {
        "schema": 1,
        "config": dict(model.config),
        "rope_base": None if model.rope is None else model.rope.base,
        "vocabulary": list(vocabulary),
        **about,
    }
    write_safetensors(file, dict(model.state_dict()), {_METADATA: json.dumps(described)})


def load_model(file: Path) -> tuple[GPT2, WordTokenizer]:
    """The model that `save_model` wrote, in eval mode, and its tokenizer.

    Raises:
        ValueError: the file is broken, or another kind of file.
    """
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            about = (opened.metadata() or {}).get(_METADATA)
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # it cannot be iterated
    except (safetensors.SafetensorError, ValueError) as error:
        raise ValueError(f"{file}: not a whole safetensors file ({error}).") from None
    if about is None:
        raise ValueError(f"{file}: a safetensors file, but not one of `clearhead train`.")
    described = json.loads(about)
    base = described["rope_base"]
    model = GPT2(described["config"], rope=None if base is None else Rope(base))
    model.load_state_dict(tensors)
    return model.eval(), WordTokenizer(described["vocabulary"])


def shipped() -> tuple[GPT2, WordTokenizer]:
    """The model that comes with Clearhead, and its tokenizer."""
    with resources.as_file(resources.files("clearhead.lab") / "data" / "model.safetensors") as file:
        return load_model(file)


def readers(
    model: GPT2, tokens: WordTokenizer, name: str = "the lab's model"
) -> tuple[WordReader, WordReader]:
    """The model as a reader of the grammar's sentences, and an untrained one of its size."""
    torch.manual_seed(0)
    plain = GPT2(model.config, rope=model.rope).eval()
    return WordReader(model, tokens, name), WordReader(plain, tokens, f"{name}, untrained")


class _Encoding:
    """The lab's tokenizer under the call that a Hugging Face tokenizer answers."""

    def __init__(self, tokens: WordTokenizer) -> None:
        self._tokens = tokens

    def __call__(self, text: str, **options: Any) -> dict[str, Tensor]:
        return {"input_ids": torch.tensor([read(text, self._tokens).ids], dtype=torch.long)}


def as_checkpoint() -> Checkpoint:
    """The model in the box in the form in which others' checkpoints are read."""
    model, tokens = shipped()
    return Checkpoint(GPT2Model(model).eval(), _Encoding(tokens), "the lab's model")
