"""KVCache: what decoding token by token remembers of the tokens before."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.shapes import ShapeError, check_length, check_sizes, describe


class KVCache:
    """The keys and values of the tokens seen so far, in tensors of their final size.

    Args:
        batch: How many sequences.
        kv_heads: How many key heads.
        capacity: How many tokens fit.
        head_dim: The width of a head.
        device: Where the tensors live.
        dtype: Their dtype.
        static: Attend over the whole capacity with a mask, so that no shape ever changes and a
            CUDA graph can be captured. A user's mask must then be as wide as the capacity.
    """

    def __init__(
        self,
        batch: int,
        kv_heads: int,
        capacity: int,
        head_dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        static: bool = False,
    ) -> None:
        check_sizes(batch=batch, kv_heads=kv_heads, capacity=capacity, head_dim=head_dim)
        shape = (batch, kv_heads, capacity, head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.length = torch.zeros((), device=device, dtype=torch.int64)
        self.static = static
        self._filled = 0  # the same number where Python can see it without a synchronisation

    @property
    def capacity(self) -> int:
        """How many tokens fit."""
        return self.keys.shape[2]

    def __len__(self) -> int:
        return int(self.length)

    def __repr__(self) -> str:
        return f"KVCache({len(self)} of {self.capacity} tokens, keys {describe(self.keys)})"

    def positions(self, tokens: int) -> Int[Tensor, " tokens"]:
        """The positions of the next `tokens` tokens."""
        if self.static:
            return self.length + torch.arange(tokens, device=self.length.device)
        return torch.arange(self._filled, self._filled + tokens, device=self.length.device)

    def append(
        self,
        keys: Float[Tensor, "batch kv_heads tokens head_dim"],
        values: Float[Tensor, "batch kv_heads tokens head_dim"],
    ) -> tuple[Float[Tensor, "batch kv_heads seen head_dim"], Float[Tensor, "..."]]:
        """Store keys and values of new tokens; give back all there are (static: all that fit)."""
        tokens = keys.shape[2]
        if keys.shape[:2] + keys.shape[3:] != self.keys.shape[:2] + self.keys.shape[3:]:
            batch, kv_heads, _, head_dim = self.keys.shape
            raise ShapeError(
                f"cache: made for keys (batch={batch}, kv_heads={kv_heads}, tokens, "
                f"head_dim={head_dim}), got {describe(keys)}.\n"
                "  One cache serves one module and one batch: module.new_cache(batch)."
            )
        if self.static:
            where = self.positions(tokens)
            self.keys.index_copy_(2, where, keys)
            self.values.index_copy_(2, where, values)
            self.length.add_(tokens)
            return self.keys, self.values
        check_length(tokens, self.capacity, before=self._filled)
        end = self._filled + tokens
        self.keys[:, :, self._filled : end] = keys
        self.values[:, :, self._filled : end] = values
        self.length.fill_(end)
        self._filled = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def reset(self) -> None:
        """Forget all tokens; the memory stays."""
        self.length.zero_()
        self._filled = 0
