"""The usual ways to write causal multi-head attention, all with the same weights.

Every builder takes one source of weights and a `Case`, and gives a module that maps x (batch,
tokens, d_model) to the output. `squares` and `masks` say what it builds of size tokens × tokens, so
that `room` knows, without trying, where it does not fit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.cases import Case, make_weights
from clearhead import ladder
from clearhead.attention import MultiHeadAttention
from clearhead.masks import Mask


def _no_squares(case: Case) -> float:
    """Memory O(tokens)."""
    return 0.0


def _no_masks(case: Case) -> int:
    return 0


@dataclass(frozen=True)
class Builder:
    """How to build one contestant.

    Args:
        name: What the table calls it.
        build: Makes the module from the weights.
        package: The package it needs, under the name it is imported by; None = torch alone.
        biases: Whether it has biases. Without, it is compared with biases of zero.
        ours: Whether this is the fast module of this library.
        squares: How many arrays of (batch, heads, tokens, tokens) a run holds at once, as measured.
        masks: How many bytes it stores for each pair of tokens.
    """

    name: str
    build: Callable[[ladder.MultiHeadAttention, Case], nn.Module]
    package: str | None = None
    biases: bool = True
    ours: bool = False
    squares: Callable[[Case], float] = _no_squares
    masks: Callable[[Case], int] = _no_masks

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
        """The contestant, ready to be timed; a compiled one compiles in its first run."""
        weights = make_weights(case, biases=self.biases)
        with torch.device(case.device):  # masks of many GiB are built where they are used
            module = self.build(weights, case)
        module = module.to(case.device, case.torch_dtype()).train(case.training)
        if case.compiled:  # for this one length, as everybody's best
            module = cast("nn.Module", torch.compile(module, dynamic=False))
        return module


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


def _all_heads_at_once(case: Case) -> float:
    """Scores, masked scores and weights; on CUDA the backward pass holds one more, and dropout."""
    return 4.5 if case.dropout or (case.training and case.device == "cuda") else 3.5


def _head_by_head(case: Case) -> float:
    return 1.8 if case.training else 3.5 / case.heads


def _torch_weights(case: Case) -> float:
    return _all_heads_at_once(case) if case.training else _torch_fast_path(case)


def _torch_no_weights(case: Case) -> float:
    """In training only its mask as numbers, one for all heads and texts."""
    return 1 / (case.batch * case.heads) if case.training else _torch_fast_path(case)


def _torch_fast_path(case: Case) -> float:
    """Scores and weights, and the mask as bools; on CUDA once a head, and as numbers, twice."""
    size = case.element_size()
    if case.device != "cuda":
        return 2.1 + 1 / size
    return 2.1 + (1 + 2 * size) / (size * case.batch)


def _sdpa_squares(case: Case) -> float:
    return 4.5 if case.dropout and case.device == "cpu" else 0.0


def _sdpa_masks(case: Case) -> int:
    return int(case.window is not None or case.padding > 0)


def _bool_mask(case: Case) -> int:
    return 1


def _float_mask(case: Case) -> int:
    return case.element_size()


BOOK = Builder("book's class (rung 4)", _book, squares=_all_heads_at_once, masks=_float_mask)
SDPA = Builder(
    "separate QKV + SDPA",
    lambda s, c: SdpaAttention(s, c, fused=False),
    squares=_sdpa_squares,
    masks=_sdpa_masks,
)
FUSED = Builder("fused QKV + SDPA", lambda s, c: SdpaAttention(s, c, fused=True))
TORCH = Builder(
    "nn.MultiheadAttention, no weights",
    lambda s, c: TorchAttention(s, c, need_weights=False),
    squares=_torch_no_weights,
    masks=_bool_mask,
)
OURS = Builder("clearhead", _ours, ours=True)
ALL = (
    BOOK,
    Builder(
        "wrapper of heads (rung 3½)",
        WrapperAttention,
        squares=_head_by_head,
        masks=lambda case: case.heads * case.element_size(),
    ),
    Builder("einsum", EinsumAttention, squares=_all_heads_at_once, masks=_bool_mask),
    Builder(
        "nn.MultiheadAttention, weights",
        lambda s, c: TorchAttention(s, c, need_weights=True),
        squares=_torch_weights,
        masks=_bool_mask,
    ),
    TORCH,
    SDPA,
    FUSED,
    Builder("transformers GPT2Attention", HuggingFaceAttention, "transformers"),
    Builder("x-transformers", _x_transformers, "x_transformers", biases=False),
    OURS,
)
COMPILED = (BOOK, TORCH, SDPA, FUSED, OURS)


def builders_for(case: Case) -> tuple[Builder, ...]:
    """Who takes part."""
    if case.section == "fused":
        return COMPILED if case.compiled else ALL
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
