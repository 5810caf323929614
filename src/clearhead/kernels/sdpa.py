"""PyTorch's fused attention, with the mask in the cheapest form that it accepts."""

import threading

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead import torch_internals
from clearhead.masks import Mask
from clearhead.validation import is_wrapped

# The attn_mask for SDPA, and the rows to zero afterwards.
Built = tuple[Tensor | None, Tensor | None]

_MOST_KEPT = 2
_MOST_KEPT_CELLS = 2**26
_kept: dict[object, tuple[list[Tensor], Built]] = {}
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
        q, k, v, attn_mask, dropout, is_causal, scale=scale, enable_gqa=is_grouped(q, k)
    )
    if empty is None:
        return context
    # Transposed first: the copy is then contiguous for merging the heads, which comes next.
    context, empty = context.transpose(1, 2), empty.transpose(1, 2)
    if context.requires_grad or not _may_keep(q) or is_wrapped(q):
        return context.masked_fill(empty, 0.0).transpose(1, 2)
    return context.masked_fill_(empty, 0.0).transpose(1, 2)  # nobody else has this tensor


def attend_with_lse(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, scale: float, dropout: float
) -> tuple[Tensor, Tensor | None]:
    """The context, and each row's log-sum-exp if PyTorch's kernel returns it, else None."""
    queries, keys = q.shape[-2], k.shape[-2]
    is_causal = mask is not None and mask.is_start_causal(queries, keys)
    flash = torch_internals.cpu_flash_attention()
    plain = q.device.type == "cpu" and not dropout and q.shape[-1] == v.shape[-1]
    if flash is None or not plain or not (mask is None or is_causal):
        return attend(q, k, v, mask, scale, dropout), None
    # The operator that F.scaled_dot_product_attention calls here: the same numbers, and the lse.
    context, lse = flash(
        *(x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v)),
        is_causal=is_causal,
        scale=scale,
    )
    return context, lse


def is_grouped(q: Tensor, k: Tensor) -> bool:
    """Whether query heads share key heads. To `torch.jit.trace`, sizes are tensors."""
    return bool(q.shape[1] != k.shape[1])


def needs_no_matrix(mask: Mask | None, queries: int, keys: int) -> bool:
    """Whether SDPA can apply this mask without a queries × keys tensor."""
    if mask is None or mask.is_start_causal(queries, keys):
        return True
    return mask.is_same_for_all_queries(queries, keys)


def _build(mask: Mask, q: Tensor, keys: int) -> Built:
    """The mask as queries × keys.

    On a GPU, building a mask can take longer than attending, so the last masks are kept for the
    next layer and batch.
    """
    if not _may_keep(q):
        return _build_anew(mask, q, keys)
    tensors: list[Tensor] = []
    text = mask.encode(tensors)
    versions = [torch_internals.version(tensor) for tensor in tensors]
    if None in versions:  # changes since then could not be detected
        return _build_anew(mask, q, keys)
    states = tuple((id(t), version) for t, version in zip(tensors, versions, strict=True))
    stream = torch.cuda.current_stream(q.device).cuda_stream if q.is_cuda else 0
    key = (text, states, q.shape[-2], keys, q.device, stream)
    with _lock:
        known = _kept.get(key)
        if known is None:
            with torch.inference_mode(False):  # training must be able to use it later
                known = (tensors, _build_anew(mask, q, keys))
            if _is_worth_keeping(known[1][0]):
                _kept[key] = known  # with its tensors, so that their ids are not reused
            while len(_kept) > _MOST_KEPT:
                _kept.pop(next(iter(_kept)))  # the oldest
    return known[1]


def _build_anew(mask: Mask, q: Tensor, keys: int) -> Built:
    queries = q.shape[-2]
    attn_mask = mask.tile(slice(0, queries), slice(0, keys), queries, keys, q.device)
    if attn_mask is None or _zeroes_empty_rows(q) or mask.is_never_empty(queries, keys):
        return attn_mask, None
    # A query that may attend to nothing attends to everything, and its output is zeroed afterwards.
    empty = ~attn_mask.any(-1, keepdim=True)
    return attn_mask | empty, empty


def _may_keep(q: Tensor) -> bool:
    """On a GPU only, and not while a graph is compiled or captured, which owns its memory."""
    if q.device.type != "cuda" or type(q) is not Tensor or torch.compiler.is_compiling():
        return False
    return not torch.cuda.is_current_stream_capturing()


def _is_worth_keeping(attn_mask: Tensor | None) -> bool:
    """Whether a mask is small enough, and real: fake tensors and wrappers have no memory."""
    if attn_mask is None:
        return True
    if type(attn_mask) is not Tensor or is_wrapped(attn_mask):
        return False
    return attn_mask.numel() <= _MOST_KEPT_CELLS and attn_mask.data_ptr() != 0


def _zeroes_empty_rows(q: Tensor) -> bool:
    """Whether PyTorch's kernel returns zeros for a query that may attend to nothing.

    cuDNN does not, nor do the runtimes that exported graphs run on.
    """
    return q.device.type == "cpu" and not torch.compiler.is_exporting()
