"""The network of GPT-2: token ids -> logits.

    x = token vector + position vector
    x = x + attention(norm1(x))          one block, repeated num_layers times
    x = x + feed_forward(norm2(x))
    logits = norm(x) @ token vectors     the output head is tied to the token embedding

Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019). Each norm
comes before the layer it feeds ("pre-norm"), so the residual stream x runs unchanged from bottom to
top.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from clearhead.attention import MultiHeadAttention
from clearhead.cache import KVCache
from clearhead.configs import GPT2Config, read_config
from clearhead.embedding import Embedding, Rope
from clearhead.foreign_names import explained, no_attribute
from clearhead.masks import Mask
from clearhead.validation import ShapeError, check_dropout, check_sizes

_find_in_module = nn.Module.__getattr__


class FeedForward(nn.Module):
    """Two linear layers with GELU between them, applied to each token on its own.

    Args:
        d_model: The width of the vectors; the hidden layer is four times as wide.
        dropout: The dropout probability on the output.

    Examples:
        >>> FeedForward(d_model=8, dropout=0.0)(torch.rand(1, 5, 8)).shape
        torch.Size([1, 5, 8])
    """

    @explained
    def __init__(self, d_model: int, dropout: float) -> None:
        super().__init__()
        self.expand = nn.Linear(d_model, 4 * d_model)
        self.project = nn.Linear(4 * d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "batch tokens d_model"]
    ) -> Float[Tensor, "batch tokens d_model"]:
        """Return the vectors to be added to the residual stream."""
        # GPT-2 was trained with the tanh approximation; the exact GELU differs by up to 5e-4.
        wide = F.gelu(self.expand(x), approximate="tanh")
        out: Tensor = self.dropout(self.project(wide))
        return out


class TransformerBlock(nn.Module):
    """One layer: attention, then feed-forward; each reads a normalised copy of x and adds to x.

    Args:
        config: The sizes of the model.
        rope: Rotary positions, or None.
        packed: Whether one linear layer computes queries, keys and values.

    Examples:
        >>> from clearhead import GPT2_CONFIGS
        >>> block = TransformerBlock({**GPT2_CONFIGS["gpt2-small"], "d_model": 12, "num_heads": 3})
        >>> block(torch.rand(1, 5, 12)).shape
        torch.Size([1, 5, 12])
    """

    @explained
    def __init__(
        self, config: GPT2Config, *, rope: Rope | None = None, packed: bool = False
    ) -> None:
        super().__init__()
        d_model, dropout = config["d_model"], config["dropout"]
        self.norm1 = nn.LayerNorm(d_model)
        self.attention = MultiHeadAttention(
            d_model,
            d_model,
            config["context_length"],
            dropout,
            config["num_heads"],
            qkv_bias=config["qkv_bias"],
            rope=rope,
            packed=packed,
        )
        self.norm2 = nn.LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "batch tokens d_model"],
        *,
        mask: Mask | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "batch tokens d_model"]:
        """Return x after this layer; `mask` and `cache` are passed to the attention."""
        x = x + self.dropout(self.attention(self.norm1(x), mask=mask, cache=cache))
        out: Tensor = x + self.feed_forward(self.norm2(x))
        return out


class Transformer(nn.Module):
    """Embedding, blocks, last norm and output head. `GPT2` adds weights files and generation.

    Args:
        config: The sizes: the keys of `clearhead.GPT2_CONFIGS`, or the book's.
        rope: Rotary positions instead of a table of learned ones.
        tied: Whether the output head shares the token embedding's matrix.
        packed: Whether one linear layer per block computes queries, keys and values.
    """

    @explained
    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        rope: Rope | None = None,
        tied: bool = True,
        packed: bool = False,
    ) -> None:
        super().__init__()
        self.config = sizes = read_config(config)
        check_dropout(sizes["dropout"])
        check_sizes(num_layers=sizes["num_layers"])
        self.rope = rope
        self.tied = tied
        self.packed = packed
        self.checkpointing = False
        positions = sizes["context_length"] if rope is None else None
        self.embedding = Embedding(sizes["vocab_size"], sizes["d_model"], positions)
        self.dropout = nn.Dropout(sizes["dropout"])
        self.blocks = nn.ModuleList(
            TransformerBlock(sizes, rope=rope, packed=packed) for _ in range(sizes["num_layers"])
        )
        self.norm = nn.LayerNorm(sizes["d_model"])
        self.out_head = (
            None if tied else nn.Linear(sizes["d_model"], sizes["vocab_size"], bias=False)
        )
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise the weights as GPT-2 does; needed after `model.to_empty(...)`.

        Weights are normal with standard deviation 0.02 and biases are 0. Every block adds to the
        residual stream twice, so the two projections that do so are scaled by 1 / √(2 × layers).
        """
        for name, module in self.named_modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, nn.Linear | nn.Embedding):
                # In three parts, so that one seed gives the same weights in both forms.
                for part in module.weight.chunk(3 if name.endswith(".qkv") else 1):
                    part.normal_(std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()
        for name, weight in self.named_parameters():
            if name.endswith(("out_proj.weight", "project.weight")):
                weight.normal_(std=0.02 / math.sqrt(2 * len(self.blocks)))

    @explained
    def forward(
        self,
        ids: Int[Tensor, "batch tokens"],
        *,
        lengths: Int[Tensor, " batch"] | Sequence[int] | None = None,
        caches: list[KVCache] | None = None,
    ) -> Float[Tensor, "batch tokens vocab_size"]:
        """Compute the logits of the next token at every position.

        Args:
            ids: Token ids. Pad shorter sequences of a batch on the *left*; the logits at padding
                are meaningless.
            lengths: The number of real tokens per sequence, cached ones included; None if there
                is no padding.
            caches: Keys and values of earlier tokens, one cache per block, from
                `model.new_caches(batch)`.
        """
        return self.head(self.hidden(ids, lengths=lengths, caches=caches))

    def hidden(
        self,
        ids: Int[Tensor, "batch tokens"],
        *,
        lengths: Int[Tensor, " batch"] | Sequence[int] | None = None,
        caches: list[KVCache] | None = None,
    ) -> Float[Tensor, "batch tokens d_model"]:
        """Compute the vectors after the last norm, which the head reads; see `forward`."""
        start, mask = self._positions(ids, lengths, caches)
        x = self.dropout(self.embedding(ids, start=start))
        for number, block in enumerate(self.blocks):
            if caches is not None:
                x = block(x, mask=mask, cache=caches[number])
            elif self.checkpointing and self.training:
                x = checkpoint(block, x, mask=mask, use_reentrant=False)
            else:
                x = block(x, mask=mask)
        out: Tensor = self.norm(x)
        return out

    def head(
        self, hidden: Float[Tensor, "batch tokens d_model"]
    ) -> Float[Tensor, "batch tokens vocab_size"]:
        """Score every token of the vocabulary by its dot product with the hidden vector."""
        return F.linear(hidden, self.head_weight)

    @property
    def head_weight(self) -> Float[Tensor, "vocab_size d_model"]:
        """The matrix of the output head: the token embedding's, unless the head is untied."""
        return self.embedding.token.weight if self.out_head is None else self.out_head.weight

    def __getattr__(self, name: str) -> Any:
        try:
            return _find_in_module(self, name)
        except AttributeError:
            raise no_attribute(self, name, "Transformer") from None

    def new_caches(
        self, batch: int, capacity: int | None = None, *, static: bool = False
    ) -> list[KVCache]:
        """Create empty caches, one per block; `capacity` defaults to context_length."""
        layers = (part for part in self.modules() if isinstance(part, MultiHeadAttention))
        return [layer.new_cache(batch, capacity, static=static) for layer in layers]

    def _positions(
        self, ids: Tensor, lengths: Tensor | Sequence[int] | None, caches: list[KVCache] | None
    ) -> tuple[int | Tensor, Mask | None]:
        """The position of each sequence's first token, and the mask that hides the padding."""
        if not isinstance(ids, Tensor):
            raise TypeError(
                f"ids: expected a tensor (batch, tokens), got {type(ids).__name__}.\n  "
                + (
                    "Encode the text: ids = torch.tensor([tokenizer.encode(text)])."
                    if isinstance(ids, str)
                    else "One text as a list of ids? Try torch.tensor([ids])."
                )
            )
        if caches is not None and len(caches) != len(self.blocks):
            raise ValueError(
                f"caches: expected one for each of the {len(self.blocks)} blocks, got "
                f"{len(caches)}.\n  Create them with model.new_caches(batch)."
            )
        if ids.ndim == 2 and ids.shape[1] == 0:
            raise ValueError(
                "ids: expected at least 1 token, got none.\n"
                "  An empty text? GPT-2 starts from its <|endoftext|> token, 50256."
            )
        past = 0 if caches is None else caches[0].positions(1)[0]
        if lengths is None:
            return past, None
        batch, tokens = ids.shape
        lengths = torch.as_tensor(lengths)
        _check_lengths(lengths, batch, past + tokens)
        lengths = lengths.to(ids.device)
        padding = past + tokens - lengths  # (batch,)
        return past - padding, Mask.padding(lengths, side="left")


def _check_lengths(lengths: Tensor, batch: int, seen: int | Tensor) -> None:
    if lengths.shape != (batch,) or lengths.is_floating_point():
        raise ShapeError(
            f"lengths: expected integers (batch={batch},), "
            f"got {lengths.dtype} {tuple(lengths.shape)}."
        )
    if lengths.device.type == "cpu" and not torch.compiler.is_compiling():
        low, high = int(lengths.min()), int(lengths.max())
        if low < 1 or high > int(seen):
            raise ValueError(
                f"lengths: expected 1 to {int(seen)} (the tokens seen so far), "
                f"got {low if low < 1 else high}."
            )
