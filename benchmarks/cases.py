"""The cases of the attention benchmark, with their weights, inputs and the run that is timed.

Weights are random, distinct and large enough that attention is far from uniform, so that a wrong
scale or a swapped matrix shows.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clearhead import ladder

FORWARD, BACKWARD = DIRECTIONS = ("forward", "forward+backward")


@dataclass(frozen=True)
class Case:
    """One thing to compute.

    Args:
        section: The part of the benchmark it belongs to.
        batch: Number of sequences.
        tokens: Tokens per sequence.
        d_model: Width of input and output.
        heads: Number of heads.
        direction: "forward" or "forward+backward".
        dtype: "float32" and so on.
        device: "cpu" or "cuda".
        dropout: Above 0 the modules run in training mode.
        window: Keys that a query may attend to, itself included; None = all before it.
        padding: Padding tokens on the left of each sequence.
        compiled: Whether modules are compiled with `torch.compile`.
    """

    section: str
    batch: int
    tokens: int
    d_model: int
    heads: int
    direction: str = FORWARD
    dtype: str = "float32"
    device: str = "cpu"
    dropout: float = 0.0
    window: int | None = None
    padding: int = 0
    compiled: bool = False

    def __str__(self) -> str:
        words = [
            f"{self.section}: {self.batch} x {self.tokens:,} tokens, d_model {self.d_model}, "
            f"{self.heads} heads",
            self.direction.replace("+", " + "),
            f"{self.dtype}, {self.device}",
        ]
        words += ["compiled"] if self.compiled else []
        words += [f"dropout {self.dropout}"] if self.dropout else []
        words += [f"window {self.window}"] if self.window is not None else []
        words += [f"{self.padding} padding tokens on the left"] if self.padding else []
        return "; ".join(words)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, tokens, d_model, heads)."""
        return self.batch, self.tokens, self.d_model, self.heads

    @property
    def backward(self) -> bool:
        """Whether gradients are computed."""
        return self.direction == BACKWARD

    @property
    def training(self) -> bool:
        """Whether the modules are timed in training mode."""
        return self.dropout > 0 or self.backward

    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch's object."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    def map_mib(self) -> float:
        """MiB of all attention weights, (batch, heads, tokens, tokens)."""
        numbers = self.batch * self.heads * self.tokens**2
        return numbers * self.torch_dtype().itemsize / 2**20

    def hidden(self) -> Tensor | None:
        """True where a key is hidden, (1, 1, tokens, tokens). None if only the future is hidden."""
        if self.window is None and not self.padding:
            return None
        return self.hidden_from(torch.arange(self.tokens, device=self.device))[None, None]

    def hidden_from(self, queries: Tensor) -> Tensor:
        """True where a key is hidden from these queries, (queries, tokens).

        Written without `Mask`, because `Mask` is measured against it.
        """
        key = torch.arange(self.tokens, device=queries.device)
        query = queries[:, None]
        hidden = (key > query) | (key < self.padding)
        if self.window is not None:
            hidden = hidden | (key <= query - self.window)
        return hidden


def make_weights(case: Case, *, biases: bool = True) -> ladder.MultiHeadAttention:
    """The ladder's module with fixed random weights, for contestants to copy. It is never run.

    Scores have a standard deviation near 1, whatever the width.
    """
    # context_length 1: no tokens × tokens mask is needed.
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
    """x, and the gradient at the output, which is zero at padding tokens."""
    generator = torch.Generator().manual_seed(21)
    size = (case.batch, case.tokens, case.d_model)
    x, gradient = (torch.randn(size, generator=generator) for _ in range(2))
    gradient[:, : case.padding] = 0
    x, gradient = (tensor.to(case.device, case.torch_dtype()) for tensor in (x, gradient))
    return x.requires_grad_(case.backward), gradient


def make_run(module: nn.Module, x: Tensor, gradient: Tensor, case: Case) -> Callable[[], object]:
    """One run, as it is timed. Gradients are computed and dropped, never accumulated."""
    if case.backward:
        wanted = [x, *module.parameters()]
        return lambda: torch.autograd.grad(module(x), wanted, gradient)

    def forward() -> object:
        with torch.no_grad():
            return module(x)

    return forward
