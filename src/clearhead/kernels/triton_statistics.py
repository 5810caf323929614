"""Statistics over the attention weights on CUDA, streamed by Triton: n x n is never built.

With s_ij = scale * q_i . k_j, or cap * tanh(scale * q_i . k_j / cap) with a soft cap, and
lse_i = log sum_j exp(s_ij) over the keys visible to query i,

    P_ij         = exp(s_ij - lse_i)              0 where key j is hidden from query i
    entropy_i    = sum_j P_ij * (lse_i - s_ij)    in nats; unlike lse_i - sum_j P_ij s_ij, no
                                                  large term cancels another
    received_j   = sum_i P_ij
    thumbnail_rc = the sum of P_ij over i * rows // n_q == r and j * cols // n_k == c

Scores have the precision of a fused forward pass: the matrix units accumulate them in float32.
A sink enters through the given lse_i: it is one more term of the sum, and no key.
`received` and `thumbnail` are gathered by atomic additions. Their order changes from run to run, so
they are added in float64, and the float32 result hardly ever differs.

This file launches the kernels, which are in `triton_device`. `tile_loop.triton_arguments` decides
which maps they support.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from clearhead.kernels.triton_device import LOG2_E, log_sum_exp_kernel, statistics_kernel

WARPS = 4  # a warpgroup, which issues one Hopper matrix instruction
QUERIES = 64  # the rows of one such instruction
PRECISION = "ieee"  # of float32 products


def _tiling(q: Tensor, rows: int) -> dict[str, int]:
    """How many tiles of queries a program owns, and the sizes of the tiles."""
    batch, heads, n_q, head_dim = q.shape
    if q.dtype == torch.float32:  # products run on slower units and take twice the memory
        return {"TILES": 1, "KEYS": 32, "STAGES": 1}
    tiles = 4 if head_dim <= 64 else 2
    # More tiles mean fewer sums across threads. But a chunk must not be much larger than a row of
    # the thumbnail, and short inputs need enough programs to fill the device.
    cell = -(-n_q // rows)
    while tiles > 1 and (
        -(-cell // (tiles * QUERIES)) * tiles * QUERIES > 1.2 * cell
        or batch * heads * (n_q // (tiles * QUERIES)) < 512
    ):
        tiles //= 2
    return {"TILES": tiles, "KEYS": 64, "STAGES": 2, "maxnreg": 128}


def _log_sum_exp_tiling(q: Tensor) -> dict[str, int]:
    if q.dtype == torch.float32:
        return {"TILES": 1, "KEYS": 32, "STAGES": 1}
    return {"TILES": 1, "KEYS": 128, "STAGES": 2, "maxnreg": 128}


def _arguments(
    q: Tensor,
    k: Tensor,
    scale: float,
    cap: float | None,
    causal: bool,
    causal_offset: int | None,
    window: int | None,
    key_valid: Tensor | None,
) -> dict[str, Any]:
    """The arguments that both kernels take."""
    q = q if q.stride(3) == 1 else q.contiguous()
    k = k if k.stride(3) == 1 else k.contiguous()
    n_q, n_k = q.shape[2], k.shape[2]
    strides = dict(zip(("q_batch", "q_head", "q_row"), q.stride()[:3], strict=True))
    strides |= dict(zip(("k_batch", "k_head", "k_row"), k.stride()[:3], strict=True))
    return strides | {
        "q": q,
        "k": k,
        # Triton loads bools as bytes. Without a mask, any pointer will do.
        "valid": q if key_valid is None else key_valid.contiguous().view(torch.uint8),
        "heads": q.shape[1],
        "group": q.shape[1] // k.shape[1],
        "n_q": n_q,
        "n_k": n_k,
        # Exponents are those of 2.
        "scale2": scale * LOG2_E.value,
        "inner": scale / cap if cap else 1.0,
        "outer": cap / scale if cap else 1.0,
        "offset": n_k - n_q if causal_offset is None else causal_offset,
        "window": window or 0,
        "CAUSAL": causal,
        "WINDOW": window is not None,
        "VALID": key_valid is not None,
        "CAP": cap is not None,
        "DIM": q.shape[3],
    }


def _launch(
    kernel: Any, arguments: dict[str, Any], rows: int, cols: int, tiling: dict[str, int]
) -> None:
    q, n_q, n_k = (arguments[name] for name in ("q", "n_q", "n_k"))
    chunks_per_row = triton.cdiv(triton.cdiv(n_q, rows), tiling["TILES"] * QUERIES)
    programs = q.shape[0] * q.shape[1] * rows * chunks_per_row
    if not programs * n_k:
        return
    with torch.cuda.device_of(q):  # type: ignore[no-untyped-call]  # torch has no types for it
        kernel[programs,](
            **arguments,
            rows=rows,
            chunks_per_row=chunks_per_row,
            QUERIES=QUERIES,
            INDEX=tl.int32 if max((rows + 1) * n_q, (cols + 1) * n_k) < 2**31 else tl.int64,
            PRECISION=PRECISION,
            num_warps=WARPS,
            **tiling,
        )


def log_sum_exp(
    q: Tensor,
    k: Tensor,
    *,
    scale: float,
    cap: float | None = None,
    causal: bool,
    causal_offset: int | None = None,
    window: int | None = None,
    key_valid: Tensor | None = None,
) -> Tensor:
    """The log-sum-exp of each query's visible scores, in nats: (batch, heads, queries) float32.

    -inf where a query attends to nothing. The arguments are those of `statistics`.
    """
    arguments = _arguments(q, k, scale, cap, causal, causal_offset, window, key_valid)
    lse = q.new_full(q.shape[:3], -math.inf, dtype=torch.float32)
    _launch(log_sum_exp_kernel, arguments | {"lse": lse}, 1, 1, _log_sum_exp_tiling(q))
    return lse


def statistics(
    q: Tensor,
    k: Tensor,
    lse: Tensor | None = None,
    *,
    scale: float,
    cap: float | None = None,
    causal: bool,
    causal_offset: int | None = None,
    window: int | None = None,
    key_valid: Tensor | None = None,
    entropy: bool = False,
    received: bool = False,
    thumbnail: tuple[int, int] | None = None,
) -> dict[str, Tensor]:
    """Statistics of the attention weights of q over k, in one pass and O(n) memory.

    Args:
        q: The queries, (batch, heads, queries, head_dim).
        k: The keys, (batch, kv_heads, keys, head_dim), in the dtype of q.
        lse: The log-sum-exp of each row in nats, (batch, heads, queries), with the sink if there is
            one; computed without a sink if None.
        scale: The factor on q . k, positive.
        cap: The soft cap of the scores, or None.
        causal: Whether query i attends only to keys j <= i + causal_offset.
        causal_offset: Where the diagonal begins; None aligns it to the end, keys - queries.
        window: If given, query i attends only to keys j > i + causal_offset - window: with
            `causal`, to the last `window` keys, its own included.
        key_valid: False for keys that are hidden from all queries, bool (batch, keys).
        entropy: Whether to return "entropy", (batch, heads, queries), in nats.
        received: Whether to return "received", (batch, heads, keys): the weight each key gets.
        thumbnail: (rows, cols) to return "thumbnail", (batch, heads, rows, cols): sums of the
            weights over queries with i * rows // queries == row and keys with
            j * cols // keys == col.

    Returns:
        The requested tensors in float32. A query that attends to nothing has entropy 0.
    """
    arguments = _arguments(q, k, scale, cap, causal, causal_offset, window, key_valid)
    if lse is None:
        lse = q.new_full(q.shape[:3], -math.inf, dtype=torch.float32)
        _launch(log_sum_exp_kernel, arguments | {"lse": lse}, 1, 1, _log_sum_exp_tiling(q))
    rows, cols = thumbnail or (1, 1)
    shapes = {
        "entropy": q.shape[:3] if entropy else None,
        "received": (*q.shape[:2], k.shape[2]) if received else None,
        "thumbnail": (*q.shape[:2], rows, cols) if thumbnail else None,
    }
    out = {
        name: q.new_zeros(shape or 1, dtype=torch.float32 if name == "entropy" else torch.float64)
        for name, shape in shapes.items()
    }
    wanted = {name.upper(): shape is not None for name, shape in shapes.items()}
    arguments |= out | wanted | {"lse": lse.float().contiguous(), "cols": cols}
    _launch(statistics_kernel, arguments, rows, cols, _tiling(q, rows))
    return {name: tensor.float() for name, tensor in out.items() if shapes[name] is not None}
