"""The Triton kernels of `triton_statistics`, which states the formulas they compute.

A program owns a chunk of queries and streams their visible keys, one tile at a time: a matrix
product, then for each pair one multiply-add for the exponent t = log2 P, one exp2, one multiply-add
for the entropy and one addition for the column sums. The exponential sets the lower limit (16 per
clock on a Hopper multiprocessor), so the rest must stay cheap:

- Sums within a thread are cheap, sums across threads are not. `_by_lane` and `_halves` regroup a
  tile so that Triton adds up only the values that one thread holds, in the layout of Hopper's
  matrix instruction. This affects speed only: any layout yields the same sums. The rest is added
  across threads, once per program for the entropy, and once per tile of keys for the column sums,
  after all tiles of queries have been added.
- A chunk never crosses a row of the thumbnail, so a cell is a sum of column sums, at no cost per
  pair.
- Rows that do not count (past the end, or with no visible key) get an exponent near -1e30. It is
  finite, so that 0 * t is 0 and not NaN, and no full tile needs a mask.
- Only the tiles that cross the diagonal, the window's edge or the end of the keys are masked.
- A soft cap costs one exp2, one division and some multiply-adds more per pair. Without a cap,
  none of it is compiled.
"""

# Device code uses Triton's own types, which mypy does not know.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# mypy: disable-error-code="assignment,attr-defined"

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950216293335)  # log2(e) in float32


# fmt: off
@triton.jit
def _by_lane(x, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """(queries, keys) -> (queries, 4, keys / 4): each of four lanes holds one part."""
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
    """The i-th tile of a chunk's queries; zeros from `stop` on."""
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
    else:  # noqa: RET505  # Triton compiles one branch but requires both
        return tl.load(at)


@triton.jit
def _phases(first, stop, n_k, offset, window, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
            VALID: tl.constexpr, KEYS: tl.constexpr):
    """The four bounds of three ranges of key tiles for these queries: masked, full, masked."""
    begin, full, full_end, end = 0, 0, n_k, n_k
    if WINDOW:
        begin = tl.maximum(first + offset - window + 1, 0) // KEYS * KEYS
        full = tl.cdiv(tl.maximum(stop + offset - window, 0), KEYS) * KEYS
    if CAUSAL:
        end = tl.minimum(n_k, tl.maximum(stop + offset, 0))
        full_end = tl.minimum(n_k, tl.maximum(first + offset + 1, 0))
    if VALID:  # any key may be hidden: all tiles in the last range
        full = begin
        full_end = begin
    full = tl.maximum(begin, tl.minimum(full, end))
    return begin, full, tl.maximum(full, full_end // KEYS * KEYS), end


@triton.jit
def _visible(query, key, n_k, valid, offset, window, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
             VALID: tl.constexpr):
    """Which pairs of a tile are visible."""
    seen = (query >= 0)[:, None] & (key < n_k)[None, :]
    if CAUSAL:
        seen = seen & (key[None, :] <= query[:, None] + offset)
    if WINDOW:
        seen = seen & (key[None, :] > query[:, None] + offset - window)
    if VALID:
        seen = seen & (tl.load(valid + key, mask=key < n_k, other=0) != 0)[None, :]
    return seen


@triton.jit
def _capped(x, inner, outer):
    """A soft cap on q . k before scaling: tanh(x * inner) * outer, where inner is scale / cap.

    Near zero, where 1 - exp would cancel, the continued fraction of tanh to the power 7. Its
    leading x is exact, so that the cap does not magnify rounding errors. Both ways share one
    division.
    """
    square = (x * inner) * (x * inner)
    e = tl.exp2(tl.abs(x * inner) * (-2 * LOG2_E))
    near = square < 1
    top = tl.where(near, square * (5005 + square * (308 + square * 3)), 2 * e)
    bottom = tl.where(near, 15015 + square * (6930 + square * (350 + square * (28 / 9))), 1 + e)
    part = top / bottom
    far = (1 - part) * outer
    return tl.where(near, x - x * part, tl.where(x < 0, -far, far))


@triton.jit
def statistics_kernel(
    q, k, valid, lse, entropy, received, thumbnail,
    q_batch, q_head, q_row, k_batch, k_head, k_row, heads, group, n_q, n_k,
    scale2, inner, outer, offset, window, rows, cols, chunks_per_row,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, VALID: tl.constexpr, CAP: tl.constexpr,
    ENTROPY: tl.constexpr, RECEIVED: tl.constexpr, THUMBNAIL: tl.constexpr,
    TILES: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr,
    STAGES: tl.constexpr, INDEX: tl.constexpr, PRECISION: tl.constexpr,
):
    """The requested ones of entropy, received weight and thumbnail, for one chunk of queries."""
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
    surprise = ()  # the sum of P * log2 P so far, per lane
    residue = ()  # its rounding errors: a million keys are ten thousand additions
    for i in tl.static_range(TILES):
        query = first + i * QUERIES + tl.arange(0, QUERIES)
        row_lse = tl.load(lse + which * n_q + query, mask=query < stop, other=float("-inf"))
        queries += (_load_queries(q, q_row, first, stop, i, QUERIES, DIM),)
        lse2 += (tl.where(row_lse > float("-inf"), row_lse * LOG2_E, 1e30),)
        surprise += (tl.zeros((QUERIES, 4), tl.float32),)
        residue += (tl.zeros((QUERIES, 4), tl.float32),)

    # The thumbnail cell of the last tile of keys, where it ends, and the sum not yet added to it.
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
                    if CAP:
                        t = _capped(t, inner, outer)
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
                    if start + KEYS > edge:  # the tile is not within the cell of the last one
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
            # Undo the rounding of lse2, an error that all terms of the row share.
            exact = tl.load(lse + which * n_q + query, mask=query < stop, other=0.0)
            exact = tl.where(lse2[i] < 1e30, exact, 0.0).to(tl.float64) * LOG2_E
            lost = tl.where(lse2[i] < 1e30, exact - lse2[i], 0.0).to(tl.float32)
            bits = lost - tl.sum(surprise[i] + residue[i], 1) * tl.exp2(-lost)
            nats = tl.maximum(bits / LOG2_E, 0.0)
            tl.store(entropy + which * n_q + query, nats, mask=query < stop)


@triton.jit
def log_sum_exp_kernel(
    q, k, valid, lse,
    q_batch, q_head, q_row, k_batch, k_head, k_row, heads, group, n_q, n_k,
    scale2, inner, outer, offset, window, rows, chunks_per_row,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, VALID: tl.constexpr, CAP: tl.constexpr,
    TILES: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr,
    STAGES: tl.constexpr, INDEX: tl.constexpr, PRECISION: tl.constexpr,
):
    """The log-sum-exp of one chunk of queries."""
    which, _row, first, stop = _chunk(n_q, rows, chunks_per_row, TILES * QUERIES, INDEX)
    q += which // heads * q_batch + which % heads * q_head
    k += which // heads * k_batch + which % heads // group * k_head
    valid += which // heads * n_k

    # Four running softmaxes per query, one for each lane that holds a part of its row. They are
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
                    if CAP:
                        s = _capped(s, inner, outer)
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
