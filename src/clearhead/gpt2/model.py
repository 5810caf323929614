"""GPT-2: token ids -> logits, from our own embedding and attention.

    x = token vector + position vector
    x = x + attention(norm1(x))          a block, num_layers times
    x = x + feed_forward(norm2(x))
    logits = norm(x) @ token vectors     the head is tied: the same matrix as at the start

Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019). Each norm
stands before what it serves ("pre-norm"), so that the sum x runs straight from bottom to top.
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
from clearhead.gpt2 import generation as writing
from clearhead.gpt2 import weights
from clearhead.masks import Mask
from clearhead.validation import ShapeError, check_dropout, check_sizes


class FeedForward(nn.Module):
    """Each token by itself: four times wider, GELU, and back.

    Args:
        d_model: The width of the vectors.
        dropout: The probability of dropping a number of the result while training.
    """

    def __init__(self, d_model: int, dropout: float) -> None:
        super().__init__()
        self.expand = nn.Linear(d_model, 4 * d_model)
        self.project = nn.Linear(4 * d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "batch tokens d_model"]
    ) -> Float[Tensor, "batch tokens d_model"]:
        """The new vectors, to be added to the old ones."""
        # GPT-2 was trained with GELU's approximation by tanh; the exact one differs by up to 5e-4.
        wide = F.gelu(self.expand(x), approximate="tanh")
        out: Tensor = self.dropout(self.project(wide))
        return out


class TransformerBlock(nn.Module):
    """One layer: attention, then feed-forward; each reads a normed copy and adds to x.

    Args:
        config: The sizes of the model.
        rope: Rotary positions, or None.
    """

    def __init__(self, config: GPT2Config, *, rope: Rope | None = None) -> None:
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
        """The vectors after this layer; `mask` and `cache` are the attention's."""
        x = x + self.dropout(self.attention(self.norm1(x), mask=mask, cache=cache))
        out: Tensor = x + self.feed_forward(self.norm2(x))
        return out


class GPT2(nn.Module):
    """The whole model: token ids -> logits of the next token, at every place.

    Args:
        config: The sizes: the keys of `clearhead.GPT2_CONFIGS`, or the book's.
        rope: Rotary positions instead of GPT-2's learned ones. There is no position table then.
        tied: Whether the head is the matrix of the token vectors, as in GPT-2. The book trains a
            head of its own: False.

    Attributes:
        config: The sizes, under our own names.
        checkpointing: Whether training keeps only the input of each block and computes the rest
            again on the way back: less memory, about a third more time.

    >>> tiny = {"vocab_size": 97, "context_length": 16, "d_model": 12, "num_heads": 3,
    ...         "num_layers": 2, "dropout": 0.0, "qkv_bias": True}
    >>> GPT2(tiny)(torch.tensor([[3, 1, 4, 1, 5]])).shape
    torch.Size([1, 5, 97])
    """

    from_pretrained = classmethod(weights.from_pretrained)
    save_pretrained = weights.save_pretrained
    generate = writing.generate
    stream = writing.stream

    def __init__(
        self, config: Mapping[str, Any], *, rope: Rope | None = None, tied: bool = True
    ) -> None:
        super().__init__()
        self.config = sizes = read_config(config)
        check_dropout(sizes["dropout"])
        check_sizes(num_layers=sizes["num_layers"])
        self.rope = rope
        self.tied = tied
        self.checkpointing = False
        places = sizes["context_length"] if rope is None else None
        self.embedding = Embedding(sizes["vocab_size"], sizes["d_model"], places)
        self.dropout = nn.Dropout(sizes["dropout"])
        self.blocks = nn.ModuleList(
            TransformerBlock(sizes, rope=rope) for _ in range(sizes["num_layers"])
        )
        self.norm = nn.LayerNorm(sizes["d_model"])
        self.out_head = (
            None if tied else nn.Linear(sizes["d_model"], sizes["vocab_size"], bias=False)
        )
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """GPT-2's random start; also for a model built on "meta", after `model.to_empty(...)`.

        Weights are normal with deviation 0.02, biases 0. Every block adds to x twice, so that the
        projections which do so start smaller, by 1 / √(2 × layers).
        """
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, nn.Linear | nn.Embedding):
                module.weight.normal_(std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()
        for name, weight in self.named_parameters():
            if name.endswith(("out_proj.weight", "project.weight")):
                weight.normal_(std=0.02 / math.sqrt(2 * len(self.blocks)))

    def forward(
        self,
        ids: Int[Tensor, "batch tokens"],
        *,
        lengths: Int[Tensor, " batch"] | Sequence[int] | None = None,
        caches: list[KVCache] | None = None,
    ) -> Float[Tensor, "batch tokens vocab_size"]:
        """The logits of the next token, at every place.

        Args:
            ids: Token ids. Shorter texts of a batch are filled up on the *left*; the logits at
                the filling mean nothing.
            lengths: How many real tokens each text has, those in the caches included; None = no
                filling.
            caches: Keys and values of earlier tokens, one a block: `model.new_caches(batch)`.
        """
        return self.head(self.hidden(ids, lengths=lengths, caches=caches))

    def hidden(
        self,
        ids: Int[Tensor, "batch tokens"],
        *,
        lengths: Int[Tensor, " batch"] | Sequence[int] | None = None,
        caches: list[KVCache] | None = None,
    ) -> Float[Tensor, "batch tokens d_model"]:
        """The vectors after the last norm: what the head reads. Arguments as for `forward`."""
        start, mask = self._place(ids, lengths, caches)
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
        """How well each token of the vocabulary fits, by its product with the hidden vector."""
        weight = self.embedding.token.weight if self.out_head is None else self.out_head.weight
        return F.linear(hidden, weight)

    def new_caches(
        self, batch: int, capacity: int | None = None, *, static: bool = False
    ) -> list[KVCache]:
        """Empty caches, one a block; `capacity` is context_length by default."""
        layers = (part for part in self.modules() if isinstance(part, MultiHeadAttention))
        return [layer.new_cache(batch, capacity, static=static) for layer in layers]

    def _place(
        self, ids: Tensor, lengths: Tensor | Sequence[int] | None, caches: list[KVCache] | None
    ) -> tuple[int | Tensor, Mask | None]:
        """Where the first token of each text stands, and which keys are filling."""
        if caches is not None and len(caches) != len(self.blocks):
            raise ValueError(
                f"caches: expected one for each of the {len(self.blocks)} blocks, got "
                f"{len(caches)}.\n  Make them with model.new_caches(batch)."
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
        lengths = self._check_lengths(torch.as_tensor(lengths), batch, past + tokens)
        lengths = lengths.to(ids.device)
        filling = past + tokens - lengths  # (batch,)
        return past - filling, Mask.padding(lengths, side="left")

    def _check_lengths(self, lengths: Tensor, batch: int, seen: int | Tensor) -> Tensor:
        if lengths.shape != (batch,) or lengths.is_floating_point():
            raise ShapeError(
                f"lengths: expected whole numbers (batch={batch},), "
                f"got {lengths.dtype} {tuple(lengths.shape)}."
            )
        if lengths.device.type == "cpu" and not torch.compiler.is_compiling():
            low, high = int(lengths.min()), int(lengths.max())
            if low < 1 or high > int(seen):
                raise ValueError(
                    f"lengths: expected 1 to {int(seen)} (the tokens seen so far), "
                    f"got {low if low < 1 else high}."
                )
        return lengths
