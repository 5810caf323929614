"""KVCache: the keys and values of earlier tokens, for decoding token by token."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.foreign_names import explained
from clearhead.validation import ShapeError, check_sizes, dtype_name, is_readable


class KVCache:
    """The keys and values of the tokens seen so far, in tensors of their final size.

    Cached tokens are constants: gradients reach the tokens of the current call only. To train on a
    text, pass all of it without a cache. Decode under `torch.no_grad()`, otherwise each call copies
    the cached tensors.

    Args:
        batch: The number of sequences.
        kv_heads: The number of key heads.
        capacity: The maximum number of tokens.
        head_dim: The width of a head.
        device: The device of the tensors.
        dtype: The dtype of the tensors.
        static: Attend over the whole capacity with a mask, so that no shape ever changes and a
            CUDA graph can be captured. A mask that is a matrix (`Mask.custom`, `Mask.padding` of
            bools) must then be as wide as the capacity.

    Examples:
        >>> from clearhead import MultiHeadAttention
        >>> attention = MultiHeadAttention(8, 8, 16, 0.0, num_heads=2).eval()
        >>> x = torch.rand(1, 5, 8)
        >>> cache = attention.new_cache(batch=1)
        >>> with torch.no_grad():
        ...     parts = [attention(x[:, :4], cache=cache), attention(x[:, 4:], cache=cache)]
        ...     torch.allclose(torch.cat(parts, 1), attention(x), atol=1e-6)
        True
        >>> cache
        KVCache(5 of 16 tokens, batch=1, kv_heads=2, head_dim=4)
    """

    @explained
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
        # The length as a Python integer, readable without synchronising. It does not count tokens
        # that a captured graph adds to a static cache.
        self._filled = 0

    @property
    def capacity(self) -> int:
        """The maximum number of tokens."""
        return self.keys.shape[2]

    def __len__(self) -> int:
        return int(self.length)

    def __repr__(self) -> str:
        batch, kv_heads, _, head_dim = self.keys.shape
        return (
            f"KVCache({len(self)} of {self.capacity} tokens, batch={batch}, kv_heads={kv_heads}, "
            f"head_dim={head_dim})"
        )

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
        """Store the keys and values of new tokens; return those of all tokens.

        A static cache returns its whole capacity. The result is the cache's own memory, or a copy
        while gradients are recorded.
        """
        self._check(keys)
        tokens = keys.shape[2]
        where = self.positions(tokens) if self.static else None
        everything = self._store(self.keys, keys, where), self._store(self.values, values, where)
        if self.static:
            self.length.add_(tokens)
        else:
            self.length.fill_(self._filled + tokens)
        if not self.static or not _is_recorded(self.keys):
            self._filled += tokens
        return everything

    def reset(self) -> None:
        """Remove all tokens; the memory stays allocated."""
        self.length.zero_()
        self._filled = 0

    def _store(self, memory: Tensor, new: Tensor, where: Tensor | None) -> Tensor:
        """Write the new part and return all of it; `where` are indices in a static cache."""
        keeps_graph = torch.is_grad_enabled()
        numbers = new.detach() if new.requires_grad else new
        if where is not None:
            memory.index_copy_(2, where, numbers.to(memory.dtype))
            memory = memory.to(new.dtype)  # the same memory, except under autocast
            return memory.index_copy(2, where, new) if keeps_graph else memory
        start, end = self._filled, self._filled + new.shape[2]
        memory[:, :, start:end] = numbers
        memory = memory[:, :, : start if keeps_graph else end].to(new.dtype)
        return torch.cat([memory, new], 2) if keeps_graph else memory

    def _known(self) -> int:
        """The number of tokens; a lower bound if reading a static cache would synchronise."""
        if self.static and is_readable(self.length):
            return int(self.length)
        return 0 if self.static and torch.compiler.is_compiling() else self._filled

    def _keys_after(self, tokens: int) -> int:
        """The number of keys that `append` will return."""
        return self.capacity if self.static else self._filled + tokens

    def _check(self, keys: Tensor) -> None:
        mine, tokens = self.keys, keys.shape[2]
        if keys.shape[:2] + keys.shape[3:] != mine.shape[:2] + mine.shape[3:]:
            sizes = zip(("batch", "kv_heads", "", "head_dim"), mine.shape, keys.shape, strict=True)
            wrong = [(name, own, got) for name, own, got in sizes if name and own != got]
            expected = ", ".join(f"{name}={own}" for name, own, _ in wrong)
            raise ShapeError(
                f"cache: expected {expected}, "
                f"got {', '.join(f'{name}={got}' for name, _, got in wrong)}.\n"
                "  A cache belongs to one module and one batch size: module.new_cache(batch)."
            )
        autocast = torch.is_autocast_enabled(keys.device.type)
        if keys.device != mine.device or (keys.dtype != mine.dtype and not autocast):
            raise ShapeError(
                f"cache: expected {dtype_name(mine)} on {mine.device}, "
                f"got {dtype_name(keys)} on {keys.device}.\n"
                "  Create it after module.to(...): module.new_cache(batch)."
            )
        known = self._known()
        if known + tokens > self.capacity:
            raise ShapeError(
                f"cache: {known} cached + {tokens} new tokens, but its capacity is "
                f"{self.capacity}.\n  Create a larger one, "
                f"module.new_cache(batch, capacity={known + tokens}), or start again with "
                "cache.reset()."
            )


def _is_recorded(x: Tensor) -> bool:
    """Whether calls are being recorded into a graph that is executed later."""
    if torch.compiler.is_compiling():
        return True
    return x.is_cuda and torch.cuda.is_current_stream_capturing()
