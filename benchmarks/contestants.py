"""The contestants of the attention benchmark: usual ways to write causal multi-head attention.

To add one, add an `Implementation` to `CONTESTANTS`; nothing else needs to change. Its `build`
takes the weights to copy and a `Case`, and returns a module that maps x (batch, tokens, d_model) to
the output. `maps` and `mask_bytes` estimate its memory, so that it is not tried where it does not
fit; tests compare the estimates with what was measured.
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
from clearhead.kernels import Kernel
from clearhead.masks import Mask


@dataclass(frozen=True)
class Implementation:
    """One way to write attention.

    Args:
        name: Its name in tables and results.
        build: Builds the module from the weights.
        sections: The sections of the benchmark it takes part in; "compiled" means the compiled
            form of "fused".
        package: The module it imports besides torch.
        biases: Whether it has biases. If not, it is compared with biases of zero.
        ours: Whether it is the module of this library.
        maps: Arrays of (batch, heads, tokens, tokens) that one run holds at once.
        mask_bytes: Bytes it stores per pair of tokens.
    """

    name: str
    build: Callable[[ladder.MultiHeadAttention, Case], nn.Module]
    sections: tuple[str, ...] = ("fused",)
    package: str = "torch"
    biases: bool = True
    ours: bool = False
    maps: Callable[[Case], float] = lambda case: 0.0
    mask_bytes: Callable[[Case], int] = lambda case: 0

    @property
    def installed(self) -> bool:
        """Whether its package is installed."""
        return find_spec(self.package) is not None

    def module(self, case: Case) -> nn.Module:
        """The module, ready to be timed; a compiled one compiles in its first run."""
        weights = make_weights(case, biases=self.biases)
        with torch.device(case.device):  # large masks are built where they are used
            module = self.build(weights, case)
        module = module.to(case.device, case.torch_dtype()).train(case.training)
        if case.compiled:  # for this length only, which is everyone's fastest form
            module = cast("nn.Module", torch.compile(module, dynamic=False))
        return module

    def stored_mib(self, case: Case) -> float:
        """About how many MiB of masks it keeps."""
        return case.tokens**2 * self.mask_bytes(case) / 2**20

    def running_mib(self, case: Case) -> float:
        """About how many MiB one run needs on top, or building the masks, if that is more."""
        size = case.torch_dtype().itemsize
        vectors = case.batch * case.tokens * case.d_model * (16 if case.training else 6) * size
        stored = self.stored_mib(case)
        # Masks are built in float32, one after the other, and then converted.
        building = stored * (4 / size - 1) + 4 * case.tokens**2 / 2**20 if stored else 0.0
        return max(building, vectors / 2**20 + case.map_mib() * self.maps(case))


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

    def _project(self, x: Tensor, linear: Any) -> Tensor:
        weight = linear.weight.view(self.heads, -1, x.shape[-1])
        bias: Tensor = linear.bias.view(self.heads, 1, -1)
        return torch.einsum("bqc,hdc->bhqd", x, weight) + bias


class SdpaAttention(nn.Module):
    """Projections and `scaled_dot_product_attention`, as most people write it today.

    A mask other than "causal" is built once and kept, as a model would do for all its layers.
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
        """The output; weights are computed if requested, and dropped."""
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
        # Imported by name: the package is optional, and its types are incomplete.
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
    """Rung 4. Where the case hides more than the future, its stored mask is replaced."""
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
    """Our module with the padding of the case."""

    def __init__(self, attention: MultiHeadAttention, mask: Mask) -> None:
        super().__init__()
        self.attention = attention
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.attention(x, mask=self.mask)
        return output


def build_ours(
    source: ladder.MultiHeadAttention, case: Case, *, packed: bool = False, kernel: Kernel = "auto"
) -> nn.Module:
    """Our module, with the mask of the case."""
    attention = MultiHeadAttention(
        case.d_model,
        case.d_model,
        case.tokens,
        case.dropout,
        case.heads,
        qkv_bias=True,
        window=case.window,
        packed=packed,
        kernel=kernel,
    )
    attention.load_state_dict(source.state_dict())
    if not case.padding:
        return attention
    real = torch.full((case.batch,), case.tokens - case.padding, device=case.device)
    return _WithMask(attention, Mask.padding(real, side="left"))


def _all_heads_at_once(case: Case) -> float:
    """Scores, masked scores and weights; one more with dropout, or in a backward pass on CUDA."""
    return 4.5 if case.dropout or (case.training and case.device == "cuda") else 3.5


def _torch_fast_path(case: Case) -> float:
    """Scores and weights, and the mask as bool; on CUDA a mask per head, and twice as numbers."""
    size = case.torch_dtype().itemsize
    return 2.1 + (1 / size if case.device == "cpu" else (1 + 2 * size) / (size * case.batch))


BOOK = Implementation(
    "book's class (rung 4)",
    _book,
    ("fused", "compiled", "dropout"),
    maps=_all_heads_at_once,
    mask_bytes=lambda case: case.torch_dtype().itemsize,
)
PACKED = "clearhead, packed"

CONTESTANTS = (
    BOOK,
    Implementation(
        "wrapper of heads (rung 3½)",
        WrapperAttention,
        maps=lambda case: 1.8 if case.training else 3.5 / case.heads,
        mask_bytes=lambda case: case.heads * case.torch_dtype().itemsize,
    ),
    Implementation("einsum", EinsumAttention, maps=_all_heads_at_once, mask_bytes=lambda case: 1),
    Implementation(
        "nn.MultiheadAttention, weights",
        lambda source, case: TorchAttention(source, case, need_weights=True),
        maps=lambda case: _all_heads_at_once(case) if case.training else _torch_fast_path(case),
        mask_bytes=lambda case: 1,
    ),
    Implementation(
        "nn.MultiheadAttention, no weights",
        lambda source, case: TorchAttention(source, case, need_weights=False),
        ("fused", "compiled"),
        # In training only its mask, as numbers, one for all heads and sequences.
        maps=lambda case: (
            1 / (case.batch * case.heads) if case.training else _torch_fast_path(case)
        ),
        mask_bytes=lambda case: 1,
    ),
    Implementation(
        "separate QKV + SDPA",
        lambda source, case: SdpaAttention(source, case, fused=False),
        ("fused", "compiled", "dropout", "window", "padding", "long"),
        maps=lambda case: 4.5 if case.dropout and case.device == "cpu" else 0.0,
        mask_bytes=lambda case: int(case.window is not None or case.padding > 0),
    ),
    Implementation(
        "fused QKV + SDPA",
        lambda source, case: SdpaAttention(source, case, fused=True),
        ("fused", "compiled", "dropout"),
        maps=lambda case: 4.5 if case.dropout and case.device == "cpu" else 0.0,
    ),
    Implementation("transformers GPT2Attention", HuggingFaceAttention, package="transformers"),
    Implementation("x-transformers", _x_transformers, package="x_transformers", biases=False),
    Implementation(
        "clearhead",
        build_ours,
        ("fused", "compiled", "dropout", "window", "padding", "long", "long dropout"),
        ours=True,
    ),
    # Ours as well: it is compared with the others in its own column, not the "fastest other".
    Implementation(
        PACKED,
        lambda source, case: build_ours(source, case, packed=True),
        ("fused", "compiled", "dropout"),
        ours=True,
    ),
)


def contestants_for(case: Case) -> tuple[Implementation, ...]:
    """The contestants of a case."""
    section = "compiled" if case.compiled else case.section
    if section == "long" and case.dropout:
        section = "long dropout"
    return tuple(one for one in CONTESTANTS if section in one.sections)


def find(name: str) -> Implementation:
    """The contestant called `name`."""
    return next(one for one in CONTESTANTS if one.name == name)


def _future(case: Case) -> Tensor:
    """True where a key comes after the query."""
    return torch.ones(case.tokens, case.tokens, dtype=torch.bool).triu(1)


def _copy(linear: nn.Linear) -> nn.Linear:
    return _stack([linear])


def _stack(linears: list[nn.Linear]) -> nn.Linear:
    """One linear layer that returns the outputs of all of them, concatenated."""
    rows = sum(linear.out_features for linear in linears)
    stacked = nn.Linear(linears[0].in_features, rows).to(linears[0].weight)
    with torch.no_grad():
        stacked.weight.copy_(torch.cat([linear.weight for linear in linears]))
        stacked.bias.copy_(torch.cat([linear.bias for linear in linears]))
    return stacked
