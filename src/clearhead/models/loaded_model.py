"""LoadedModel: a model, its name, and the reader that turns text into its tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace

from torch import Tensor, nn

from clearhead.gpt2.model import GPT2
from clearhead.models.text_readers import Reading, TextReader
from clearhead.watcher.layer_names import one_name


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to read text.

    Attributes:
        name: A short name for messages and tables.
        model: The model in eval mode: a `GPT2`, or a transformers model without its output head.
        find_reader: Finds the model's tokenizer; called once, when text is first read.
        path: What `--model` and `clearhead.load` take for this model.
    """

    name: str
    model: nn.Module
    find_reader: Callable[[], TextReader]
    path: str

    @cached_property
    def reader(self) -> TextReader:
        """Text to token ids and back.

        Raises:
            ValueError: The model's tokenizer is missing, or does not fit the model.
        """
        return self.find_reader()

    def read(self, text: str) -> Reading:
        """Token ids and labels of a text.

        Raises:
            ValueError: The text has no tokens.
        """
        reading = self.reader.read(text)
        if not reading.ids:
            raise ValueError('TEXT is empty.\n  Give some words, such as "the cat sat on the mat".')
        return reading

    @property
    def gpt2(self) -> GPT2:
        """The model, where it is known to be our own `GPT2`."""
        assert isinstance(self.model, GPT2)
        return self.model

    def layer_number(self, layer: str | int) -> int:
        """The number of the layer of a GPT-2 that `--layer` means.

        Args:
            layer: Its number from 0, also as text; its name, or a part of it.

        Raises:
            ValueError: There is no such layer, or several fit.
        """
        count = self.gpt2.config["num_layers"]
        if isinstance(layer, int) or layer.removeprefix("-").isdecimal():
            if not 0 <= int(layer) < count:
                raise ValueError(f"--layer: expected 0 to {count - 1}, got {layer}.")
            return int(layer)
        names = [f"h.{number}.attn" for number in range(count)]
        try:
            return names.index(one_name(layer, names))
        except LookupError as error:
            raise ValueError(f"--layer: {error}") from None

    @cached_property
    def network(self) -> nn.Module:
        """The model as `watch` sees it: layers have the same names as in transformers."""
        return GPT2Model(self.model) if isinstance(self.model, GPT2) else self.model

    @property
    def longest(self) -> int | None:
        """The largest number of tokens that the model accepts; None without a limit."""
        config = getattr(self.network, "config", None)
        limits = (getattr(config, "max_position_embeddings", None), self.reader.longest)
        # "No limit" is written as -1 in some configs, and as 10^30 in some tokenizers.
        known = (limit for limit in limits if isinstance(limit, int) and 0 < limit < 10**9)
        return min(known, default=None)


class GPT2Model(nn.Module):
    """Our GPT2 under the class and layer names of transformers, such as "h.0.attn"."""

    def __init__(self, model: GPT2) -> None:
        super().__init__()
        self.config = SimpleNamespace(max_position_embeddings=model.config["context_length"])
        self.h = nn.ModuleList()
        for block in model.blocks:
            self.h.append(nn.ModuleDict({"attn": block.attention}))  # type: ignore[dict-item]  # a module
        self._model = [model]  # in a list, so that no layer gets a second name
        self.eval()

    def forward(self, input_ids: Tensor) -> Tensor:
        """The hidden states after the last layer norm."""
        return self._model[0].hidden(input_ids)
