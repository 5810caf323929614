"""Snapshots: what is kept of an attention call until its map is read.

References where that is safe, copies where memory is reused:

    tensors of inference mode    they have no version counter
    parameters                   optimizers write to them
    tensors written in place     such as a cache of fixed size: it will be written to again
    a replaced `forward`         may replay a CUDA graph, which reuses its memory
    small parts of a tensor      a reference would hold all of it

A later write through PyTorch is noticed by the version counter when the map is read. A write that
PyTorch does not count (numpy, a CUDA graph, a kernel of one's own) is not: use `copy=True`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from clearhead import torch_internals
from clearhead.maps import AttentionMap
from clearhead.masks import Mask
from clearhead.validation import is_wrapped

T = TypeVar("T")

_TENSORS = ("q", "k", "v", "visible", "bias", "sink", "blocked")
_ORDINARY = (Tensor, nn.Parameter)
_LARGEST_WHOLE = 4  # a part is copied if the whole is more than this many times as large
_MOST_FLEX_CELLS = 2**28  # a mask function is evaluated into a bool matrix of up to this size


class CannotShow(RuntimeError):
    """A call was recorded, but its map cannot be computed exactly."""


@dataclass(slots=True)
class Inputs:
    """What the weights of a call are computed from.

        weights = softmax(cap(q · k scale) + bias), hidden where `mask` or `visible` says so

    Attributes:
        q: The queries (batch, heads, queries, head_dim).
        k: The keys (batch, kv_heads, keys, head_dim).
        v: The values (batch, kv_heads, keys, value_dim).
        mask: Causality and windows.
        visible: Who may attend to whom, bool, broadcastable to (batch, heads, queries, keys).
        bias: Added to the scores.
        floor: Whether hidden scores are the most negative number, as in Hugging Face's masks with a
            position bias, rather than -inf. A row in which all keys are hidden is then uniform.
        flex: The BlockMask of flex attention; in a snapshot, a FlexMask.
        scale: The factor on the scores; 1 / √head_dim by default.
        cap: Scores become cap · tanh(score / cap).
        sink: A score per head to which attention goes, but no value.
        blocked: Edges that a knockout removed.
        cannot_show: Why no map can be computed.
    """

    q: Tensor
    k: Tensor
    v: Tensor | None = None
    mask: Mask | None = None
    visible: Tensor | None = None
    bias: Tensor | None = None
    floor: bool = False
    flex: Any = None
    scale: float | None = None
    cap: float | None = None
    sink: Tensor | None = None
    blocked: Tensor | None = None
    cannot_show: str = ""

    def map(self) -> AttentionMap:
        """The weights."""
        if self.cannot_show:
            raise CannotShow(self.cannot_show)
        mask, bias = self.mask, self.bias
        if self.floor and self.visible is not None and bias is not None:
            bias = torch.where(self.visible, bias, torch.finfo(bias.dtype).min)
        elif self.visible is not None:
            mask = _both(mask, self.visible)
        if (flex := self.flex) is not None:
            if not isinstance(flex, FlexMask):
                flex = FlexMask(flex, self.q.shape[2], self.k.shape[2], self.q.device)
            mask = _both(mask, flex.visible)
        if self.blocked is not None:
            mask = _both(mask, ~self.blocked)
        return AttentionMap(
            *(self.q, self.k, mask),
            scale=self.scale,
            bias=bias,
            detach=False,
            cap=self.cap,
            sink=self.sink,
            values=self.v,
        )


def _both(mask: Mask | None, visible: Tensor) -> Mask:
    custom = Mask.custom(visible[(None,) * (4 - visible.ndim)])
    return custom if mask is None else mask & custom


class Snapshot:
    """The inputs of a call, and the version of each of its tensors."""

    __slots__ = ("_inputs", "_versions", "gradients", "output", "output_version")

    def __init__(self, inputs: Inputs, versions: list[tuple[Tensor, int]]) -> None:
        self._inputs, self._versions = inputs, versions
        # The gradient of the context vectors, after backward(); None without `grad=True`.
        self.gradients: list[Tensor] | None = None
        self.output: Tensor | None = None  # the weight of the output projection
        self.output_version: int | None = None

    def map(self) -> AttentionMap:
        """The weights. They need gradients wherever the model's tensors did."""
        with torch.inference_mode(False), torch.enable_grad():
            return self._inputs.map()

    def check(self) -> None:
        """Raise if a tensor was overwritten since."""
        if any(torch_internals.version(t) != version for t, version in self._versions):
            raise CannotShow(
                "The model overwrote the queries, the keys or the mask of this call after it ran, "
                "so its weights are lost.\n"
                "  Copy them while the model runs: watch(model, copy=True)."
            )


class Keeper:
    """Takes snapshots.

    Args:
        detach: Whether gradients end at the snapshots.
        offload: "cpu", or None for where the tensors are.
        copy: Copy everything.
        values: Whether to keep the values too.
    """

    def __init__(self, detach: bool, offload: str | None, copy: bool, values: bool) -> None:
        self.detach, self.copy, self.values = detach, copy, values
        self._offload = offload
        # Layers often share a mask. The source is held too, so that its id stays taken.
        self._shared: dict[object, tuple[object, Any]] = {}

    def keep(self, inputs: Inputs, blocked: Tensor | None = None) -> Snapshot:
        """A snapshot of a call, which takes over its inputs.

        Args:
            inputs: What the weights are computed from.
            blocked: The edges that a knockout removed.
        """
        if inputs.q.is_nested or inputs.k.is_nested:
            raise TypeError(
                "watch: nested tensors have no common length, so they have no map.\n"
                "  Give the model a padded batch with a mask instead."
            )
        if is_wrapped(inputs.q) or is_wrapped(inputs.k):
            inputs.cannot_show = "This call ran inside torch.func, whose tensors cannot be kept."
            return Snapshot(inputs, [])
        if blocked is not None:
            inputs.blocked = blocked[..., : inputs.k.shape[2]].to(inputs.q.device)
        if not self.values:
            inputs.v = None
        versions: list[tuple[Tensor, int]] = []
        for name in _TENSORS:
            if (t := getattr(inputs, name)) is not None:
                setattr(inputs, name, self._tracked(t, versions, shared=name not in "qkv"))
        if inputs.mask is not None:
            tensors: list[Tensor] = []
            text = inputs.mask.encode(tensors)
            if tensors:
                held = [self._tracked(t, versions, shared=True) for t in tensors]
                inputs.mask = Mask.decode(text, held)
        if inputs.flex is not None:
            size = (inputs.q.shape[2], inputs.k.shape[2])
            device = torch.device(self._offload or inputs.q.device)
            make = partial(FlexMask, inputs.flex, *size, device)
            inputs.flex = self._once((id(inputs.flex), size), inputs.flex, make)
        return Snapshot(inputs, versions)

    def _tracked(self, t: Tensor, versions: list[tuple[Tensor, int]], *, shared: bool) -> Tensor:
        """A reference or a copy, noted with its version."""
        kept = self._keep(t, shared=shared)
        if (version := torch_internals.version(kept)) is not None:
            versions.append((kept, version))
        return kept

    def forget(self) -> None:
        """Release the model's own tensors."""
        self._shared.clear()

    def _keep(self, t: Tensor, *, shared: bool) -> Tensor:
        if t.is_floating_point():
            t = _as_computed(t)
        if not self._must_copy(t):
            return t.detach() if self.detach and t.requires_grad else t
        if not shared:
            return self._copied(t)
        # An axis that repeats itself is copied once; maps broadcast it.
        once = t[tuple(slice(None) if step else slice(0, 1) for step in t.stride())]
        version = torch_internals.version(t)
        key = (t.untyped_storage().data_ptr(), t.storage_offset(), t.shape, t.stride(), version)
        known = self._shared.get(key)
        if version is None and known is not None and not torch.equal(known[1], once.to(known[1])):
            del self._shared[key]  # without a version, only the values say whether it changed
        return self._once(key, t, lambda: self._copied(once))

    def _once(self, key: object, source: object, make: Callable[[], T]) -> T:
        if key not in self._shared:
            self._shared[key] = source, make()
        found: T = self._shared[key][1]
        return found

    def _must_copy(self, t: Tensor) -> bool:
        if self.copy or self._offload is not None or type(t) not in _ORDINARY:
            return True
        if isinstance(t, nn.Parameter) or torch_internals.version(t) != 0:
            return True
        return t.untyped_storage().nbytes() > _LARGEST_WHOLE * t.nbytes

    def _copied(self, t: Tensor) -> Tensor:
        t = t.detach() if self.detach else t
        with torch.inference_mode(False) if t.is_inference() else nullcontext():
            if self._offload is not None:
                return t.to(self._offload, copy=True).contiguous()
            return t.clone(memory_format=torch.contiguous_format)


@dataclass(frozen=True)
class FlexMask:
    """The mask function of a BlockMask, evaluated when it is first needed."""

    block_mask: Any
    queries: int
    keys: int
    device: torch.device

    @cached_property
    def visible(self) -> Tensor:
        """Who may attend to whom, bool (#batch, #heads, queries, keys)."""
        from torch.nn.attention.flex_attention import create_mask

        batch, heads = self.block_mask.shape[:2]
        if batch * heads * self.queries * self.keys > _MOST_FLEX_CELLS:
            raise CannotShow(
                f"A mask function of flex attention is evaluated as a matrix, and {batch} × {heads}"
                f" × {self.queries} × {self.keys} cells are too many.\n"
                '  Use attn_implementation="sdpa" for this length.'
            )
        mask_mod, here = self.block_mask.mask_mod, self.block_mask.kv_indices.device
        found = create_mask(mask_mod, batch, heads, self.queries, self.keys, device=str(here))
        return found.to(self.device)


def _as_computed(t: Tensor) -> Tensor:
    """In the dtype that autocast gives to attention, below the level of the call."""
    kind = t.device.type
    if t.dtype != torch.float64 and torch.is_autocast_enabled(kind):
        return t.to(torch.get_autocast_dtype(kind))
    return t
