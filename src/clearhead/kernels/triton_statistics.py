"""Statistics over the attention weights on CUDA, streamed by Triton: n x n is never built.

With s_ij = scale * q_i . k_j and lse_i = log sum_j exp(s_ij) over the keys that query i may see,

    P_ij         = exp(s_ij - lse_i)              0 where i may not see j
    entropy_i    = sum_j P_ij * (lse_i - s_ij)    in nats; unlike lse_i - sum_j P_ij s_ij, no
                                                  large term cancels another
    received_j   = sum_i P_ij
    thumbnail_rc = the sum of P_ij over i * rows // n_q == r and j * cols // n_k == c

A program owns a chunk of queries and streams the keys it may see past them, a tile at a time: a
matrix product, then for each pair one multiply-add for the exponent t = log2 P, one exp2, one
multiply-add for the entropy and one addition for the column sums. The exponential is the floor (16
a clock on a Hopper multiprocessor), so the rest must keep out of its way:

- Sums within a thread are cheap, sums across threads are not. `_by_lane` and `_halves` regroup a
  tile so that Triton adds up only what one thread holds of it, in the layout that Hopper's matrix
  instruction leaves; that is speed alone, any layout gives the same sums. What remains is added
  across threads once a program for the entropy, and once a tile of keys for the column sums, after
  all tiles of queries have gone into them.
- A chunk never crosses a row of the thumbnail, so a cell is a sum of column sums: nothing per pair.
- Rows that do not count (past the end, or with nothing to see) get an exponent near -1e30. It is
  finite, so that 0 * t is 0 and not NaN, and no full tile needs a mask.
- Only the tiles that cross the diagonal, the window's edge or the end of the keys are masked.

Scores are as exact as the matrix units add them up in float32, the same as a fused forward's.
`received` and `thumbnail` are gathered by atomic additions, in float64: their order, which changes
from run to run, then hardly ever shows in the float32 that is returned.
"""

# Device code speaks in Triton's own types, which mypy knows nothing of.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# mypy: disable-error-code="assignment,attr-defined"

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

HEAD_DIMS = (16, 32, 64, 128)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LOG2_E = tl.constexpr(1.4426950216293335)  # log2(e) in float32
WARPS = 4  # a warpgroup: what issues a Hopper matrix instruction,
QUERIES = 64  # and the rows of one
PRECISION = "ieee"  # of float32 products


# fmt: off
@triton.jit
def _by_lane(x, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """(queries, keys) -> (queries, 4, keys / 4): the last axis is what one of four lanes holds."""
    x = x.reshape(QUERIES, KEYS // 8, 4, 2).permute(0, 2, 1, 3)
    return x.reshape(QUERIES, 4, KEYS // 4)


@triton.jit
def _halves(x, KEYS: tl.constexpr):
    """(64, keys) -> two of (32, keys): the two rows that one thread holds of each 16."""
    x = x.reshape(4, 2, 8, KEYS).permute(0, 2, 3, 1)
    return tl.split(x.reshape(32, KEYS, 2))


@triton.jit
def _chunk(n_q, rows, chunks_per_row, CHUNK: tl.constexpr, INDEX: tl.constexpr):
    """This program's head (batch * heads + head), thumbnail row, and queries first..stop-1."""
    # Longest first: a causal grid then ends with short chunks, and no multiprocessor waits long.
    chunks = rows * chunks_per_row
    chunk = chunks - 1 - tl.program_id(0) % chunks
    row = chunk // chunks_per_row
    first = tl.cdiv(row.to(INDEX) * n_q, rows).to(tl.int32) + chunk % chunks_per_row * CHUNK
    stop = tl.cdiv((row + 1).to(INDEX) * n_q, rows).to(tl.int32)
    which = (tl.program_id(0) // chunks).to(tl.int64)
    return which, row, first, tl.minimum(first + CHUNK, stop)


@triton.jit
def _load_queries(q, q_row, first, stop, i, QUERIES: tl.constexpr, DIM: tl.constexpr):
    """The i-th tile of a chunk's queries, whose number lies below stop."""
    local = i * QUERIES + tl.arange(0, QUERIES)
    at = q + first.to(tl.int64) * q_row + (local * q_row)[:, None] + tl.arange(0, DIM)[None, :]
    return tl.load(at, mask=(first + local < stop)[:, None], other=0.0)


@triton.jit
def _load_keys(k, k_row, start, n_k, MASKED: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr):
    """A tile of keys, transposed: (dim, keys)."""
    local = tl.arange(0, KEYS)
    k += tl.cast(start, tl.int64) * k_row
    at = k + (local * k_row)[None, :] + tl.arange(0, DIM)[:, None]
    if MASKED:
        return tl.load(at, mask=(start + local < n_k)[None, :], other=0.0)
    else:  # noqa: RET505  # Triton compiles one branch and wants to see both
        return tl.load(at)


@triton.jit
def _phases(first, stop, n_k, offset, window, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
            VALID: tl.constexpr, KEYS: tl.constexpr):
    """The four bounds of three runs of key tiles for these queries: masked, full, masked."""
    begin, full, full_end, end = 0, 0, n_k, n_k
    if WINDOW:
        begin = tl.maximum(first + offset - window + 1, 0) // KEYS * KEYS
        full = tl.cdiv(tl.maximum(stop + offset - window, 0), KEYS) * KEYS
    if CAUSAL:
        end = tl.minimum(n_k, tl.maximum(stop + offset, 0))
        full_end = tl.minimum(n_k, tl.maximum(first + offset + 1, 0))
    if VALID:  # any key may be hidden: all tiles in the last run
        full = begin
        full_end = begin
    full = tl.maximum(begin, tl.minimum(full, end))
    return begin, full, tl.maximum(full, full_end // KEYS * KEYS), end


@triton.jit
def _visible(query, key, n_k, valid, offset, window, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
             VALID: tl.constexpr):
    """Which pairs of a tile count."""
    seen = (query >= 0)[:, None] & (key < n_k)[None, :]
    if CAUSAL:
        seen = seen & (key[None, :] <= query[:, None] + offset)
    if WINDOW:
        seen = seen & (key[None, :] > query[:, None] + offset - window)
    if VALID:
        seen = seen & (tl.load(valid + key, mask=key < n_k, other=0) != 0)[None, :]
    return seen


@triton.jit
def _statistics_kernel(
    q, k, valid, lse, entropy, received, thumbnail,
    q_batch, q_head, q_row, k_batch, k_head, k_row, heads, group, n_q, n_k,
    scale2, offset, window, rows, cols, chunks_per_row,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, VALID: tl.constexpr,
    ENTROPY: tl.constexpr, RECEIVED: tl.constexpr, THUMBNAIL: tl.constexpr,
    TILES: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr,
    STAGES: tl.constexpr, INDEX: tl.constexpr, PRECISION: tl.constexpr,
):
    which, row, first, stop = _chunk(n_q, rows, chunks_per_row, TILES * QUERIES, INDEX)
    if first >= stop:
        return
    q += which // heads * q_batch + which % heads * q_head
    k += which // heads * k_batch + which % heads // group * k_head
    valid += which // heads * n_k
    received += which * n_k
    thumbnail += (which * rows + row) * cols

    queries = ()
    lse2 = ()
    surprise = ()  # the sum of P * log2 P so far, by the lane that holds it,
    residue = ()  # and what its roundings lost: a million keys are ten thousand additions
    for i in tl.static_range(TILES):
        query = first + i * QUERIES + tl.arange(0, QUERIES)
        row_lse = tl.load(lse + which * n_q + query, mask=query < stop, other=float("-inf"))
        queries += (_load_queries(q, q_row, first, stop, i, QUERIES, DIM),)
        lse2 += (tl.where(row_lse > float("-inf"), row_lse * LOG2_E, 1e30),)
        surprise += (tl.zeros((QUERIES, 4), tl.float32),)
        residue += (tl.zeros((QUERIES, 4), tl.float32),)

    # The thumbnail's cell that the last tile of keys lay in, where it ends, what is due to it.
    cell = 0
    edge = 0
    pending = 0.0
    bounds = _phases(first, stop, n_k, offset, window, CAUSAL, WINDOW, VALID, KEYS)
    for phase in tl.static_range(3):
        if phase == 2 or (not VALID and (phase == 1 or WINDOW)):
            for start in tl.range(bounds[phase], bounds[phase + 1], KEYS, num_stages=STAGES):
                keys = _load_keys(k, k_row, start, n_k, phase != 1, KEYS, DIM)
                key = start + tl.arange(0, KEYS)
                columns = tl.zeros((32, KEYS), tl.float32)
                sums = ()
                rests = ()
                for i in tl.static_range(TILES):
                    t = tl.dot(queries[i], keys, input_precision=PRECISION)
                    t = t * scale2 - lse2[i][:, None]
                    if phase != 1:
                        query = first + i * QUERIES + tl.arange(0, QUERIES)
                        seen = _visible(query, key, n_k, valid, offset, window,
                                        CAUSAL, WINDOW, VALID)
                        t = tl.where(seen, t, -1e30)
                    p = tl.exp2(t)
                    if ENTROPY:
                        more = tl.sum(_by_lane(p * t, QUERIES, KEYS), 2)
                        sums += (surprise[i] + more,)
                        rests += (residue[i] + (more - (sums[i] - surprise[i])),)
                    if RECEIVED or THUMBNAIL:
                        upper, lower = _halves(p, KEYS)
                        columns += upper
                        columns += lower
                if ENTROPY:
                    surprise = sums
                    residue = rests
                if RECEIVED or THUMBNAIL:
                    total = tl.sum(columns, 0)
                if RECEIVED:
                    tl.atomic_add(received + key, total.to(tl.float64), mask=key < n_k,
                                  sem="relaxed")
                if THUMBNAIL:
                    in_tile = tl.sum(total, 0)
                    if start + KEYS > edge:  # the tile does not lie in the cell of the last one
                        tl.atomic_add(thumbnail + cell, pending.to(tl.float64), sem="relaxed")
                        pending = 0.0
                        cell = (tl.cast(start, INDEX) * cols // n_k).to(tl.int32)
                        edge = tl.cdiv(tl.cast(cell + 1, INDEX) * n_k, cols).to(tl.int32)
                        if start + KEYS > edge and edge < n_k:
                            tl.atomic_add(thumbnail + key.to(INDEX) * cols // n_k,
                                          total.to(tl.float64), mask=key < n_k, sem="relaxed")
                        else:
                            pending = in_tile
                    else:
                        pending += in_tile
    if THUMBNAIL:
        tl.atomic_add(thumbnail + cell, pending.to(tl.float64), sem="relaxed")
    if ENTROPY:
        for i in tl.static_range(TILES):
            query = first + i * QUERIES + tl.arange(0, QUERIES)
            # lse2 was rounded, by a part of a unit that all terms of the row share: put it back.
            exact = tl.load(lse + which * n_q + query, mask=query < stop, other=0.0)
            exact = tl.where(lse2[i] < 1e30, exact, 0.0).to(tl.float64) * LOG2_E
            lost = tl.where(lse2[i] < 1e30, exact - lse2[i], 0.0).to(tl.float32)
            bits = lost - tl.sum(surprise[i] + residue[i], 1) * tl.exp2(-lost)
            nats = tl.maximum(bits / LOG2_E, 0.0)
            tl.store(entropy + which * n_q + query, nats, mask=query < stop)


@triton.jit
def _log_sum_exp_kernel(
    q, k, valid, lse,
    q_batch, q_head, q_row, k_batch, k_head, k_row, heads, group, n_q, n_k,
    scale2, offset, window, rows, chunks_per_row,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, VALID: tl.constexpr,
    TILES: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr,
    STAGES: tl.constexpr, INDEX: tl.constexpr, PRECISION: tl.constexpr,
):
    which, _row, first, stop = _chunk(n_q, rows, chunks_per_row, TILES * QUERIES, INDEX)
    q += which // heads * q_batch + which % heads * q_head
    k += which // heads * k_batch + which % heads // group * k_head
    valid += which // heads * n_k

    # Four running softmaxes a query, one for each lane that holds a part of its row; they are
    # merged at the end, so that no tile needs a maximum across threads.
    queries = ()
    highest = ()
    sums = ()
    for i in tl.static_range(TILES):
        queries += (_load_queries(q, q_row, first, stop, i, QUERIES, DIM),)
        highest += (tl.full((QUERIES, 4), -1e30, tl.float32),)
        sums += (tl.zeros((QUERIES, 4), tl.float32),)

    bounds = _phases(first, stop, n_k, offset, window, CAUSAL, WINDOW, VALID, KEYS)
    for phase in tl.static_range(3):
        if phase == 2 or (not VALID and (phase == 1 or WINDOW)):
            for start in tl.range(bounds[phase], bounds[phase + 1], KEYS, num_stages=STAGES):
                keys = _load_keys(k, k_row, start, n_k, phase != 1, KEYS, DIM)
                key = start + tl.arange(0, KEYS)
                new_highest = ()
                new_sums = ()
                for i in tl.static_range(TILES):
                    s = tl.dot(queries[i], keys, input_precision=PRECISION)
                    if phase != 1:
                        query = first + i * QUERIES + tl.arange(0, QUERIES)
                        seen = _visible(query, key, n_k, valid, offset, window,
                                        CAUSAL, WINDOW, VALID)
                        s = tl.where(seen, s, float("-inf"))
                    s = _by_lane(s, QUERIES, KEYS)
                    high = tl.maximum(highest[i], tl.max(s, 2) * scale2)
                    p = tl.exp2(s * scale2 - high[:, :, None])
                    new_sums += (sums[i] * tl.exp2(highest[i] - high) + tl.sum(p, 2),)
                    new_highest += (high,)
                highest = new_highest
                sums = new_sums
    for i in tl.static_range(TILES):
        query = first + i * QUERIES + tl.arange(0, QUERIES)
        high = tl.max(highest[i], 1)
        total = tl.sum(sums[i] * tl.exp2(highest[i] - high[:, None]), 1)
        nats = high.to(tl.float64) / LOG2_E + tl.log(tl.where(total > 0, total, 1.0))
        nats = tl.where(total > 0, nats.to(tl.float32), float("-inf"))
        tl.store(lse + which * n_q + query, nats, mask=query < stop)
# fmt: on


def _tiling(q: Tensor, rows: int) -> dict[str, int]:
    """How many tiles of queries a program owns, and how large they and the tiles of keys are."""
    batch, heads, n_q, head_dim = q.shape
    if q.dtype == torch.float32:  # its products run on slower units and take twice the room
        return {"TILES": 1, "KEYS": 32, "STAGES": 1}
    tiles = 4 if head_dim <= 64 else 2
    # The more tiles, the fewer sums across threads; but a chunk must not outgrow a row of the
    # thumbnail by much, and short inputs need enough programs to fill the device.
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


def _check(
    q: Tensor, k: Tensor, scale: float, window: int | None, key_valid: Tensor | None
) -> None:
    if q.ndim != 4 or k.ndim != 4 or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(
            "expected q (batch, heads, queries, head_dim) and k (batch, kv_heads, keys, head_dim) "
            f"with the same batch and head_dim, got {tuple(q.shape)} and {tuple(k.shape)}."
        )
    if q.shape[1] % k.shape[1]:
        raise ValueError(
            f"heads ({q.shape[1]}) must be a multiple of kv_heads ({k.shape[1]}): "
            "every key head serves the same number of query heads."
        )
    if q.shape[3] not in HEAD_DIMS:
        raise ValueError(
            f"the Triton statistics take a head_dim of {', '.join(map(str, HEAD_DIMS))}, got "
            f"{q.shape[3]}. Use the blocked torch statistics for other sizes."
        )
    if q.dtype != k.dtype or q.dtype not in DTYPES:
        raise ValueError(
            "the Triton statistics take q and k in one dtype of bfloat16, float16 and float32, got "
            f"{q.dtype} and {k.dtype}. Use the blocked torch statistics for float64."
        )
    if not scale > 0:
        raise ValueError(f"scale must be positive, got {scale}.")
    if window is not None and window < 1:
        raise ValueError(f"window counts the keys a query sees, its own included: got {window}.")
    if key_valid is not None and (
        key_valid.dtype != torch.bool or key_valid.shape != (k.shape[0], k.shape[2])
    ):
        raise ValueError(
            f"key_valid: expected bool (batch, keys) {(k.shape[0], k.shape[2])}, got "
            f"{key_valid.dtype} {tuple(key_valid.shape)}."
        )


def _arguments(
    q: Tensor,
    k: Tensor,
    scale: float,
    causal: bool,
    causal_offset: int | None,
    window: int | None,
    key_valid: Tensor | None,
) -> dict[str, Any]:
    """The arguments that both kernels take, checked."""
    _check(q, k, scale, window, key_valid)
    q = q if q.stride(3) == 1 else q.contiguous()
    k = k if k.stride(3) == 1 else k.contiguous()
    n_q, n_k = q.shape[2], k.shape[2]
    strides = dict(zip(("q_batch", "q_head", "q_row"), q.stride()[:3], strict=True))
    strides |= dict(zip(("k_batch", "k_head", "k_row"), k.stride()[:3], strict=True))
    return strides | {
        "q": q,
        "k": k,
        # Triton loads bools as bytes; without a mask any pointer will do.
        "valid": q if key_valid is None else key_valid.contiguous().view(torch.uint8),
        "heads": q.shape[1],
        "group": q.shape[1] // k.shape[1],
        "n_q": n_q,
        "n_k": n_k,
        "scale2": scale * LOG2_E.value,
        "offset": n_k - n_q if causal_offset is None else causal_offset,
        "window": window or 0,
        "CAUSAL": causal,
        "WINDOW": window is not None,
        "VALID": key_valid is not None,
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
    with torch.cuda.device_of(q):
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
    causal: bool,
    causal_offset: int | None = None,
    window: int | None = None,
    key_valid: Tensor | None = None,
) -> Tensor:
    """The log-sum-exp of each query's visible scores, in nats: (batch, heads, queries) float32.

    -inf where a query sees nothing. The arguments are those of `statistics`.
    """
    arguments = _arguments(q, k, scale, causal, causal_offset, window, key_valid)
    lse = q.new_full(q.shape[:3], -math.inf, dtype=torch.float32)
    _launch(_log_sum_exp_kernel, arguments | {"lse": lse}, 1, 1, _log_sum_exp_tiling(q))
    return lse


def statistics(
    q: Tensor,
    k: Tensor,
    lse: Tensor | None = None,
    *,
    scale: float,
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
        q: Queries, (batch, heads, queries, head_dim).
        k: Keys, (batch, kv_heads, keys, head_dim); heads is a multiple of kv_heads.
        lse: Log-sum-exp of each row in nats, (batch, heads, queries); computed when None.
        scale: Factor on q . k, positive.
        causal: Whether query i sees keys j <= i + causal_offset only.
        causal_offset: Where the diagonal begins; None aligns it to the end, keys - queries.
        window: Query i sees keys j > i + causal_offset - window only: with causal, the last
            `window` keys, its own included.
        key_valid: Keys that may be seen at all, bool (batch, keys).
        entropy: Whether to return "entropy", (batch, heads, queries), in nats.
        received: Whether to return "received", (batch, heads, keys): the weight each key gets.
        thumbnail: (rows, cols) to return "thumbnail", (batch, heads, rows, cols): sums of the
            weights over queries with i * rows // queries == row and keys with
            j * cols // keys == col.

    Returns:
        The tensors asked for, float32. A query that sees nothing has no weights: entropy 0.
    """
    arguments = _arguments(q, k, scale, causal, causal_offset, window, key_valid)
    if lse is not None and lse.shape != q.shape[:3]:
        raise ValueError(
            f"lse: expected (batch, heads, queries) {tuple(q.shape[:3])}, got {tuple(lse.shape)}."
        )
    if thumbnail is not None and min(thumbnail) < 1:
        raise ValueError(f"thumbnail: expected (rows, cols) of at least 1, got {thumbnail}.")
    if lse is None:
        lse = q.new_full(q.shape[:3], -math.inf, dtype=torch.float32)
        _launch(_log_sum_exp_kernel, arguments | {"lse": lse}, 1, 1, _log_sum_exp_tiling(q))
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
    _launch(_statistics_kernel, arguments, rows, cols, _tiling(q, rows))
    return {name: tensor.float() for name, tensor in out.items() if shapes[name] is not None}
