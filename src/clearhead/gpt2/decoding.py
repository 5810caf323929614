"""Decoding: one new token per row -> logits, with the keys and values of earlier tokens cached.

    ModuleDecoder    calls the model's modules; any model, any device
    SlicedDecoder    the same arithmetic without the modules, faster on a CPU
    UncachedDecoder  no cache: computes every token again at each step

`choose` picks one for a model. On CUDA, `cuda_decoding.py` is faster.

On a CPU, memory bandwidth limits the speed: with one row, a matrix product only reads the weight,
and the library's product of one row with a transposed matrix reads it at a third of the memory's
speed. The same weight viewed as a stack of slices, (slices, outputs / slices, inputs), and
multiplied as a batch of matrices, is read at nearly full speed by all threads. Being a view, it
copies no weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.overrides import has_torch_function

from clearhead import torch_internals
from clearhead.attention import MultiHeadAttention
from clearhead.cache import KVCache
from clearhead.embedding import Embedding
from clearhead.gpt2.transformer import FeedForward, Transformer, TransformerBlock
from clearhead.kernels import listener

Pair = tuple[Tensor, Tensor | None]  # a weight and its bias

_MOST_SLICES = 32
_MOST_ROWS = 64  # with more rows a plain product is fast


class Decoder(Protocol):
    """The interface of all decoders."""

    def prefill(
        self, ids: Int[Tensor, "batch tokens"], lengths: Int[Tensor, " batch"] | None
    ) -> Float[Tensor, "batch vocab_size"]:
        """Read the prompts, padded on the left; return the logits of the next token per row."""

    def step(self, ids: Int[Tensor, " batch"]) -> Float[Tensor, "batch vocab_size"]:
        """Read one more token per row; return the logits of the next."""


class ModuleDecoder:
    """Calls the model, with one cache per block.

    Args:
        model: The model.
        batch: The number of rows.
        capacity: The number of tokens that fit into the caches.
    """

    def __init__(self, model: Transformer, batch: int, capacity: int) -> None:
        self.model = model
        self.caches = model.new_caches(batch, capacity)
        self.lengths: Tensor | None = None

    @torch.inference_mode()
    def prefill(self, ids: Tensor, lengths: Tensor | None) -> Tensor:
        """See `Decoder`."""
        self.lengths = lengths
        with dropout_off(self.model):
            hidden = self.model.hidden(ids, lengths=lengths, caches=self.caches)
        return self.model.head(hidden[:, -1:])[:, 0]  # the last position only

    @torch.inference_mode()
    def step(self, ids: Tensor) -> Tensor:
        """See `Decoder`."""
        if self.lengths is not None:
            self.lengths = self.lengths + 1
        with dropout_off(self.model):
            hidden = self.model.hidden(ids[:, None], lengths=self.lengths, caches=self.caches)
        return self.model.head(hidden)[:, 0]


class UncachedDecoder:
    """Computes all tokens, or the last `context_length` of them, again at each step.

    Args:
        model: The model.
    """

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.ids: Tensor | None = None
        self.lengths: Tensor | None = None

    @torch.inference_mode()
    def prefill(self, ids: Tensor, lengths: Tensor | None) -> Tensor:
        """See `Decoder`."""
        ids = ids[:, -self.model.config["context_length"] :]
        if lengths is not None:
            lengths = lengths.clamp(max=ids.shape[1])
            lengths = None if bool((lengths == ids.shape[1]).all()) else lengths
        self.ids, self.lengths = ids, lengths
        with dropout_off(self.model):
            hidden = self.model.hidden(ids, lengths=lengths)
        return self.model.head(hidden[:, -1:])[:, 0]

    def step(self, ids: Tensor) -> Tensor:
        """See `Decoder`."""
        assert self.ids is not None, "call prefill first"
        longer = None if self.lengths is None else self.lengths + 1
        return self.prefill(torch.cat([self.ids, ids[:, None]], dim=1), longer)


class SlicedDecoder:
    """The model's arithmetic on slices of its weights, without calling its modules.

    Args:
        model: A model for which `unusual` returns None.
        batch: The number of rows.
        capacity: The number of tokens that fit into the caches.
    """

    def __init__(self, model: Transformer, batch: int, capacity: int) -> None:
        self.model = model
        self.caches = model.new_caches(batch, capacity)
        self.layers = [_Layer(block) for block in model.blocks]  # type: ignore[arg-type]  # a ModuleList is not typed
        self.norm = model.norm
        self.head = _Product(model.head_weight, None)
        self.token = model.embedding.token.weight
        self.positions = model.embedding.position.weight  # type: ignore[union-attr]  # see unusual
        self.heads = model.config["num_heads"]
        self.width = 0  # the tokens read so far, padding included
        self.padding: Tensor | None = None
        self.visible: Tensor | None = None

    @torch.inference_mode()
    def prefill(self, ids: Tensor, lengths: Tensor | None) -> Tensor:
        """See `Decoder`."""
        self.width = ids.shape[1]
        if lengths is not None:
            self.padding = self.width - lengths
            key = torch.arange(self.caches[0].capacity)
            self.visible = (key >= self.padding[:, None])[:, None, None]  # (batch, 1, 1, capacity)
        return prefill_caches(self.model, ids, lengths, self.caches)

    @torch.inference_mode()
    def step(self, ids: Tensor) -> Tensor:
        """See `Decoder`."""
        batch, index, end = len(ids), self.width, self.width + 1
        # In padded rows the position of a token is smaller than its index in the cache.
        position = index if self.padding is None else index - self.padding
        x = F.embedding(ids, self.token) + self.positions[position]
        visible = None if self.visible is None else self.visible[..., :end]
        for layer, cache in zip(self.layers, self.caches, strict=True):
            normed = layer.norm1(x)
            split = (batch, self.heads, 1, -1)
            cache.keys[:, :, index] = layer.key(normed).view(split)[:, :, 0]
            cache.values[:, :, index] = layer.value(normed).view(split)[:, :, 0]
            context = F.scaled_dot_product_attention(
                layer.query(normed).view(split),
                cache.keys[:, :, :end],
                cache.values[:, :, :end],
                attn_mask=visible,
            )
            x = x + layer.out(context.reshape(batch, -1))
            wide = F.gelu(layer.expand(layer.norm2(x)), approximate="tanh")
            x = x + layer.project(wide)
        self.width = end
        return self.head(self.norm(x))


class _Layer:
    """The layers of a block as callables."""

    def __init__(self, block: TransformerBlock) -> None:
        attention, feed_forward = block.attention, block.feed_forward
        self.norm1, self.norm2 = block.norm1, block.norm2
        self.query, self.key, self.value = (_Product(*each) for each in projections(attention))
        self.out = _Product(*pair(attention.out_proj))
        self.expand = _Product(*pair(feed_forward.expand))
        self.project = _Product(*pair(feed_forward.project))


class _Product:
    """x (batch, inputs) -> x @ weight.T + bias (batch, outputs), over slices of the weight."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight.detach(), bias
        outputs, inputs = weight.shape
        slices = next(n for n in range(_MOST_SLICES, 0, -1) if outputs % n == 0)
        self.stack = self.weight.view(slices, -1, inputs) if weight.is_contiguous() else None

    def __call__(self, x: Tensor) -> Tensor:
        if self.stack is None or len(self.stack) == 1 or len(x) > _MOST_ROWS:
            return F.linear(x, self.weight, self.bias)
        columns = x.t().expand(len(self.stack), -1, -1)  # (batch, inputs) -> (slices, inputs, ..)
        out = torch.bmm(self.stack, columns).view(-1, len(x)).t()  # -> (batch, outputs)
        return out if self.bias is None else out + self.bias


@torch.inference_mode()
def prefill_caches(
    model: Transformer,
    ids: Int[Tensor, "batch tokens"],
    lengths: Int[Tensor, " batch"] | None,
    caches: list[KVCache],
) -> Float[Tensor, "batch vocab_size"]:
    """Store the keys and values of prompts in empty caches; return the logits of the next token.

    For models for which `unusual` returns None. Only the last position reaches the head, so the
    last block computes nothing but keys and values for the others.
    """
    if lengths is not None:  # padding needs a mask, which the modules handle
        for cache in caches:
            cache.reset()
        with dropout_off(model):
            hidden = model.hidden(ids, lengths=lengths, caches=caches)
        return model.head(hidden[:, -1:])[:, 0]
    batch, tokens = ids.shape
    split = (batch, -1, model.config["num_heads"], caches[0].keys.shape[3])
    positions = model.embedding.position.weight  # type: ignore[union-attr]  # see unusual
    x = F.embedding(ids, model.embedding.token.weight) + positions[:tokens]
    last = len(caches) - 1
    for number, (block, cache) in enumerate(zip(model.blocks, caches, strict=True)):
        attention: Any = block.attention
        normed = _norm(block.norm1, x)
        query, key, value = projections(attention)
        keys = _linear(key, normed).view(split).transpose(1, 2)
        values = _linear(value, normed).view(split).transpose(1, 2)
        cache.keys[:, :, :tokens] = keys
        cache.values[:, :, :tokens] = values
        if number == last:
            x, normed = x[:, -1:], normed[:, -1:]
        queries = _linear(query, normed).view(split).transpose(1, 2)
        context = F.scaled_dot_product_attention(queries, keys, values, is_causal=number != last)
        x = x + _linear(pair(attention.out_proj), context.transpose(1, 2).flatten(2))
        feed_forward: Any = block.feed_forward
        wide = _linear(pair(feed_forward.expand), _norm(block.norm2, x))
        x = x + _linear(pair(feed_forward.project), F.gelu(wide, approximate="tanh"))
    return model.head(_norm(model.norm, x))[:, 0]


def _norm(norm: Any, x: Tensor) -> Tensor:
    return F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def _linear(weight_and_bias: Pair, x: Tensor) -> Tensor:
    if x.device.type == "cpu" and x.shape[0] * x.shape[1] <= _MOST_ROWS:
        rows = _Product(*weight_and_bias)(x.flatten(0, 1))
        return rows.reshape(*x.shape[:2], -1)  # (batch * tokens, ..) -> (batch, tokens, ..)
    return F.linear(x, *weight_and_bias)


def pair(linear: nn.Linear) -> Pair:
    """The weight and the bias of a linear layer."""
    return linear.weight.detach(), None if linear.bias is None else linear.bias.detach()


def projections(attention: MultiHeadAttention) -> list[Pair]:
    """The weights and biases for queries, keys and values; of a packed layer, its parts."""
    if not attention.packed:
        return [pair(each) for each in (attention.W_query, attention.W_key, attention.W_value)]
    weight, bias = pair(attention.qkv)
    biases = (None, None, None) if bias is None else bias.chunk(3)
    return list(zip(weight.chunk(3), biases, strict=True))


def choose(model: Transformer, batch: int, capacity: int) -> Decoder:
    """The fastest decoder that can run this model."""
    weight = model.embedding.token.weight
    fits = weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.float64)
    if fits and unusual(model) is None:
        return SlicedDecoder(model, batch, capacity)
    return ModuleDecoder(model, batch, capacity)


def unusual(model: Transformer) -> str | None:
    """Why this model must run through its modules; None if its arithmetic is GPT-2's own."""
    modes = has_torch_function((torch.empty(0),)) or torch_internals.in_dispatch_mode()
    if modes or listener.get() is not None:
        return "a mode or a recorder observes the calls"
    weight = model.embedding.token.weight
    if torch.is_autocast_enabled(weight.device.type):
        return "autocast changes the dtype"
    if model.embedding.position is None:
        return "positions are rotary"
    for name in ("forward", "hidden", "head", "new_caches"):
        if getattr(getattr(model, name), "__func__", None) is not getattr(Transformer, name):
            return f"{name} is overridden"
    known: set[type[nn.Module]] = {TransformerBlock, FeedForward, MultiHeadAttention}
    known |= {Embedding, nn.ModuleList}
    known |= {nn.Linear, nn.LayerNorm, nn.Embedding, nn.Dropout}
    for name, module in model.named_modules():
        name = name or "the model"
        if torch_internals.has_hooks(module):
            return f"{name} has hooks"
        if (module is not model and type(module) not in known) or "forward" in vars(module):
            return f"{name} was replaced"
        if isinstance(module, MultiHeadAttention) and not _is_plain(module):
            return f"{name} is not GPT-2's attention"
    for name, parameter in model.named_parameters():
        if type(parameter) is not nn.Parameter:
            return f"{name} is not a plain tensor"
        if parameter.dtype != weight.dtype or parameter.device != weight.device:
            return f"{name} has a different dtype or device"
    return None


def _is_plain(attention: MultiHeadAttention) -> bool:
    return (
        type(attention) is MultiHeadAttention
        and attention.num_kv_heads == attention.num_heads
        and attention.causal
        and attention.kernel in ("auto", "sdpa")
        and attention.window is None
        and attention.rope is None
        and not attention.qk_norm
    )


@contextmanager
def dropout_off(model: nn.Module) -> Iterator[None]:
    """Put the model into eval mode temporarily: generation never uses dropout."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
