"""A text read by a loaded GPT-2: what a layer's attention gets, and the heads of the whole model.

`load` gives a GPT-2 in the form in which `clearhead.models.hugging_face` reads any checkpoint,
also where transformers is not installed or the folder has no tokenizer in it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead.gpt2.model import GPT2
from clearhead.gpt2.weight_files import read_json
from clearhead.models import hugging_face
from clearhead.models.hugging_face import Checkpoint
from clearhead.models.text_stream import Tokenizer, find_tokenizer
from clearhead.tokenizers import GPT2Tokenizer


def layer_input(
    model: GPT2, ids: Int[Tensor, "batch tokens"], layer: int
) -> Float[Tensor, "batch tokens d_model"]:
    """What the attention of one layer gets: the vectors after the layers before it, normed.

    Args:
        model: The model, in eval mode.
        ids: Token ids.
        layer: Which layer, counted from 0.
    """
    x = model.embedding(ids)
    for block in model.blocks[:layer]:
        x = block(x)
    normed: Tensor = model.blocks[layer].norm1(x)  # type: ignore[operator]  # a module, not a tensor
    return normed


def labels(tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> list[str]:
    """The text of each token."""
    if isinstance(tokenizer, GPT2Tokenizer):
        return tokenizer.tokens(text)
    return [tokenizer.decode([number]) for number in ids]


def load(folder: str | Path) -> Checkpoint:
    """A checkpoint to look at the heads of: through transformers, or a GPT-2 through our own model.

    Ours is taken where transformers or the folder's tokenizer is missing and the vocabulary is
    GPT-2's own. The maps are the same.

    Args:
        folder: Any local checkpoint of Hugging Face, or a GPT-2 that `save_pretrained` wrote.
    """
    folder = Path(folder)
    config = folder / "config.json"
    said = read_json(config) if config.is_file() else {}
    complete = importlib.util.find_spec("transformers") and hugging_face.has_tokenizer(folder)
    # Without its own tokenizer it must be GPT-2's.
    known = said.get("model_type") == "gpt2" and said.get("vocab_size") == 50257
    if said.get("model_type") == "clearhead-gpt2" or (known and not complete):
        model = GPT2.from_pretrained(folder)
        tokenizer, _ = find_tokenizer(folder, model.config["vocab_size"])
        return Checkpoint(GPT2Model(model).eval(), Called(tokenizer), folder.resolve().name)
    return hugging_face.load(folder)


class GPT2Model(nn.Module):
    """Our model under the names that transformers gives it, so that its layers are called alike."""

    def __init__(self, model: GPT2) -> None:
        super().__init__()
        self.config = SimpleNamespace(max_position_embeddings=model.config["context_length"])
        self.h = nn.ModuleList()
        for block in model.blocks:
            self.h.append(nn.ModuleDict({"attn": block.attention}))  # type: ignore[dict-item]  # a module
        self._model = [model]  # in a list: not a second name for each layer

    def forward(self, input_ids: Tensor) -> Tensor:
        """The vectors after the last norm."""
        return self._model[0].hidden(input_ids)


class Called:
    """A tokenizer under the calls that those of transformers answer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __call__(self, text: str, **options: Any) -> dict[str, Tensor]:
        """The ids of a text."""
        return {"input_ids": torch.tensor([self._tokenizer.encode(text)], dtype=torch.long)}

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """The text of each id."""
        return [self._tokenizer.decode([number]) for number in ids]

    def decode(self, ids: Sequence[int], **options: Any) -> str:
        """The text of all ids."""
        return self._tokenizer.decode(ids)
