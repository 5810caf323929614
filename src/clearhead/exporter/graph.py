"""The form in which a module is exported: plain tensors in and out, with dynamic axes.

    model   all tokens at once        ids -> logits
    step    only the new tokens       ids, keys and values so far -> logits, keys and values

A step with an empty past reads a whole prompt; later steps read one token each. One graph does
both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.export import Dim

from clearhead.attention import MultiHeadAttention
from clearhead.cache import KVCache
from clearhead.gpt2 import GPT2, TransformerBlock

What = Literal["model", "step"]

_LEAST = 4  # torch.export specialises on 0 and 1, and the example needs tokens and a past


@dataclass(frozen=True)
class Graph:
    """A module in the form in which it is exported.

    Attributes:
        module: The wrapped module; inputs and outputs are plain tensors.
        context_length: The maximum number of tokens.
        inputs: The names of the inputs.
        outputs: The names of the outputs.
        dynamic_shapes: The dynamic axes, in the form `torch.export` expects.
    """

    module: nn.Module
    context_length: int
    inputs: list[str]
    outputs: list[str]
    dynamic_shapes: dict[str, Any]

    def example(self, batch: int, tokens: int, past: int = 0) -> tuple[Any, ...]:
        """Random inputs of these sizes; `past` is ignored if the graph has no cache."""
        module = self.module
        assert isinstance(module, _Plain | _Step)
        first = module.example(batch, tokens)
        return (first, module.past(batch, past)) if isinstance(module, _Step) else (first,)

    @property
    def cached(self) -> bool:
        """Whether earlier keys and values are inputs."""
        return isinstance(self.module, _Step)


def graph(module: nn.Module, what: What) -> Graph:
    """Wrap a module for export; raise an error that says why if it cannot be exported."""
    check(module, what)
    context_length = _attentions(module)[0].context_length
    batch, tokens = Dim("batch"), Dim("tokens", max=context_length)
    name_in, name_out = ("ids", "logits") if isinstance(module, GPT2) else ("x", "output")
    axes = {0: batch, 1: tokens}
    if what == "model":
        return Graph(_Plain(module), context_length, [name_in], [name_out], {"x": axes})
    layers = len(_attentions(module))
    kinds = [f"{n}.{kind}" for n in range(layers) for kind in ("keys", "values")]
    past = {0: batch, 2: Dim("past", max=context_length)}
    return Graph(
        _Step(module),
        context_length,
        [name_in, *(f"past.{kind}" for kind in kinds)],
        [name_out, *(f"present.{kind}" for kind in kinds)],
        {"x": axes, "past": [past] * (2 * layers)},
    )


def check(module: nn.Module, what: What) -> None:
    """Raise ValueError or TypeError if the module cannot be exported, and say why."""
    if what not in ("model", "step"):
        raise ValueError(f'what must be "model" or "step", got {what!r}.')
    if not isinstance(module, MultiHeadAttention | TransformerBlock | GPT2):
        raise TypeError(
            "export: expected a MultiHeadAttention, a TransformerBlock or a GPT2, got "
            f"{type(module).__name__}.\n"
            "  For other modules use torch.onnx.export(module, inputs, dynamo=True)."
        )
    attentions = _attentions(module)
    if attentions[0].context_length < _LEAST:
        raise ValueError(
            f"context_length: expected {_LEAST} or more, got {attentions[0].context_length}; a "
            "shorter axis cannot be dynamic in an exported graph."
        )
    for name, part in module.named_modules():
        prefix = f"{name}: " if name else ""
        if isinstance(part, nn.Dropout) and part.training and part.p > 0:
            raise ValueError(
                f"{prefix}dropout {part.p} is active, so two runs differ and no exported graph can "
                "equal the module.\n  Call module.eval() first."
            )
        if isinstance(part, MultiHeadAttention) and part.kernel == "blocked":
            raise ValueError(
                f'{prefix}kernel="blocked" is Clearhead\'s own operator, which other runtimes do '
                'not have.\n  Set module.kernel = "auto"; the results stay the same.'
            )
    if what == "step" and not all(part.causal for part in attentions):
        raise ValueError(
            'what="step" needs causal attention: without it, a new token changes the results of '
            'earlier ones.\n  Export it with what="model".'
        )
    kinds = {parameter.dtype for parameter in module.parameters()}
    if kinds - {torch.float32, torch.float64}:
        half = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        raise ValueError(
            f"the weights are {half}: runtimes round half precision differently, so the exported "
            "file could not be checked.\n  Export module.float(), and convert the file with the "
            "runtime's own tools."
        )


class _Plain(nn.Module):
    """Reads all tokens at once."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out

    def example(self, batch: int, tokens: int) -> Tensor:
        first = next(self.inner.parameters())
        if isinstance(self.inner, GPT2):
            high = self.inner.config["vocab_size"]
            return torch.randint(high, (batch, tokens), device=first.device)
        width = _attentions(self.inner)[0].d_in
        return torch.randn(batch, tokens, width, device=first.device, dtype=first.dtype)


class _Step(_Plain):
    """Reads new tokens only; keys and values of earlier ones are inputs and outputs."""

    def forward(self, x: Tensor, past: Sequence[Tensor]) -> tuple[Tensor, ...]:  # type: ignore[override]  # one more argument
        pairs = zip(past[::2], past[1::2], strict=True)
        caches: list[KVCache] = [_Past(keys, values) for keys, values in pairs]
        if isinstance(self.inner, GPT2):
            out = self.inner(x, caches=caches)
        else:
            out = self.inner(x, cache=caches[0])
        return (out, *(tensor for cache in caches for tensor in (cache.keys, cache.values)))

    def past(self, batch: int, tokens: int) -> list[Tensor]:
        """Random keys and values of earlier tokens."""
        return [
            torch.randn(
                (batch, part.num_kv_heads, tokens, part.head_dim),
                device=part.out_proj.weight.device,
                dtype=part.out_proj.weight.dtype,
            )
            for part in _attentions(self.inner)
            for _ in ("keys", "values")
        ]


class _Past(KVCache):
    """A cache that grows: the graph's inputs, concatenated with the new keys and values."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys = keys
        self.values = values
        self.static = False

    def positions(self, tokens: int) -> Tensor:
        before = self.keys.shape[2]
        return torch.arange(before, before + tokens, device=self.keys.device)

    def _known(self) -> int:
        return 0  # a known length would tie the graph to the example

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.keys = torch.cat([self.keys, keys], 2)  # (.., past, ..) -> (.., past + tokens, ..)
        self.values = torch.cat([self.values, values], 2)
        return self.keys, self.values


def _attentions(module: nn.Module) -> list[MultiHeadAttention]:
    return [part for part in module.modules() if isinstance(part, MultiHeadAttention)]
