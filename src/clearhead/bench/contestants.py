"""The usual ways to write causal multi-head attention, all with the same weights.

Every builder takes one source of weights and a `Case`, and gives a module that maps x (batch,
tokens, d_model) to the output. The weights are random, distinct and large enough that attention is
far from uniform: a wrong scale or a swapped matrix shows.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead import ladder
from clearhead.attention import MultiHeadAttention
from clearhead.masks import Mask

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

    def hidden(self) -> Tensor | None:
        """True where a key is hidden, (batch or 1, 1, tokens, tokens); None = the future only.

        Written out here, without `Mask`: it is what `Mask` is measured against.
        """
        if self.window is None and not self.padding:
            return None
        position = torch.arange(self.tokens, device=self.device)
        query, key = position[:, None], position[None, :]
        hidden = (key > query) | (key < self.padding)
        if self.window is not None:
            hidden = hidden | (key <= query - self.window)
        return hidden[None, None]


@dataclass(frozen=True)
class Builder:
    """How to build one contestant.

    Args:
        name: What the table calls it.
        build: Makes the module from the weights.
        package: The package it needs, under the name it is imported by; None = torch alone.
        biases: Whether it has biases. Without, it is compared with biases of zero.
        ours: Whether this is the fast module of this library.
    """

    name: str
    build: Callable[[ladder.MultiHeadAttention, Case], nn.Module]
    package: str | None = None
    biases: bool = True
    ours: bool = False

    @property
    def installed(self) -> bool:
        """Whether its package is there."""
        return self.package is None or find_spec(self.package) is not None

    @property
    def note(self) -> str:
        """What the table must say about it."""
        if not self.installed:
            return "not installed"
        return "" if self.biases else "has no biases: compared with biases of zero"

    def module(self, case: Case) -> nn.Module:
        """The contestant, ready to be timed."""
        module = self.build(make_weights(case, biases=self.biases), case)
        return module.to(case.device, case.torch_dtype()).train(case.training)


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


class EinsumAttention(nn.Module):
    """Every step as an einsum: b batch, q queries, k keys, h heads, d head_dim, c channels."""

    hidden: Tensor

    def __init__(self, source: ladder.MultiHeadAttention, case: Case) -> None:
        super().__init__()
        self.heads = case.heads
        self.projections = nn.ModuleList(
            _copy(linear) for linear in (source.W_query, source.W_key, source.W_value)
        )
        self.out_proj = _copy(source.out_proj)
        self.register_buffer("hidden", _future(case))

    def forward(self, x: Tensor) -> Tensor:
        """The output of all heads."""
        queries, keys, values = (self._project(x, linear) for linear in self.projections)
        scores = torch.einsum("bhqd,bhkd->bhqk", queries, keys) / queries.shape[-1] ** 0.5
        weights = scores.masked_fill(self.hidden, -torch.inf).softmax(-1)
        context = torch.einsum("bhqk,bhkd->bhqd", weights, values)
        weight = self.out_proj.weight.view(x.shape[-1], self.heads, -1)
        return torch.einsum("bhqd,chd->bqc", context, weight) + self.out_proj.bias

    def _project(self, x: Tensor, linear: nn.Module) -> Tensor:
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"expected nn.Linear, got {type(linear).__name__}.")
        weight = linear.weight.view(self.heads, -1, x.shape[-1])
        bias = linear.bias.view(self.heads, 1, -1)
        return torch.einsum("bqc,hdc->bhqd", x, weight) + bias


class SdpaAttention(nn.Module):
    """Projections and `scaled_dot_product_attention`, as most people write it today.

    A mask other than "causal" is built once and kept, as a model would for all its layers.
    """

    may_attend: Tensor | None

    def __init__(self, source: ladder.MultiHeadAttention, case: Case, *, fused: bool) -> None:
        super().__init__()
        self.heads = case.heads
        self.dropout = case.dropout
        linears = [source.W_query, source.W_key, source.W_value]
        if fused:
            linears = [_stack(linears)]
        self.projections = nn.ModuleList(_copy(linear) for linear in linears)
        self.out_proj = _copy(source.out_proj)
        hidden = case.hidden()
        self.register_buffer("may_attend", None if hidden is None else ~hidden)

    def forward(self, x: Tensor) -> Tensor:
        """The output of all heads."""
        parts = [projection(x) for projection in self.projections]
        parts = parts if len(parts) == 3 else list(parts[0].chunk(3, dim=-1))
        # (batch, tokens, d_model) -> (batch, heads, tokens, head_dim)
        queries, keys, values = (p.unflatten(2, (self.heads, -1)).transpose(1, 2) for p in parts)
        context = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=self.may_attend,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.may_attend is None,
        )
        output: Tensor = self.out_proj(context.transpose(1, 2).flatten(2))
        return output


class TorchAttention(nn.Module):
    """`nn.MultiheadAttention` with its causal mask."""

    hidden: Tensor

    def __init__(
        self, source: ladder.MultiHeadAttention, case: Case, *, need_weights: bool
    ) -> None:
        super().__init__()
        self.need_weights = need_weights
        self.attention = nn.MultiheadAttention(case.d_model, case.heads, batch_first=True)
        stacked = _stack([source.W_query, source.W_key, source.W_value])
        with torch.no_grad():
            self.attention.in_proj_weight.copy_(stacked.weight)
            self.attention.in_proj_bias.copy_(stacked.bias)
            self.attention.out_proj.weight.copy_(source.out_proj.weight)
            self.attention.out_proj.bias.copy_(source.out_proj.bias)
        self.register_buffer("hidden", _future(case))

    def forward(self, x: Tensor) -> Tensor:
        """The output; the weights, where they were asked for, are dropped."""
        output: Tensor = self.attention(
            x, x, x, attn_mask=self.hidden, is_causal=True, need_weights=self.need_weights
        )[0]
        return output


class WrapperAttention(nn.Module):
    """The book's wrapper of independent heads, then the output projection."""

    def __init__(self, source: ladder.MultiHeadAttention, case: Case) -> None:
        super().__init__()
        size = source.head_dim
        self.wrapper = ladder.MultiHeadAttentionWrapper(
            case.d_model, size, case.tokens, 0.0, case.heads, qkv_bias=True
        )
        self.out_proj = _copy(source.out_proj)
        with torch.no_grad():
            for index, head in enumerate(self.wrapper.heads):
                rows = slice(index * size, (index + 1) * size)
                for name in ("W_query", "W_key", "W_value"):
                    mine, whole = getattr(head, name), getattr(source, name)
                    mine.weight.copy_(whole.weight[rows])
                    mine.bias.copy_(whole.bias[rows])

    def forward(self, x: Tensor) -> Tensor:
        """The output of all heads."""
        output: Tensor = self.out_proj(self.wrapper(x))
        return output


class HuggingFaceAttention(nn.Module):
    """`transformers`' GPT2Attention, on its SDPA path."""

    def __init__(self, source: ladder.MultiHeadAttention, case: Case) -> None:
        super().__init__()
        # Imported by name: the package may be missing, and its types are incomplete.
        config = import_module("transformers").GPT2Config(
            n_embd=case.d_model,
            n_head=case.heads,
            n_positions=case.tokens,
            attn_pdrop=0.0,
            resid_pdrop=0.0,
            attn_implementation="sdpa",
        )
        modeling = import_module("transformers.models.gpt2.modeling_gpt2")
        self.attention: Any = modeling.GPT2Attention(config, layer_idx=0)
        stacked = _stack([source.W_query, source.W_key, source.W_value])
        with torch.no_grad():  # its Conv1D keeps weights as (in, out)
            self.attention.c_attn.weight.copy_(stacked.weight.T)
            self.attention.c_attn.bias.copy_(stacked.bias)
            self.attention.c_proj.weight.copy_(source.out_proj.weight.T)
            self.attention.c_proj.bias.copy_(source.out_proj.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The output of all heads."""
        output: Tensor = self.attention(x)[0]
        return output


def _book(source: ladder.MultiHeadAttention, case: Case) -> nn.Module:
    """Rung 4. Its stored mask is replaced where the case hides more than the future."""
    book = ladder.MultiHeadAttention(
        case.d_model, case.d_model, case.tokens, case.dropout, case.heads, qkv_bias=True
    )
    hidden = case.hidden()
    mask = book.mask if hidden is None else hidden[0, 0].to(book.mask)
    book.load_state_dict({**source.state_dict(), "mask": mask})
    return book


def _x_transformers(source: ladder.MultiHeadAttention, case: Case) -> nn.Module:
    attention: nn.Module = import_module("x_transformers.x_transformers").Attention(
        case.d_model, dim_head=source.head_dim, heads=case.heads, causal=True, flash=True
    )
    pairs = {"to_q": "W_query", "to_k": "W_key", "to_v": "W_value", "to_out": "out_proj"}
    with torch.no_grad():
        for theirs, ours in pairs.items():
            getattr(attention, theirs).weight.copy_(getattr(source, ours).weight)
    return attention


class _WithMask(nn.Module):
    """Our module with the case's padding."""

    def __init__(self, attention: MultiHeadAttention, mask: Mask) -> None:
        super().__init__()
        self.attention = attention
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.attention(x, mask=self.mask)
        return output


def _ours(source: ladder.MultiHeadAttention, case: Case) -> nn.Module:
    attention = MultiHeadAttention(
        case.d_model,
        case.d_model,
        case.tokens,
        case.dropout,
        case.heads,
        qkv_bias=True,
        window=case.window,
    )
    attention.load_state_dict(source.state_dict())
    if not case.padding:
        return attention
    real = torch.full((case.batch,), case.tokens - case.padding, device=case.device)
    return _WithMask(attention, Mask.padding(real, side="left"))


BOOK = Builder("book's class (rung 4)", _book)
SDPA = Builder("separate QKV + SDPA", lambda s, c: SdpaAttention(s, c, fused=False))
OURS = Builder("clearhead", _ours, ours=True)
ALL = (
    BOOK,
    Builder("wrapper of heads (rung 3½)", WrapperAttention),
    Builder("einsum", EinsumAttention),
    Builder("nn.MultiheadAttention, weights", lambda s, c: TorchAttention(s, c, need_weights=True)),
    Builder(
        "nn.MultiheadAttention, no weights", lambda s, c: TorchAttention(s, c, need_weights=False)
    ),
    SDPA,
    Builder("fused QKV + SDPA", lambda s, c: SdpaAttention(s, c, fused=True)),
    Builder("transformers GPT2Attention", HuggingFaceAttention, "transformers"),
    Builder("x-transformers", _x_transformers, "x_transformers", biases=False),
    OURS,
)


def builders_for(case: Case) -> tuple[Builder, ...]:
    """Who takes part."""
    if case.section == "fused":
        return ALL
    if case.section == "dropout":
        return (BOOK, SDPA, OURS)
    if case.section == "long" and case.dropout:
        return (OURS,)
    return (SDPA, OURS)


def find_builder(name: str) -> Builder:
    """The builder called `name`."""
    return next(builder for builder in ALL if builder.name == name)


def _future(case: Case) -> Tensor:
    """True where a key comes after the query."""
    return torch.ones(case.tokens, case.tokens, dtype=torch.bool).triu(1)


def _bias(linear: nn.Linear) -> Tensor:
    if linear.bias is None:
        raise ValueError("the weights to copy must have biases; use make_weights.")
    return linear.bias


def _copy(linear: nn.Linear) -> nn.Linear:
    return _stack([linear])


def _stack(linears: list[nn.Linear]) -> nn.Linear:
    """One linear layer that gives the outputs of all, one after the other."""
    rows = sum(linear.out_features for linear in linears)
    stacked = nn.Linear(linears[0].in_features, rows).to(linears[0].weight)
    with torch.no_grad():
        stacked.weight.copy_(torch.cat([linear.weight for linear in linears]))
        stacked.bias.copy_(torch.cat([_bias(linear) for linear in linears]))
    return stacked
