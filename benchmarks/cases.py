"""What is computed: the cases of the attention benchmark, with their weights and inputs.

The weights are random, distinct and large enough that attention is far from uniform: a wrong scale
or a swapped matrix shows.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from clearhead import ladder

Pass = Literal["forward", "forward+backward"]


@dataclass(frozen=True)
class Case:
    """One thing to compute: the sizes, the pass, and what is special about it.

    Args:
        section: Which part of the benchmark it belongs to.
        batch: Sequences.
        tokens: Tokens of each.
        d_model: Width of input and output.
        heads: Heads.
        direction: Whether gradients are computed too.
        dtype: "float32" and so on.
        device: "cpu" or "cuda".
        dropout: Above 0 the modules run in training mode.
        window: How many keys a query sees, itself included; None = all before it.
        padding: So many tokens on the left of each sequence are filling.
        compiled: Whether the modules go through `torch.compile` first.
    """

    section: str
    batch: int
    tokens: int
    d_model: int
    heads: int
    direction: Pass = "forward"
    dtype: str = "float32"
    device: str = "cpu"
    dropout: float = 0.0
    window: int | None = None
    padding: int = 0
    compiled: bool = False

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, tokens, d_model, heads)."""
        return self.batch, self.tokens, self.d_model, self.heads

    @property
    def training(self) -> bool:
        """Which mode the modules are timed in."""
        return self.dropout > 0 or self.direction == "forward+backward"

    def as_json(self) -> dict[str, Any]:
        """Plain data, which `Case(**data)` takes back."""
        return asdict(self)

    def torch_dtype(self) -> torch.dtype:
        """The dtype itself."""
        dtype = getattr(torch, self.dtype)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"dtype: expected a torch dtype, got {self.dtype!r}.")
        return dtype

    def element_size(self) -> int:
        """Bytes of one number."""
        return self.torch_dtype().itemsize

    def hidden(self) -> Tensor | None:
        """True where a key is hidden, (batch or 1, 1, tokens, tokens); None = the future only."""
        if self.window is None and not self.padding:
            return None
        return self.hidden_from(torch.arange(self.tokens, device=self.device))[None, None]

    def hidden_from(self, queries: Tensor) -> Tensor:
        """True where a key is hidden from these queries, (queries, tokens).

        Written out here, without `Mask`: it is what `Mask` is measured against.
        """
        key = torch.arange(self.tokens, device=queries.device)
        query = queries[:, None]
        hidden = (key > query) | (key < self.padding)
        if self.window is not None:
            hidden = hidden | (key <= query - self.window)
        return hidden


def make_weights(case: Case, *, biases: bool = True) -> ladder.MultiHeadAttention:
    """Rung 4 with random weights, the same every time; it is only a place to copy them from.

    Scores come out with a standard deviation near 1, whatever the width.
    """
    # context_length 1: this module is never run, so it needs no tokens × tokens mask.
    source = ladder.MultiHeadAttention(case.d_model, case.d_model, 1, 0.0, case.heads, True)
    generator = torch.Generator().manual_seed(20)
    with torch.no_grad():
        for name, parameter in source.named_parameters():
            spread = 0.5 if name.endswith("bias") else 1 / math.sqrt(case.d_model)
            parameter.normal_(0.0, spread, generator=generator)
            if name.endswith("bias") and not biases:
                parameter.zero_()
    return source.to(case.device, case.torch_dtype())


def make_input(case: Case) -> tuple[Tensor, Tensor]:
    """x, and the gradient that arrives at the output: zero where a token is filling."""
    generator = torch.Generator().manual_seed(21)
    size = (case.batch, case.tokens, case.d_model)
    x, gradient = (torch.randn(size, generator=generator) for _ in range(2))
    gradient[:, : case.padding] = 0
    x, gradient = (tensor.to(case.device, case.torch_dtype()) for tensor in (x, gradient))
    return x.requires_grad_(case.direction == "forward+backward"), gradient
