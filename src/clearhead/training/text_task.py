"""Text as a training task: predict the next token of windows at random positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from clearhead.gpt2.model import GPT2
from clearhead.training.loop import Batch, Settings, generator, token_loss
from clearhead.training.text_corpus import Corpus

_ROWS_AT_ONCE = 32


@dataclass(frozen=True, kw_only=True)
class TextSettings(Settings):
    """How a model is trained on text: GPT-2's own architecture, with these sizes.

    Attributes:
        d_model: The width of the model.
        num_heads: Heads per layer.
        num_layers: The number of layers.
        tokens: Tokens per row, which is also the context length.
        dropout: The dropout probability.
        held_out_rows: Rows of the held-out text per evaluation, at most.
    """

    steps: int = 20_000
    batch: int = 128
    learning_rate: float = 2e-3
    warmup: int = 300
    every: int = 500
    d_model: int = 256
    num_heads: int = 8
    num_layers: int = 6
    tokens: int = 256
    dropout: float = 0.0
    held_out_rows: int = 512


# By name on the command line: how to train, and the size of the vocabulary.
SIZES: dict[str, tuple[TextSettings, int]] = {
    "tiny": (
        TextSettings(
            steps=1000,
            batch=16,
            learning_rate=3e-3,
            warmup=50,
            every=100,
            d_model=64,
            num_heads=4,
            num_layers=3,
            tokens=64,
            held_out_rows=32,
        ),
        1024,
    ),
    "small": (TextSettings(), 8192),
}


class TextTask:
    """A `clearhead.training.loop.Task`: predict the next token of a text.

    Args:
        settings: How to train.
        corpus: The encoded text.
        device: Where the ids are kept.

    Raises:
        ValueError: The text is shorter than a row.
    """

    def __init__(
        self, settings: TextSettings, corpus: Corpus, device: str | torch.device = "cpu"
    ) -> None:
        self.settings = settings
        self._vocab_size = corpus.vocab_size
        # Indexing is not supported for uint16, so 32 bits per id on the device.
        self._train = corpus.train.to(torch.int32).to(device)
        self._held_out = _rows(corpus.validation, settings, device)
        if len(self._train) <= settings.tokens:
            raise ValueError(
                f"--text: expected more than {settings.tokens} tokens, got {len(self._train)}.\n"
                "  Training needs more text, thousands of words at least."
            )

    def new_model(self) -> GPT2:
        """The model before its first step."""
        settings = self.settings
        torch.manual_seed(settings.seed)
        return GPT2(
            {
                "vocab_size": self._vocab_size,
                "context_length": settings.tokens,
                "d_model": settings.d_model,
                "num_heads": settings.num_heads,
                "num_layers": settings.num_layers,
                "dropout": settings.dropout,
                "qkv_bias": True,
            }
        )

    def batch(self, step: int) -> Batch:
        """Windows at random positions; they depend on the seed and the step only."""
        settings = self.settings
        last = len(self._train) - settings.tokens
        random = generator(settings.seed, 3, step)
        start = torch.randint(last, (settings.batch, 1), generator=random)
        # Only the starts are copied to the device: so small a copy does not wait for the GPU.
        device = self._train.device
        index = start.to(device, non_blocking=True) + torch.arange(
            settings.tokens + 1, device=device
        )
        ids = self._train[index].long()
        return Batch(ids[:, :-1], ids[:, 1:])

    @torch.no_grad()
    def evaluate(self, model: GPT2) -> dict[str, Any]:
        """The loss on the held-out text, in nats per token."""
        total, count = 0.0, 0
        for rows in torch.split(self._held_out, _ROWS_AT_ONCE):
            targets = rows[:, 1:]
            total += token_loss(model, rows[:, :-1], targets).item() * targets.numel()
            count += targets.numel()
        return {"loss": total / count}


def _rows(
    ids: Tensor, settings: TextSettings, device: str | torch.device
) -> Int[Tensor, "rows tokens_and_one"]:
    """Rows of the held-out text that do not overlap, except by the token that is only a target."""
    tokens = min(settings.tokens, len(ids) - 1)
    ids = ids.to(torch.int64)
    rows = ids.unfold(0, tokens + 1, tokens)
    return rows[: settings.held_out_rows].contiguous().to(device)
