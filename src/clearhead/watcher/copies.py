"""What a recorder keeps of a call: copies, with four axes, each mask once."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clearhead.maps import AttentionMap
from clearhead.masks import Mask

# So many bytes may be held beyond what is wanted. On the CPU fresh memory costs time: none.
_SPARE = {"cpu": 0}
# And this part of a GPU's memory: there Python's time is worth more.
_SPARE_PART_OF_GPU = 64

_ORDINARY = (Tensor, nn.Parameter)

# How many masks are remembered, to keep one copy for all layers.
_SHARED_MASKS = 8


class Arguments(NamedTuple):
    """What a call of `scaled_dot_product_attention` says of its weights."""

    q: Tensor
    k: Tensor
    attn_mask: Tensor | None
    is_causal: bool
    scale: float | None
    enable_gqa: bool

    def map(self) -> AttentionMap:
        """The weights."""
        q, k, attn_mask = self.four_axes()
        mask = Mask.causal("start") if self.is_causal else None
        bias = None
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                mask = Mask.custom(attn_mask)
            else:
                bias = attn_mask
        return AttentionMap(q, k, mask, scale=self.scale, bias=bias, detach=False)

    def four_axes(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Queries, keys and mask with the axes batch, heads, tokens, and the last one."""
        q, k, mask = self.q, self.k, self.attn_mask
        if q.ndim == k.ndim == 4 and q.shape[0] == k.shape[0] and not q.shape[1] % k.shape[1]:
            return q, k, None if mask is None else mask[(None,) * (4 - mask.ndim)]
        axes = max(q.ndim, k.ndim)
        if mask is not None:
            mask = mask[(None,) * (axes - mask.ndim)]
        if axes == 3 and not self.enable_gqa:  # (batch, tokens, head_dim): one head
            q, k = q.unsqueeze(-3), k.unsqueeze(-3)
            mask = None if mask is None else mask.unsqueeze(-3)
        q, k = (x[(None,) * (4 - x.ndim)] for x in (q, k))
        if mask is not None:
            mask = mask[(None,) * (4 - mask.ndim)]
        lead = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3])  # type: ignore[no-untyped-call]  # torch's own
        heads = max(q.shape[-3], k.shape[-3])
        if q.shape[-3] % k.shape[-3]:
            k = k.expand(*k.shape[:-3], heads, -1, -1)
        if q.shape[-3] < heads:
            q = q.expand(*q.shape[:-3], heads, -1, -1)
        q, k = (x.expand(*lead, -1, -1, -1) for x in (q, k))
        if q.ndim > 4:  # windows of a picture, for example: more axes of batch
            q, k = q.flatten(0, -4), k.flatten(0, -4)
            if mask is not None:
                alone = all(size == 1 for size in mask.shape[:-3])
                mask = (mask if alone else mask.expand(*lead, -1, -1, -1)).flatten(0, -4)
        return q, k, mask


class OurArguments(NamedTuple):
    """What a call of our own `attend` says of its weights."""

    q: Tensor
    k: Tensor
    mask: Mask | None
    scale: float | None

    def map(self) -> AttentionMap:
        """The weights."""
        return AttentionMap(self.q, self.k, self.mask, scale=self.scale, detach=False)


class Keeper:
    """Copies what a model computes: its own tensors may be overwritten, as a cache's are.

    Most never are, so a copy shares their memory until somebody writes to it (copy on write); the
    writer then gets memory of its own. Where queries, keys and values are parts of one tensor, the
    values stay in memory with them. Tensors that were written to before are copied at once: they
    are caches, whose address a CUDA graph may know. So are parameters, to which optimizers write in
    ways of their own, and tensors of inference mode, which do not tell. What is written behind
    torch's back (through numpy, or by a CUDA graph of the user's own) is not noticed; `offload`
    copies at once. A mask is often the same tensor in all layers, so the last few are remembered.

    Args:
        detach: Whether gradients end at the copies.
        offload: "cpu", or None for where the tensors are.
    """

    def __init__(self, detach: bool, offload: str | None) -> None:
        self.detach, self._offload = detach, offload
        self.may_share = offload is None
        self.spare = dict(_SPARE)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's own
            self.spare["cuda"] = _spare_of_gpu()
        self._masks: dict[object, tuple[tuple[Tensor, ...], Tensor]] = {}

    def keep(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None = None,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
        sources: tuple[Tensor, ...] | None = None,
    ) -> Arguments:
        """A call's own copy, for the arguments of `scaled_dot_product_attention`.

        `sources` are what the mask was made from, when not itself.
        """
        if query.is_nested or key.is_nested:
            raise TypeError(
                "watch: nested tensors have no common length, so they have no map.\n"
                "  Give the model a filled-up batch with a mask instead."
            )
        if torch._C._is_any_autocast_enabled():
            query, key = as_computed(query), as_computed(key)
        q, k = self.pair(query, key)
        if attn_mask is not None:
            attn_mask = self.mask(attn_mask, sources or (attn_mask,))
        return Arguments(q, k, attn_mask, is_causal, scale, enable_gqa)

    def keep_ours(
        self, q: Tensor, k: Tensor, mask: Mask | None, scale: float | None
    ) -> OurArguments:
        """The same for our own `attend`, whose mask has a name."""
        if mask is not None:
            tensors: list[Tensor] = []
            text = mask.encode(tensors)
            mask = Mask.decode(text, [self.mask(t, (t,)) for t in tensors])
        return OurArguments(*self.pair(q, k), mask, scale)

    def pair(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys; parts of one tensor, as after one projection for all, stay that."""
        base = q._base if self.detach else None
        if base is not None and base is k._base and base.dtype == q.dtype == k.dtype:
            shared = self._share(q, q.nbytes + k.nbytes)
            if shared is not None:
                return shared, shared.as_strided(k.shape, k.stride(), k.storage_offset())
        return self.copy(q), self.copy(k)

    def copy(self, x: Tensor) -> Tensor:
        """The same numbers, whatever happens to the model's tensor."""
        shared = self._share(x, x.nbytes)
        if shared is not None:
            return shared
        x = x.detach() if self.detach else x
        with torch.inference_mode(False) if x.is_inference() else nullcontext():
            if self._offload is not None:
                return x.to(self._offload, copy=True).contiguous()
            return x.clone(memory_format=torch.contiguous_format)

    def _share(self, x: Tensor, wanted: int) -> Tensor | None:
        """A copy that is made when somebody writes; None where that is not possible or not wise.

        It holds the memory that `x` is a part of: at most twice the bytes wanted of it, or a
        little more in all.
        """
        if not self.may_share or type(x) not in _ORDINARY or x.is_inference() or x._version:
            return None
        whole = x if x._base is None else x._base
        if whole.is_leaf and whole.requires_grad:  # optimizers write to it in ways of their own
            return None
        if _in_other_hands():
            return None
        beyond = x.untyped_storage().nbytes() - 2 * wanted
        spare = self.spare.get(x.device.type, 0) if beyond > 0 else 0
        if beyond > spare:
            return None
        try:
            shared = torch._lazy_clone(x.detach() if self.detach and x.requires_grad else x)
        except RuntimeError:  # memory that torch only borrows, as numpy's, cannot be shared so
            return None
        if beyond > 0:
            self.spare[x.device.type] = spare - beyond
        return shared

    def mask(self, x: Tensor, sources: tuple[Tensor, ...]) -> Tensor:
        """A copy of a mask, or the copy that was made when it came from the same tensors before."""
        x = as_computed(x) if x.is_floating_point() else x
        if _in_other_hands() or any(type(source) not in _ORDINARY for source in sources):
            return self.copy(x)
        # An axis that repeats itself is kept once; maps broadcast it.
        x = x[tuple(slice(None) if step else slice(0, 1) for step in x.stride())]
        key = (x.shape, *(_identity(source) for source in sources))
        known = self._masks.pop(key, None)
        # Tensors of inference mode do not say whether they were changed in place.
        checked = any(source.is_inference() for source in sources)
        if known is None or (checked and not torch.equal(known[1], x.to(known[1].device))):
            known = (sources, self.copy(x))  # the sources too: their addresses stay taken
        self._masks[key] = known
        while len(self._masks) > _SHARED_MASKS:
            self._masks.pop(next(iter(self._masks)))
        return known[1]

    def forget(self) -> None:
        """Let go of the model's own tensors."""
        self._masks.clear()


@cache
def _spare_of_gpu() -> int:
    devices = range(torch.cuda.device_count())
    smallest = min(torch.cuda.get_device_properties(i).total_memory for i in devices)
    return int(smallest) // _SPARE_PART_OF_GPU


def _in_other_hands() -> bool:
    """Whether memory is not simply memory now: inside torch.func, or traced."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
    )


def address(x: Tensor) -> int:
    """Where the memory begins that `x` is a part of. `data_ptr()` would count as a write."""
    # torch's stubs lack it.
    found: int = torch._C._data_address(x)  # type: ignore[attr-defined]
    return found


def _identity(x: Tensor) -> object:
    version = -1 if x.is_inference() else x._version
    return (
        address(x),
        x.storage_offset(),
        x.shape,
        x.stride(),
        x.dtype,
        x.device,
        version,
    )


def as_computed(x: Tensor) -> Tensor:
    """In the dtype that autocast gives to attention, which happens out of our sight."""
    kind = x.device.type
    if x.dtype != torch.float64 and torch.is_autocast_enabled(kind):
        return x.to(torch.get_autocast_dtype(kind))
    return x
