"""Context parallelism: one sequence, too long for one device, split between the ranks.

Everything except attention works on one token at a time, so each rank computes its own tokens. In
attention, a query needs the keys and values of the other ranks. There are two methods:

    ring     PyTorch's ring attention: keys and values circulate, one block at a time
    gather   every rank gets the keys and values of all tokens; queries and weights stay split

`context_parallel(mesh)` uses the ring where PyTorch supports it, and gathers elsewhere. In causal
attention later rows have more work, so there are two ways to assign chunks of tokens to R ranks:

    balanced       rank r: chunks r and 2 R - 1 - r of 2 R      equal work on all ranks
    not balanced   rank r: chunk r of R                         contiguous rows
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import reduce
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Shard
from torch.overrides import TorchFunctionMode

from clearhead import kernels, torch_internals
from clearhead.embedding import Embedding, Rope
from clearhead.masks import Mask, as_band
from clearhead.parallel.tensor_plan import check_mesh
from clearhead.watcher.interception import uncompiled

How = Literal["auto", "ring", "gather"]

_ATTENTION = {
    F.scaled_dot_product_attention,
    torch.ops.clearhead.blocked_attention.default,
}


def context_parallel(
    mesh: DeviceMesh, *, how: How = "auto", balanced: bool = True
) -> ContextParallel:
    """Run a module with the tokens of a sequence split between the ranks.

        split = context_parallel(mesh)
        with split:
            logits = model(split.shard(ids))       # this rank's tokens
            loss(logits, split.shard(targets)).backward()
        whole = split.gather(logits)               # all tokens, in order, on every rank

    Run the backward pass inside the block. A compiled model runs uncompiled in it. A mask passed to
    a module describes the whole sequence, not this rank's part. `lengths` and caches are not
    supported, and raise.

    To record maps, use
    `with watch(model) as seen, context_parallel(mesh, how="gather", balanced=False): ...`. Each
    rank gets the rows of its own tokens.

    Args:
        mesh: A one-dimensional mesh, such as `init_device_mesh("cuda", (8,))`.
        how: "ring" uses PyTorch's ring attention, or raises an error that says why it cannot;
            "gather" uses an all-gather; "auto" uses the ring where it is supported.
        balanced: Whether each rank gets an early and a late part of the sequence. The ring needs
            it.
    """
    return ContextParallel(mesh, how, balanced)


class ContextParallel(TorchFunctionMode):
    """A block in which attention reaches the tokens of all ranks; see `context_parallel`."""

    def __init__(self, mesh: DeviceMesh, how: How = "auto", balanced: bool = True) -> None:
        super().__init__()
        check_mesh(mesh, "context_parallel")
        if how not in ("auto", "ring", "gather"):
            raise ValueError(f'how must be "auto", "ring" or "gather", got {how!r}.')
        self.mesh = mesh
        self.how = how
        self.balanced = balanced
        self._plain_sdpa = F.scaled_dot_product_attention
        self._ring = ExitStack()

    @property
    def _parts(self) -> int:
        return 2 if self.balanced else 1

    def shard(self, x: Tensor, dim: int = 1) -> Tensor:
        """Return this rank's part of a tensor that all ranks have.

        Args:
            x: A tensor such as ids (batch, tokens) or vectors (batch, tokens, d_in).
            dim: The token axis.
        """
        tokens, chunks = x.shape[dim], self._parts * self.mesh.size()
        if tokens % chunks:
            raise ValueError(
                f"{tokens} tokens cannot be split into {chunks} equal chunks ({self._parts} for "
                f"each of {self.mesh.size()} ranks).\n  Remove {tokens % chunks} tokens, or add "
                f"{chunks - tokens % chunks} of padding and leave them out of the loss."
            )
        pieces = x.chunk(chunks, dim)
        return torch.cat([pieces[n] for n in self._chunks(self.mesh.get_local_rank())], dim)

    def gather(self, x: Tensor, dim: int = 1) -> Tensor:
        """Return all tokens in order on every rank; gradients are summed over the ranks."""
        split = DTensor.from_local(x.contiguous(), self.mesh, [Shard(dim)], run_check=False)
        joined = split.full_tensor(grad_placements=[Partial()])  # in rank order
        ranks = range(self.mesh.size())
        stored = [n for rank in ranks for n in self._chunks(rank)]
        pieces = joined.chunk(len(stored), dim)
        return torch.cat([pieces[stored.index(n)] for n in range(len(stored))], dim)

    def positions(self, tokens: int) -> Tensor:
        """The positions of this rank's tokens in the whole sequence.

        Args:
            tokens: The number of tokens on this rank.
        """
        return torch.cat([torch.arange(start, stop) for start, stop in self._rows(tokens)])

    def _chunks(self, rank: int) -> list[int]:
        """The indices of a rank's chunks."""
        return [rank, 2 * self.mesh.size() - 1 - rank] if self.balanced else [rank]

    def _rows(self, tokens: int) -> list[tuple[int, int]]:
        """Start and stop of each chunk of this rank, which has `tokens` tokens."""
        if tokens % self._parts:
            raise ValueError(
                f"{tokens} tokens on this rank cannot be two equal chunks of the sequence.\n"
                "  Split the sequence with shard(), or use context_parallel(mesh, balanced=False)."
            )
        size = tokens // self._parts
        return [(n * size, (n + 1) * size) for n in self._chunks(self.mesh.get_local_rank())]

    def why_not_ring(
        self, q: Tensor, k: Tensor, mask: Mask | None = None, dropout: float = 0.0
    ) -> str | None:
        """Why PyTorch's ring attention cannot run this call; None if it can."""
        tokens = q.shape[2] * self.mesh.size()
        if q.device.type != "cuda":
            return f"PyTorch's ring attention needs CUDA, got {q.device.type}"
        if not self.balanced:
            return "PyTorch's ring attention needs balanced=True"
        if mask is None or not mask.is_start_causal(tokens, tokens):
            return "PyTorch's ring attention supports causal attention without another mask only"
        if dropout > 0:
            return "PyTorch's ring attention does not support dropout"
        if q.shape[1] != k.shape[1]:
            return "PyTorch's ring attention needs as many key heads as query heads"
        if q.dtype == torch.float64:
            return "PyTorch has no fused CUDA kernel for float64"
        return None

    def __enter__(self) -> ContextParallel:
        if self.how != "gather" and self.mesh.device_type == "cuda" and self.balanced:
            self._plain_sdpa = F.scaled_dot_product_attention
            self._ring.enter_context(_torch_ring(self.mesh))
        uncompiled.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]  # untyped in torch
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # untyped in torch
        uncompiled.__exit__(*error)
        self._ring.close()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is kernels.attend:
            return self._attend(*args, **kwargs)
        if func is Rope.rotate:
            return self._rotate(*args, **kwargs)
        if func is Embedding.forward:
            return self._embed(*args, **kwargs)
        if func in (Tensor.backward, torch.autograd.backward, torch.autograd.grad):
            return self._backward(func, args, kwargs)
        if func in _ATTENTION or func is torch_internals.cpu_flash_attention():
            raise ValueError(
                "context_parallel: attention outside the forward of a Clearhead module would see "
                "this rank's tokens only.\n"
                '  For maps, use watch(model) and context_parallel(mesh, how="gather"). For models '
                "of other libraries, use torch's own context_parallel."
            )
        return func(*args, **kwargs)

    def _backward(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run the backward pass in this mode, because it may recompute blocks of the model.

        Given gradient edges instead of tensors, PyTorch's functions do not call the mode again.
        """
        if func is Tensor.backward:
            func = torch.autograd.backward
            kwargs = {"grad_tensors": kwargs.pop("gradient", None), **kwargs}
        is_grad = func is torch.autograd.grad
        args = (*map(_edges, args[: 1 + is_grad]), *args[1 + is_grad :])
        for name in ("tensors", "outputs", "inputs"):
            if kwargs.get(name) is not None:
                kwargs = {**kwargs, name: _edges(kwargs[name])}
        super().__enter__()  # type: ignore[no-untyped-call]  # untyped in torch
        try:
            return func(*args, **kwargs)
        finally:
            super().__exit__(None, None, None)  # type: ignore[no-untyped-call]  # untyped in torch

    def _rotate(self, rope: Rope, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate by the positions in the whole sequence."""
        return rope.rotate(x, self.positions(x.shape[2]).to(x.device))

    def _embed(self, embedding: Embedding, ids: Tensor, *, start: int | Tensor = 0) -> Tensor:
        """Embed with the positions in the whole sequence."""
        if isinstance(start, Tensor) or start:
            raise ValueError(
                "context_parallel: `lengths` and caches are not supported.\n"
                "  Pass sequences of equal length, and no cache."
            )
        rows = self._rows(ids.shape[1])
        pieces = zip(ids.chunk(len(rows), 1), rows, strict=True)
        return torch.cat([embedding(piece, start=first) for piece, (first, _) in pieces], 1)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None = None, **options: Any
    ) -> Tensor:
        """Attention of this rank's queries to the keys of all ranks."""
        if q.shape[2] != k.shape[2]:
            raise ValueError(
                f"context_parallel: {q.shape[2]} queries but {k.shape[2]} keys on this rank.\n"
                "  Only self-attention without a cache is supported."
            )
        why_not = self.why_not_ring(q, k, mask, options["dropout"])
        if self.how == "ring" and why_not is not None:
            raise ValueError(f'{why_not}.\n  Use context_parallel(mesh, how="gather").')
        if self.how != "gather" and why_not is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=options["scale"])
        rows = self._rows(q.shape[2])
        keys, values = self.gather(k, 2), self.gather(v, 2)
        options = {**options, "growing": True}  # each piece gets the keys up to its last query
        with _restored(self._plain_sdpa):
            return torch.cat(
                [
                    kernels.attend(piece, *_visible(keys, values, mask, first, last), **options)
                    for piece, (first, last) in zip(q.chunk(len(rows), 2), rows, strict=True)
                ],
                2,
            )


def _edges(tensors: Any) -> tuple[Any, ...]:
    """The nodes of autograd's graph that tensors come from."""
    several = (tensors,) if isinstance(tensors, Tensor) else tensors
    return tuple(get_gradient_edge(t) if isinstance(t, Tensor) else t for t in several)


def _visible(
    keys: Tensor, values: Tensor, mask: Mask | None, first: int, last: int
) -> tuple[Tensor, Tensor, Mask | None]:
    """Keys, values and mask for rows first to last of the whole sequence."""
    if mask is None:
        return keys, values, None
    tokens = keys.shape[2]
    band = as_band(mask, tokens, tokens, keys.device)
    if band is None or (band["window"] is not None and not band["causal"]):
        part = mask.tile(slice(first, last), slice(0, tokens), tokens, tokens, keys.device)
        return keys, values, None if part is None else Mask.custom(part)
    # Without the keys after the last row, causality is aligned to the end again.
    end = last if band["causal"] else tokens
    parts = [Mask.causal()] if band["causal"] else []
    parts += [Mask.window(band["window"])] if band["window"] is not None else []
    parts += [Mask.padding(band["key_valid"][:, :end])] if band["key_valid"] is not None else []
    combined = reduce(operator.and_, parts) if parts else None
    return keys[:, :, :end], values[:, :, :end], combined


@contextmanager
def _torch_ring(mesh: DeviceMesh) -> Iterator[None]:
    """PyTorch's context manager, in which `scaled_dot_product_attention` is ring attention."""
    from torch.distributed.tensor.experimental import context_parallel as torch_context_parallel

    # PyTorch requires a buffer to shard; the tokens themselves are sharded by shard().
    buffer = torch.zeros(1, 2 * mesh.size(), device=mesh.device_type)
    ring = torch_context_parallel(
        mesh, buffers=[buffer], buffer_seq_dims=[1], no_restore_buffers={buffer}
    )
    with torch_internals.ring_rotation("alltoall"), ring:
        yield


@contextmanager
def _restored(function: Callable[..., Tensor]) -> Iterator[None]:
    """Restore PyTorch's own function inside a block that replaces it with the ring."""
    replaced = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = function
    try:
        yield
    finally:
        F.scaled_dot_product_attention = replaced
