"""PyTorch's own fused attention, told about the mask in the cheapest way that it understands."""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.masks import Mask


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, scale: float, dropout: float
) -> Tensor:
    """See `clearhead.kernels.attend`."""
    queries, keys = q.shape[-2], k.shape[-2]
    attn_mask, is_causal, may_be_empty = None, False, False
    if mask is not None:
        if mask.is_start_causal(queries, keys):
            is_causal = True
        elif _may_keep(q) and (text := _in_words(mask)) is not None:
            attn_mask = _kept(text, queries, keys, q.device, _stream(q.device))
            may_be_empty = queries != keys  # else everybody sees at least themselves
        else:
            attn_mask = mask.tile(slice(0, queries), slice(0, keys), queries, keys, q.device)
            may_be_empty = True
    empty = None
    if attn_mask is not None and may_be_empty and not _zeroes_empty_rows(q):
        # Let a query that sees nothing see everything, and take its output away afterwards.
        empty = ~attn_mask.any(-1, keepdim=True)
        attn_mask = attn_mask | empty
    context = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=attn_mask,
        dropout_p=dropout,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return context if empty is None else context.masked_fill(empty, 0.0)


def _in_words(mask: Mask) -> str | None:
    """The mask as a text, if that says all: causality and windows, no tensor of the user's."""
    tensors: list[Tensor] = []
    text = mask.encode(tensors)
    return None if tensors else text


def _may_keep(q: Tensor) -> bool:
    """On a GPU building a mask can take longer than attending; a graph's memory is not ours."""
    if q.device.type != "cuda" or torch.compiler.is_compiling():
        return False
    return not torch.cuda.is_current_stream_capturing()


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


@lru_cache(maxsize=2)
def _kept(text: str, queries: int, keys: int, device: torch.device, stream: int) -> Tensor | None:
    """A built mask; the last ones are kept, for the next layer and the next batch."""
    with torch.inference_mode(False):  # else no later training could use it
        mask = Mask.decode(text, [])
        return mask.tile(slice(0, queries), slice(0, keys), queries, keys, device)


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
