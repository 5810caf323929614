"""Hugging Face models: attention calls that go through `AttentionInterface`.

Every modelling file fetches its attention function from the mapping `ALL_ATTENTION_FUNCTIONS`, most
of them with its method `get_interface`, to which they pass their own eager function. While a block
is open, the entries of the mapping and that method are wrapped; the first block wraps them and the
last one restores them. A wrapper calls the original where no handler listens.

What the arguments mean depends on the implementation (checked against transformers 5.23):

    eager     a float mask is added to the scores; no mask means no mask, whatever `is_causal` says
    sdpa      a bool mask, True = may attend; no mask means causal if `is_causal`, from the start
    flex      a BlockMask, or a float mask that is added; no mask means no mask
    flash     a (batch, keys) mask of real tokens, and `is_causal`, aligned to the end, with
              `sliding_window` and the limits of packed sequences as arguments
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.masks import Mask
from clearhead.watcher.interception import AttentionCall, intercept, is_active
from clearhead.watcher.snapshots import FlexMask, Inputs

_MODELLING_FILES = "transformers.models."
# Flash attention packs only if it is given all of these.
_PACKING = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


def uses_interface(kind: type[nn.Module]) -> bool:
    """Whether the attention of this class, if it has any, goes through `AttentionInterface`."""
    file: str = kind.__module__
    if not file.startswith(_MODELLING_FILES):
        return file.startswith("transformers.")  # activations, norms and the like
    if not hasattr(sys.modules.get(file), "ALL_ATTENTION_FUNCTIONS"):
        return False
    # A few files have one class that calls PyTorch's function directly.
    functions = (f for f in vars(kind).values() if isinstance(f, FunctionType))
    return not any("scaled_dot_product_attention" in f.__code__.co_names for f in functions)


@dataclass(kw_only=True)
class InterfaceCall(AttentionCall):
    """A call of an attention function of transformers.

    Attributes:
        function: The function.
        implementation: "eager", "sdpa", "flex_attention", "flash_attention_2", ...
        q: The queries (batch, heads, queries, head_dim).
        k: The keys (batch, kv_heads, keys, head_dim).
        v: The values.
        mask: None, a tensor or a BlockMask.
        rest: Further arguments by position.
        options: Further arguments by name.
    """

    function: Callable[..., Any]
    implementation: str
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Any
    rest: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys)."""
        return (*self.q.shape[:3], self.k.shape[2])

    def inputs(self) -> Inputs:
        """What the weights are computed from."""
        get = self.options.get
        q, k, v, bias = self.q, self.k, self.v, get("position_bias")
        visible = mask = flex = None
        if self._is_flash():
            mask = self._flash_mask()
        elif isinstance(self.mask, Tensor):
            given = self.mask[..., : k.shape[2]]
            if given.dtype == torch.bool:
                visible = given
            else:
                bias = given if bias is None else bias + given
        elif self.mask is not None:
            flex = self.mask
        elif self._is_causal():
            mask, queries = Mask.causal("start"), q.shape[2]
            if queries < k.shape[2]:  # the first pass with a cache of fixed size: the rest is empty
                k, v = k[:, :, :queries], v[:, :, :queries]
                bias = None if bias is None else bias[..., :queries]
        if bias is not None and q.dtype != bias.dtype:
            bias = bias.to(q.dtype)
        return Inputs(
            *(q, k, v, mask, visible, bias),
            floor=visible is not None and bias is not None,
            flex=flex,
            scale=get("scaling"),
            cap=get("softcap"),
            sink=get("s_aux"),
            cannot_show=self._unsupported(),
        )

    def is_cross_attention(self) -> bool:
        """Whether one query meets many keys in a module that is not causal."""
        return getattr(self.modules[0], "is_causal", None) is False and self.q.shape[2] == 1

    def run(self) -> Any:
        """Run the function, with edits and without blocked edges."""
        mask, empty = (self.mask, None) if self.blocked is None else self._without(self.blocked)
        result = self.function(
            *(self.modules[0], self.q, self.k, self.v, mask), *self.rest, **self.options
        )
        if not self.edits and empty is None:
            return result
        context, *others = result
        if context.ndim != 4 or context.shape[2] != self.shape[1]:
            raise ValueError(
                f"{type(self.modules[0]).__name__}: expected context vectors (batch, queries, "
                f"heads={self.shape[1]}, value_dim) from its attention function, got "
                f"{tuple(context.shape)}.\n  Heads of this model cannot be changed."
            )
        if empty is not None:
            context = context.masked_fill(empty.transpose(1, 2), 0.0)
            self.block(empty)  # its map agrees
        return (self.edited(context), *others)

    # How the implementations read their arguments.

    def _is_flash(self) -> bool:
        """Whether the function gets its masks as flash attention does, whatever it is called."""
        if self.implementation in ("eager", "sdpa", "flex_attention"):
            return False
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, flash_attention_mask

        if isinstance(self.mask, Tensor) and self.mask.ndim == 2:
            return True
        return ALL_MASK_ATTENTION_FUNCTIONS.get(self.implementation) is flash_attention_mask

    def _is_causal(self) -> bool:
        """Whether an implementation other than flash applies causality itself."""
        if self.implementation in ("eager", "flex_attention") or self.q.shape[2] == 1:
            return False
        given = self.options.get("is_causal")
        return bool(getattr(self.modules[0], "is_causal", True) if given is None else given)

    def _flash_mask(self) -> Mask | None:
        get, module = self.options.get, self.modules[0]
        given = get("is_causal")
        parts: list[Mask] = []
        causal = bool(getattr(module, "is_causal", True) if given is None else given)
        if causal:
            parts.append(Mask.causal())
        if (window := get("sliding_window")) is not None and self.k.shape[2] > window:
            parts.append(Mask.window(window, 0 if causal else window - 1))
        if self.mask is not None:
            parts.append(Mask.padding(self.mask.bool()))
        elif (starts := self._document_starts()) is not None:
            document = starts.cumsum(-1)
            parts.append(Mask.custom(document[:, None] == document))
        found: Mask | None = None
        for part in parts:
            found = part if found is None else found & part
        return found

    def _document_starts(self) -> Tensor | None:
        """True at the first token of each packed sequence; None without packing."""
        positions, tokens = self.options.get("position_ids"), self.q.shape[2]
        if self.shape[0] != 1 or tokens != self.k.shape[2]:
            return None
        if all(self.options.get(name) is not None for name in _PACKING):
            starts = torch.zeros(tokens + 1, dtype=torch.bool, device=self.q.device)
            starts[self.options["cu_seq_lens_q"].long()] = True
            return starts[:-1]
        if isinstance(positions, Tensor) and positions.shape == (1, tokens):
            return positions[0] == positions.min()
        return None

    def _unsupported(self) -> str:
        if "sinks" in self.options:
            return (
                f"{type(self.modules[0]).__name__} computes a sink per query, which maps do not "
                "support."
            )
        return ""

    # Knockout.

    def _without(self, blocked: Tensor) -> tuple[Any, Tensor | None]:
        """The mask without these edges, and the rows that then attend to nothing."""
        if self._is_flash():
            raise ValueError(
                f"knockout: {self.implementation} takes no mask for single edges.\n"
                '  Load the model with attn_implementation="sdpa".'
            )
        _, heads, queries, keys = self.shape
        device, mask = self.q.device, self.mask
        keep = ~blocked.to(device)
        if isinstance(mask, Tensor) and mask.dtype != torch.bool:
            mask = mask[..., :keys]
            lowest = torch.finfo(mask.dtype).min
            seen = (mask > lowest) & keep
            mask = torch.where(keep, mask, lowest)
        elif self.implementation == "flex_attention":
            seen = keep if mask is None else keep & FlexMask(mask, queries, keys, device).visible
            mask = _block_mask(seen, self.q.shape[0], heads)
        else:
            if mask is None and self._is_causal():
                mask = Mask.causal("start").dense(queries, keys, device)
            seen = mask = keep if mask is None else mask[..., :keys] & keep
            if self.implementation == "eager":  # its functions add the mask to the scores
                mask = torch.where(seen, 0.0, torch.finfo(self.q.dtype).min).to(self.q.dtype)
        empty = ~seen.any(-1, keepdim=True)  # (#batch, #heads, queries, 1)
        return mask, empty & blocked.any(-1, keepdim=True).to(device)


def _block_mask(visible: Tensor, batch: int, heads: int) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    _, _, queries, keys = visible.shape
    each_b, each_h = int(visible.shape[0] > 1), int(visible.shape[1] > 1)

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return visible[b * each_b, h * each_h, q, k]

    each = (batch if each_b else None, heads if each_h else None)
    return create_block_mask(mask_mod, *each, queries, keys, device=str(visible.device))


# Wrapping.


class _Wrapped:
    """An attention function that shows its calls to the handlers of this context."""

    def __init__(self, function: Callable[..., Any], implementation: str) -> None:
        self.function, self.implementation = function, implementation

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any = None,
        *rest: Any,
        **options: Any,
    ) -> Any:
        if not is_active():
            return self.function(module, query, key, value, attention_mask, *rest, **options)
        call = InterfaceCall(
            modules=(module,),
            function=self.function,
            implementation=self.implementation,
            q=query,
            k=key,
            v=value,
            mask=attention_mask,
            rest=rest,
            options=options,
        )
        return intercept(call)


_lock = threading.Lock()
_open = 0
_restore: list[Callable[[], None]] = []


@contextmanager
def wrapped_interface() -> Iterator[None]:
    """Wrap the attention functions of transformers, for as long as any such block is open."""
    global _open
    with _lock:
        _open += 1
        if _open == 1:
            _restore.append(_wrap())
    try:
        yield
    finally:
        with _lock:
            _open -= 1
            if not _open:
                _restore.pop()()


def _wrap() -> Callable[[], None]:
    """Wrap the functions; returns how to restore them."""
    from transformers import AttentionInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as mapping

    entries = dict(mapping.items())
    get_interface = AttentionInterface.get_interface

    @wraps(get_interface)
    def wrapped(self: Any, attn_implementation: str, default: Callable[..., Any]) -> Any:
        function = get_interface(self, attn_implementation, default)
        if isinstance(function, _Wrapped) or not is_active():
            return function
        return _Wrapped(function, attn_implementation or "eager")

    for name, function in entries.items():
        mapping[name] = _Wrapped(function, name)
    AttentionInterface.get_interface = wrapped  # type: ignore[method-assign]

    def restore() -> None:
        AttentionInterface.get_interface = get_interface  # type: ignore[method-assign]
        for name, function in entries.items():
            if isinstance(mapping[name], _Wrapped):  # not if it was registered anew meanwhile
                del mapping[name]  # type: ignore[no-untyped-call]  # untyped in transformers
                if mapping.get(name) is not function:
                    mapping[name] = function

    return restore
