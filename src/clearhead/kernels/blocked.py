"""Attention a block of queries at a time: memory O(tokens), for every mask and with dropout.

The softmax of a block of rows is computed at once, so no partial results need merging. The
log-sum-exp of each row is kept, and the backward pass recomputes each block from it:

    P  = exp(q kᵀ scale - lse)                 D = dropout's keep mask / keep probability
    dV = (P∘D)ᵀ dO      dP = (dO Vᵀ)∘D      dS = P∘(dP - rowsum(dO∘O))      dQ = dS K scale

A block is computed by PyTorch's fused CPU kernel if it supports the inputs (no dropout), otherwise
by two matrix products. Keys that the mask hides from a whole block are skipped.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from clearhead import torch_internals
from clearhead.masks import Mask
from clearhead.validation import is_wrapped

_ROWS = 256  # rows per block in the fused kernel
_CELLS = 2**22  # scores per block with dropout: 16 MiB of float32


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, scale: float, dropout: float
) -> Tensor:
    """See `clearhead.kernels.attend`."""
    context: Tensor = attend_with_lse(q, k, v, mask, scale, dropout)[0]
    return context


def attend_with_lse(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, scale: float, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The context, and each row's log-sum-exp (-inf for a row with nothing to attend to)."""
    if is_transformed(q, k, v, mask):
        raise RuntimeError(
            'kernel="blocked" cannot be transformed by torch.func (grad, vmap, jvp).\n'
            '  Use kernel="auto", which chooses another kernel in this case.'
        )
    tensors: list[Tensor] = []
    text = "" if mask is None else mask.encode(tensors)
    # From PyTorch's global generator, so that torch.manual_seed makes dropout reproducible.
    seed = torch.randint(2**62, ()) if dropout > 0 else torch.zeros((), dtype=torch.int64)
    context, lse = _forward(q, k, v, text, tensors, scale, dropout, seed)
    return context, lse


def is_transformed(q: Tensor, k: Tensor, v: Tensor | None, mask: Mask | None) -> bool:
    """Whether `torch.func` transforms this call, which a custom operator does not support."""
    if torch.compiler.is_compiling():
        return False
    tensors = [q, k] if v is None else [q, k, v]
    if mask is not None:
        mask.encode(tensors)
    return any(is_wrapped(tensor) for tensor in tensors)


@torch.library.custom_op("clearhead::blocked_attention", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: str,
    mask_tensors: Sequence[Tensor],
    scale: float,
    dropout: float,
    seed: Tensor,
) -> tuple[Tensor, Tensor]:
    q, k, v = _packed(q), _packed(k), _packed(v)
    context = _empty_like_queries(q, v.shape[-1])
    lse = q.new_empty(q.shape[:-1], dtype=_accumulator(q))
    flash = torch_internals.cpu_flash_attention() if _can_be_fused(q, v) else None
    for rows, cols, tile, kept in _blocks(q, k, mask, mask_tensors, dropout, seed):
        q_block, k_block, v_block = q[:, :, rows], k[:, :, cols], v[:, :, cols]
        if cols.stop <= cols.start:
            context[:, :, rows] = 0
            lse[:, :, rows] = -torch.inf
        elif kept is None and flash is not None:
            out, row_lse = flash(
                q_block, k_block, v_block, attn_mask=_additive(tile, q_block, k_block), scale=scale
            )
            context[:, :, rows] = out
            if tile is not None:  # the fused kernel returns 0 for a row with nothing to attend to
                row_lse = row_lse.masked_fill(~tile.any(-1), -torch.inf)
            lse[:, :, rows] = row_lse
        else:
            scores = _scores(q_block, k_block, tile, scale)
            peak = scores.amax(-1, keepdim=True)
            peak.masked_fill_(peak.isneginf(), 0.0)  # -inf - (-inf) would be NaN
            weights = scores.sub_(peak).exp_()
            total = weights.sum(-1, keepdim=True)
            lse[:, :, rows] = (peak + total.log()).squeeze(-1)
            weights.div_(total.clamp_min_(torch.finfo(total.dtype).tiny))
            context[:, :, rows] = _times_values(_drop(weights, kept, dropout), v_block, q.dtype)
    return context, lse


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *others: object) -> tuple[Tensor, Tensor]:
    lse = q.new_empty(q.shape[:-1], dtype=_accumulator(q))
    return _empty_like_queries(q, v.shape[-1]), lse


@torch.library.custom_op("clearhead::blocked_attention_backward", mutates_args=())
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    context: Tensor,
    lse: Tensor,
    mask: str,
    mask_tensors: Sequence[Tensor],
    scale: float,
    dropout: float,
    seed: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    grad, q, k, v = _packed(grad), _packed(q), _packed(k), _packed(v)
    accumulator = _accumulator(q)
    grad_q = torch.zeros_like(q)
    grad_k = torch.zeros_like(k, dtype=accumulator)
    grad_v = torch.zeros_like(v, dtype=accumulator)
    flash_backward = torch_internals.cpu_flash_attention_backward() if _can_be_fused(q, v) else None
    for rows, cols, tile, kept in _blocks(q, k, mask, mask_tensors, dropout, seed):
        if cols.stop <= cols.start:
            continue
        q_block, k_block, v_block = q[:, :, rows], k[:, :, cols], v[:, :, cols]
        grad_block, out_block, row_lse = grad[:, :, rows], context[:, :, rows], lse[:, :, rows]
        # -inf - (-inf) is NaN; a row with nothing to attend to has no weights and no gradient.
        row_lse = row_lse.masked_fill(row_lse.isneginf(), 0.0)
        if kept is None and flash_backward is not None:
            shared = q.shape[1] // k.shape[1]
            dq, dk, dv = flash_backward(
                grad_block,
                q_block,
                k_block.repeat_interleave(shared, 1) if shared > 1 else k_block,
                v_block.repeat_interleave(shared, 1) if shared > 1 else v_block,
                out_block,
                row_lse,
                0.0,
                False,
                attn_mask=_additive(tile, q_block, k_block),
                scale=scale,
            )
            grad_q[:, :, rows] = dq
            grad_k[:, :, cols] += dk.unflatten(1, (-1, shared)).sum(2)
            grad_v[:, :, cols] += dv.unflatten(1, (-1, shared)).sum(2)
        else:
            weights = _scores(q_block, k_block, tile, scale).sub_(row_lse[..., None]).exp_()
            grad_weights = _drop(_scores(grad_block, v_block, None, 1.0), kept, dropout)
            delta = (grad_block * out_block).to(accumulator).sum(-1, keepdim=True)
            grad_scores = grad_weights.sub_(delta).mul_(weights).mul_(scale)
            grad_q[:, :, rows] = _times_values(grad_scores, k_block, q.dtype)
            grad_k[:, :, cols] += _transposed_times(grad_scores, q_block, k.shape[1])
            dropped = _drop(weights, kept, dropout)
            grad_v[:, :, cols] += _transposed_times(dropped, grad_block, k.shape[1])
    return grad_q, grad_k.to(k.dtype), grad_v.to(v.dtype)


@_backward.register_fake
def _(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *others: object
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, mask, mask_tensors, scale, dropout, seed = inputs
    ctx.save_for_backward(q, k, v, *output, seed, *mask_tensors)
    ctx.mask, ctx.scale, ctx.dropout = mask, scale, dropout
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    if grad_lse is not None:
        raise RuntimeError("The log-sum-exp of the blocked kernel has no gradient.")
    q, k, v, context, lse, seed, *mask_tensors = ctx.saved_tensors
    grads: tuple[Tensor | None, ...] = (None, None, None)
    if grad is not None:
        grads = _backward(
            grad, q, k, v, context, lse, ctx.mask, mask_tensors, ctx.scale, ctx.dropout, seed
        )
    return (*grads, None, [None] * len(mask_tensors), None, None, None)


_forward.register_autograd(_differentiate, setup_context=_save)


def _blocks(
    q: Tensor, k: Tensor, mask: str, mask_tensors: Sequence[Tensor], dropout: float, seed: Tensor
) -> Iterator[tuple[slice, slice, Tensor | None, Tensor | None]]:
    """(rows, keys within their reach, mask, dropout's keep mask) for each block.

    The backward pass gets the same blocks as the forward pass, and the same dropout.
    """
    visible = None if mask == "" else Mask.decode(mask, mask_tensors)
    batch, heads, queries, _ = q.shape
    keys = k.shape[-2]
    generator = torch.Generator(q.device)
    if dropout > 0:
        generator.manual_seed(int(seed))
    height = _ROWS if dropout == 0 else max(16, _CELLS // (batch * heads * keys))
    for start in range(0, queries, height):
        rows = slice(start, min(start + height, queries))
        cols = slice(0, keys) if visible is None else visible.reach(rows, queries, keys)
        tile = None
        if visible is not None and cols.stop > cols.start:
            tile = visible.tile(rows, cols, queries, keys, q.device)
        kept = None
        if dropout > 0:
            shape = (batch, heads, rows.stop - rows.start, cols.stop - cols.start)
            kept = _keep(shape, dropout, generator)
        yield rows, cols, tile, kept


def _keep(shape: tuple[int, ...], dropout: float, generator: torch.Generator) -> Tensor:
    """True where dropout keeps a weight: 16 random bits per weight, four from each 64-bit draw."""
    numel = torch.Size(shape).numel()
    bits = torch.empty((numel + 3) // 4, dtype=torch.int64, device=generator.device)
    bits.random_(-(2**63), None, generator=generator)
    dropped = _threshold(dropout)
    if dropped == 2**16:  # everything; the comparison below would overflow int16
        return torch.zeros(shape, dtype=torch.bool, device=generator.device)
    return (bits.view(torch.int16)[:numel] >= dropped - 2**15).view(shape)


def _threshold(dropout: float) -> int:
    """How many of the 65,536 values of 16 random bits drop a weight."""
    return round(dropout * 2**16)


def _drop(weights: Tensor, kept: Tensor | None, dropout: float) -> Tensor:
    """Zero the dropped weights and scale up the rest, in place."""
    if kept is None:
        return weights
    left = 2**16 - _threshold(dropout)
    return weights.mul_(kept).mul_(2**16 / left if left else 0.0)


def _scores(q: Tensor, k: Tensor, tile: Tensor | None, scale: float) -> Tensor:
    """Q Kᵀ scale, -inf where hidden. Query heads that share a key head are stacked as rows."""
    batch, heads, rows, _ = q.shape
    scores = torch.matmul(q.reshape(batch, k.shape[1], -1, q.shape[-1]), k.transpose(-2, -1))
    scores = scores.view(batch, heads, rows, k.shape[-2]).to(_accumulator(q)).mul_(scale)
    return scores if tile is None else scores.masked_fill_(~tile, -torch.inf)


def _times_values(weights: Tensor, v: Tensor, dtype: torch.dtype) -> Tensor:
    batch, heads, rows, keys = weights.shape
    product = weights.to(v.dtype).reshape(batch, v.shape[1], -1, keys) @ v
    return product.view(batch, heads, rows, v.shape[-1]).to(dtype)


def _transposed_times(weights: Tensor, q: Tensor, kv_heads: int) -> Tensor:
    """Weightsᵀ q, summed over the query heads that share a key head."""
    batch, _, _, keys = weights.shape
    stacked = weights.to(q.dtype).reshape(batch, kv_heads, -1, keys)
    return stacked.transpose(-2, -1) @ q.reshape(batch, kv_heads, -1, q.shape[-1])


def _can_be_fused(q: Tensor, v: Tensor) -> bool:
    return q.device.type == "cpu" and q.shape[-1] == v.shape[-1]


def _additive(tile: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """The mask in the form the fused kernel needs: 0 and -inf, the queries' dtype, four axes."""
    if tile is None:
        return None
    tile = tile.expand(-1, -1, q.shape[-2], k.shape[-2])
    return torch.zeros(tile.shape, dtype=q.dtype).masked_fill_(~tile, -torch.inf)


def _packed(x: Tensor) -> Tensor:
    """Make the last axis contiguous, as the fused kernel requires."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _accumulator(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _empty_like_queries(q: Tensor, value_dim: int) -> Tensor:
    """(batch, heads, queries, value_dim), laid out so that merging the heads needs no copy."""
    batch, heads, queries, _ = q.shape
    return q.new_empty(batch, queries, heads, value_dim).transpose(1, 2)
