"""PyTorch's own fused attention, told about the mask in the cheapest way that it understands."""

import threading

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.masks import Mask

_MOST_KEPT = 2
_MOST_KEPT_CELLS = 2**26
_kept: dict[object, tuple[list[Tensor], "Built"]] = {}
_lock = threading.Lock()


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, scale: float, dropout: float
) -> Tensor:
    """See `clearhead.kernels.attend`."""
    attn_mask, empty, is_causal = None, None, False
    if mask is not None:
        if mask.is_start_causal(q.shape[-2], k.shape[-2]):
            is_causal = True
        else:
            attn_mask, empty = _build(mask, q, k.shape[-2])
    context = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=attn_mask,
        dropout_p=dropout,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=bool(q.shape[1] != k.shape[1]),  # sizes are tensors to torch.jit.trace
    )
    if empty is None:
        return context
    if not context.requires_grad and not torch.compiler.is_compiling() and _is_real(context):
        return context.masked_fill_(empty, 0.0)  # nobody else has it, not even a backward pass
    # Turned, since the copy is contiguous and the heads come side by side next.
    return context.transpose(1, 2).masked_fill(empty.transpose(1, 2), 0.0).transpose(1, 2)


Built = tuple[Tensor | None, Tensor | None]  # what SDPA is told, and the rows to zero afterwards


def _build(mask: Mask, q: Tensor, keys: int) -> Built:
    """The mask as queries × keys. On a GPU the last ones are kept, for the next layer and batch."""
    if not _may_keep(q):
        return _build_anew(mask, q, keys)
    tensors: list[Tensor] = []
    text = mask.encode(tensors)
    if any(t.is_inference() for t in tensors):  # they do not say whether they were changed
        return _build_anew(mask, q, keys)
    states = tuple((id(t), t._version) for t in tensors)
    key = (text, states, q.shape[-2], keys, q.device, _stream(q.device))
    with _lock:
        known = _kept.pop(key, None)
        if known is None:
            with torch.inference_mode(False):  # else no later training could use it
                known = (tensors, _build_anew(mask, q, keys))
        if known[1][0] is None or known[1][0].numel() <= _MOST_KEPT_CELLS:
            _kept[key] = known  # with its tensors: their ids stay taken
        while len(_kept) > _MOST_KEPT:
            _kept.pop(next(iter(_kept)))
    return known[1]


def _build_anew(mask: Mask, q: Tensor, keys: int) -> Built:
    queries = q.shape[-2]
    attn_mask = mask.tile(slice(0, queries), slice(0, keys), queries, keys, q.device)
    if attn_mask is None or _zeroes_empty_rows(q) or mask.is_never_empty(queries, keys):
        return attn_mask, None
    # Let a query that sees nothing see everything, and take its output away afterwards.
    empty = ~attn_mask.any(-1, keepdim=True)
    return attn_mask | empty, empty


def _may_keep(q: Tensor) -> bool:
    """On a GPU building a mask can take longer than attending; a graph's memory is not ours."""
    if q.device.type != "cuda" or torch.compiler.is_compiling():
        return False
    return _is_real(q) and not torch.cuda.is_current_stream_capturing()


def _is_real(q: Tensor) -> bool:
    """Whether what is computed now can be used later: no fake tensor, no mode, no torch.func."""
    inside = torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack()
    return type(q) is Tensor and not inside


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def _zeroes_empty_rows(q: Tensor) -> bool:
    """Whether PyTorch's kernel gives zeros to a query that sees nothing.

    cuDNN's does not, nor do the runtimes that a graph is exported for.
    """
    return q.device.type == "cpu" and not torch.compiler.is_exporting()


def attend_with_lse(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, scale: float, dropout: float
) -> tuple[Tensor, Tensor | None]:
    """The context, and each row's log-sum-exp where PyTorch's kernel says it, else None."""
    queries, keys = q.shape[-2], k.shape[-2]
    is_causal = mask is not None and mask.is_start_causal(queries, keys)
    plain = q.device.type == "cpu" and not dropout and q.shape[-1] == v.shape[-1]
    if not plain or not (mask is None or is_causal):
        return attend(q, k, v, mask, scale, dropout), None
    # What F.scaled_dot_product_attention itself calls here; the same numbers, and the lse.
    context, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *(x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v)),
        is_causal=is_causal,
        scale=scale,
    )
    return context, lse


def knows(mask: Mask | None, queries: int, keys: int) -> bool:
    """Whether SDPA can be told this mask without a queries × keys tensor."""
    if mask is None or mask.is_start_causal(queries, keys):
        return True
    return mask.is_same_for_all_queries(queries, keys)
