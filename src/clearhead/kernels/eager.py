"""Attention in a few plain lines that build queries × keys; differentiable any number of times."""

import torch
from torch import Tensor

from clearhead.masks import Mask


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, scale: float, dropout: float
) -> Tensor:
    """See `clearhead.kernels.attend`."""
    queries, keys = q.shape[-2], k.shape[-2]
    shared = q.shape[1] // k.shape[1]  # query heads per key head
    if shared > 1:
        k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
    attn_scores = q @ k.transpose(-2, -1) * scale
    empty = None
    if mask is not None:
        visible = mask.dense(queries, keys, q.device)
        if not mask.is_never_empty(queries, keys):
            # The softmax of a row of -inf is NaN: such rows are computed unmasked, then zeroed.
            empty = ~visible.any(-1, keepdim=True)
            visible = visible | empty
        attn_scores = attn_scores.masked_fill(~visible, -torch.inf)
    attn_weights = torch.softmax(attn_scores, dim=-1)
    if empty is not None:
        attn_weights = attn_weights.masked_fill(empty, 0.0)
    return torch.dropout(attn_weights, dropout, dropout > 0) @ v


def attend_with_lse(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, scale: float, dropout: float
) -> tuple[Tensor, None]:
    """The context; `torch.softmax` does not return its log-sum-exp."""
    return attend(q, k, v, mask, scale, dropout), None
