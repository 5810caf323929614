"""Token ids -> vectors: token and position embeddings, and rotary positions.

GPT-2 adds a learned position vector to each token's vector, once, at the start. Rotary embedding
(Su et al., "RoFormer", 2021) instead rotates queries and keys in every layer: dimensions i and
i + head_dim / 2 form a plane, which is rotated by the angle

    position * base ** (-2 i / head_dim)

so that the dot product of a query and a key depends on their distance only, not on their positions.
Dimensions are paired as in Llama and Hugging Face; the paper pairs neighbours (2i, 2i + 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from clearhead.foreign_names import explained
from clearhead.validation import ShapeError


class Embedding(nn.Module):
    """Turn token ids into vectors: token vector plus position vector.

    Args:
        vocab_size: The number of different ids.
        d_model: The width of the vectors.
        context_length: The number of positions; None for a model that encodes positions in another
            way, such as `Rope`. No position vector is added then.

    Attributes:
        token: `nn.Embedding`, one vector per id.
        position: `nn.Embedding`, one vector per position; None without context_length.

    Raises:
        ValueError: A size is not positive.

    Examples:
        >>> embedding = Embedding(vocab_size=50257, d_model=16, context_length=1024)
        >>> embedding(torch.tensor([[15496, 11, 995]])).shape
        torch.Size([1, 3, 16])
    """

    @explained
    def __init__(self, vocab_size: int, d_model: int, context_length: int | None) -> None:
        super().__init__()
        sizes = {"vocab_size": vocab_size, "d_model": d_model, "context_length": context_length}
        for name, value in sizes.items():
            if value is not None and value <= 0:
                raise ValueError(f"{name}: expected 1 or more, got {value}.")
        self.vocab_size = vocab_size
        self.d_model = d_model
        self.context_length = context_length
        self.token = nn.Embedding(vocab_size, d_model)
        self.position = None if context_length is None else nn.Embedding(context_length, d_model)

    def forward(
        self,
        ids: Int[Tensor, "batch tokens"],
        *,
        start: int | Int[Tensor, ""] | Int[Tensor, "batch"] = 0,
    ) -> Float[Tensor, "batch tokens d_model"]:
        """Look up the vectors.

        Values on a GPU are not checked, because that would synchronise with the GPU.

        Args:
            ids: Token ids.
            start: The position of the first token: the number of cached tokens, for all sequences
                or per sequence. A negative number means that the sequence begins with that many
                padding tokens, which all get the vector of position 0.

        Raises:
            ShapeError: ids is not (batch, tokens) of an integer dtype, or start is neither one
                number nor (batch,).
            ValueError: An id is out of range, or the sequence is too long.
        """
        if has_torch_function((ids,)):  # context_parallel adds its positions
            return handle_torch_function(Embedding.forward, (ids,), self, ids, start=start)
        self._check(ids, start)
        token: Tensor = self.token(ids)
        if self.position is None:
            return token
        steps = torch.arange(ids.shape[1], device=ids.device)
        if isinstance(start, Tensor):
            start = start.to(ids.device).unsqueeze(-1)  # (..,) -> (.., 1)
        positions = start + steps  # (tokens,) or (batch, tokens)
        if isinstance(start, Tensor) and start.ndim == 2:
            positions = positions.clamp(min=0)
        position: Tensor = self.position(positions)
        return token + position

    def _check(self, ids: Tensor, start: int | Tensor) -> None:
        if ids.dtype not in (torch.int64, torch.int32):
            raise ShapeError(
                f"ids: expected token ids of dtype torch.int64 or torch.int32, got {ids.dtype}.\n"
                + (
                    "  Are these already vectors? Then skip the embedding. "
                    "Are these ids converted to floats? Try ids.long()."
                    if ids.is_floating_point()
                    else "  Try ids.long()."
                )
            )
        if ids.ndim != 2:
            hint = (
                "\n  One sentence without a batch axis? Try ids.unsqueeze(0)."
                if ids.ndim == 1
                else ""
            )
            raise ShapeError(f"ids: expected (batch, tokens), got {tuple(ids.shape)}.{hint}")
        batch, tokens = ids.shape
        if isinstance(start, Tensor) and start.shape not in ((), (batch,)):
            raise ShapeError(
                f"start: expected one number or (batch={batch},), got {tuple(start.shape)}."
            )
        if self.context_length is not None and tokens > self.context_length:
            raise ValueError(
                f"ids: expected at most context_length ({self.context_length}) tokens, "
                f"got {tokens}.\n"
                "  The model has no vectors for later positions. "
                f"To keep the last tokens, try ids[:, -{self.context_length}:]."
            )
        if isinstance(start, int):
            self._check_positions(start, start, tokens)
        # Reading values synchronises with a GPU, and breaks a compiled graph.
        if torch.compiler.is_compiling() or ids.numel() == 0:
            return
        if isinstance(start, Tensor) and start.device.type == "cpu":
            first = 0 if start.ndim == 1 else int(start)
            self._check_positions(first, int(start.max()), tokens)
        if ids.device.type == "cpu":
            low, high = (int(end) for end in torch.aminmax(ids))
            if low < 0 or high >= self.vocab_size:
                raise ValueError(
                    f"ids: expected 0 to vocab_size - 1 = {self.vocab_size - 1}, "
                    f"got {low if low < 0 else high}.\n"
                    "  Does the tokenizer belong to this model? Compare its vocab_size."
                )

    def _check_positions(self, first: int, last: int, tokens: int) -> None:
        if first < 0:
            raise ValueError(
                f"start: expected 0 or more, got {first}.\n  It is the number of cached tokens."
            )
        if self.context_length is not None and last + tokens > self.context_length:
            raise ValueError(
                f"start + tokens ({last} + {tokens}) is more than context_length "
                f"({self.context_length}).\n"
                "  The model has no vectors for later positions. "
                "Stop here, or start again with the last tokens and an empty cache."
            )


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding. It has no parameters.

    Args:
        base: The larger it is, the slower the slowest plane rotates; 10000 in the paper and in
            Llama 2, 500000 in Llama 3.

    Raises:
        ValueError: base is not a positive number.

    Examples:
        >>> Rope().rotate(torch.ones(1, 1, 2, 2), torch.tensor([0, 1]))
        tensor([[[[ 1.0000,  1.0000],
                  [-0.3012,  1.3818]]]])
    """

    base: float

    @explained
    def __init__(self, base: float = 10000.0) -> None:
        if not 0 < base < math.inf:
            raise ValueError(
                f"base: expected a positive number, got {base}.\n"
                "  It is 10000.0 in most models, and 500000.0 in Llama 3."
            )
        object.__setattr__(self, "base", base)  # the dataclass is frozen

    def rotate(
        self,
        x: Float[Tensor, "batch heads tokens head_dim"],
        positions: Int[Tensor, "tokens"] | Int[Tensor, "batch tokens"],
    ) -> Float[Tensor, "batch heads tokens head_dim"]:
        """Rotate each vector by the angles of its position.

        Angles and products are computed in float32 (float64 for float64 input), even for half
        precision; only the result is rounded to the dtype of x.

        Args:
            x: Queries or keys, split into heads.
            positions: The position of each token, for all sequences or per sequence.

        Returns:
            The rotated vectors, with unchanged lengths, in the dtype of x.
        """
        if has_torch_function((x, positions)):  # context_parallel adds its positions
            return handle_torch_function(Rope.rotate, (x, positions), self, x, positions)
        if x.ndim != 4:
            raise ShapeError(
                f"x: expected (batch, heads, tokens, head_dim), got {tuple(x.shape)}.\n"
                "  Rotate queries and keys after they are split into heads."
            )
        batch, _, tokens, head_dim = x.shape
        if positions.shape not in ((tokens,), (batch, tokens)):
            raise ShapeError(
                f"positions: expected (tokens={tokens},) or (batch={batch}, tokens={tokens}), "
                f"got {tuple(positions.shape)}.\n"
                f"  Tokens are the third axis of x {tuple(x.shape)}: "
                "was it transposed to (batch, heads, tokens, head_dim)?"
            )
        if head_dim % 2 != 0:
            raise ValueError(
                f"head_dim: expected an even number, got {head_dim}.\n"
                "  Rotary embedding rotates pairs of dimensions. "
                "Choose num_heads and d_out so that d_out / num_heads is even."
            )
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        exponents = torch.arange(0, head_dim, 2, device=x.device, dtype=dtype) / head_dim
        angles = positions.to(x.device, dtype).unsqueeze(-1) / self.base**exponents
        angles = angles.unsqueeze(-3)  # (.., tokens, head_dim / 2) -> (.., 1, tokens, head_dim / 2)
        cos, sin = angles.cos(), angles.sin()
        first, second = x.to(dtype).chunk(2, dim=-1)
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        return rotated.to(x.dtype)
