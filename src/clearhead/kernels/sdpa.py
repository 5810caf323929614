"""PyTorch's own fused attention, told about the mask in the cheapest way that it understands."""

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.masks import Mask


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, scale: float, dropout: float
) -> Tensor:
    """See `clearhead.kernels.attend`."""
    queries, keys = q.shape[-2], k.shape[-2]
    attn_mask, is_causal = None, False
    if mask is not None:
        if mask.is_start_causal(queries, keys):
            is_causal = True
        else:
            attn_mask = mask.tile(slice(0, queries), slice(0, keys), queries, keys, q.device)
    empty = None
    if attn_mask is not None and not _zeroes_empty_rows(q):
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
