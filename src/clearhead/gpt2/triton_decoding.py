"""The Triton kernels behind `cuda_decoding.py`: five per block, and two at the end.

    project   norm1, then queries, keys and values; keys and values go straight into the cache
              (with several rows, each norm is a separate kernel)
    attend    one program per head; with one row, one program per chunk of a head's keys
    mix       (chunks joined,) out_proj, added to x
    project   norm2, expand, GELU
    mix       project, added to x
    project   the last norm and the head: logits, and the best one per program
    follow    the best overall: the next token, its vector, and the next index

With one row all kernels are limited by memory, so the weights are requested before anything else.
With `PDL` (programmatic dependent launch, Hopper and later) a kernel starts while the previous one
still runs, requests its weights, and only then waits for that kernel's results. Until then it reads
nothing that changes during generation.

Results are rounded where PyTorch's own kernels round: after a norm, a product with its bias, a GELU
and a sum. Everything else is float32.
"""

# Device code uses Triton's types, which mypy cannot check.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# mypy: disable-error-code="assignment,attr-defined"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

QKV = tl.constexpr(0)  # what `project` does with its products
GELU = tl.constexpr(1)
LOGITS = tl.constexpr(2)
NOTHING = tl.constexpr(-1.0e30)  # below every score, yet finite, so that NOTHING - NOTHING is 0


# fmt: off
@triton.jit
def _begin(PDL: tl.constexpr):
    """Allow the next kernel to start early."""
    if PDL:
        cuda.gdc_launch_dependents()


@triton.jit
def _wait(PDL: tl.constexpr):
    """Wait until all previous kernels have finished."""
    if PDL:
        cuda.gdc_wait()


@triton.jit
def _gelu(x):
    """GELU by tanh: 0.5 x (1 + tanh(u)) = x / (1 + exp(-2 u))."""
    u = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return x / (1.0 + tl.exp(-2.0 * u))


@triton.jit
def _finish(
    products, bias, row, which, outputs, keep, x_dtype: tl.constexpr,
    out, keys, values, indices, capacity, best, best_at, bad, block, blocks,
    OUTPUTS: tl.constexpr, HEAD_DIM: tl.constexpr, MODE: tl.constexpr,
):
    """Add the bias to the products of one row, and store them as MODE says."""
    found = (products + bias).to(x_dtype)
    at = row.to(tl.int64) * OUTPUTS + outputs
    if MODE == QKV:
        if which == 0:
            tl.store(out + at, found, mask=keep)
        else:
            head = row * (OUTPUTS // HEAD_DIM) + outputs // HEAD_DIM
            index = tl.load(indices + row)
            at = (head.to(tl.int64) * capacity + index) * HEAD_DIM + outputs % HEAD_DIM
            if which == 1:
                tl.store(keys + at, found, mask=keep)
            else:
                tl.store(values + at, found, mask=keep)
    if MODE == GELU:
        tl.store(out + at, _gelu(found.to(tl.float32)).to(x_dtype), mask=keep)
    if MODE == LOGITS:
        tl.store(out + at, found, mask=keep)
        logits = found.to(tl.float32)
        wrong = (logits != logits) | (logits == float("inf"))
        if tl.max((wrong & keep).to(tl.int32), 0) > 0:
            tl.store(bad, 1)
        logits = tl.where(keep, logits, -float("inf"))
        top = tl.max(logits, 0)
        tl.store(best + row * blocks + block, top)
        # The first of equal values, like torch.argmax.
        first = tl.min(tl.where(logits == top, outputs, OUTPUTS), 0)
        tl.store(best_at + row * blocks + block, first)


@triton.jit
def _products(
    source, weight, rows, there, outputs, keep,
    INPUTS: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Several rows of the source (batch, INPUTS) times some rows of the weight."""
    inputs = tl.arange(0, CHUNK)
    many = tl.zeros([ROWS, BLOCK], tl.float32)
    if CHUNK >= INPUTS:  # one load, requested before the wait
        inside = inputs < INPUTS
        tile = tl.load(
            weight + outputs[:, None] * INPUTS + inputs[None, :],
            mask=keep[:, None] & inside[None, :], other=0.0,
        )
        _wait(PDL)
        at = rows[:, None] * INPUTS + inputs[None, :]
        v = tl.load(source + at, mask=there[:, None] & inside[None, :], other=0.0)
        many = tl.dot(v, tile.T, many, input_precision="ieee")
    else:
        _wait(PDL)
        for first in range(0, INPUTS, CHUNK):
            inside = first + inputs < INPUTS
            tile = tl.load(
                weight + outputs[:, None] * INPUTS + first + inputs[None, :],
                mask=keep[:, None] & inside[None, :], other=0.0,
            )
            at = rows[:, None] * INPUTS + first + inputs[None, :]
            v = tl.load(source + at, mask=there[:, None] & inside[None, :], other=0.0)
            many = tl.dot(v, tile.T, many, input_precision="ieee")
    return many


@triton.jit
def norm(
    x, gain, shift, eps, out, INPUTS: tl.constexpr, CHUNK: tl.constexpr, PDL: tl.constexpr
):
    """Normalise one row of x; with a single row, `project` does it itself."""
    _begin(PDL)
    inputs = tl.arange(0, CHUNK)
    real = inputs < INPUTS
    g = tl.load(gain + inputs, mask=real, other=0.0).to(tl.float32)
    s = tl.load(shift + inputs, mask=real, other=0.0).to(tl.float32)
    _wait(PDL)
    at = tl.program_id(0) * INPUTS + inputs
    normed = _normed(tl.load(x + at, mask=real, other=0.0), g, s, eps, real, INPUTS)
    tl.store(out + at, normed, mask=real)


@triton.jit
def _normed(x, gain, shift, eps, real, INPUTS: tl.constexpr):
    """LayerNorm of one vector, in float32, rounded to the dtype of x."""
    v = x.to(tl.float32)
    v = tl.where(real, v - tl.sum(v, 0) / INPUTS, 0.0)
    scale = tl.rsqrt(tl.sum(v * v, 0) / INPUTS + eps)
    return (v * scale * gain + shift).to(x.dtype)


@triton.jit
def project(
    x, gain, shift, eps,
    weight_a, weight_b, weight_c, bias_a, bias_b, bias_c,
    out, keys, values, indices, capacity, best, best_at, bad, batch,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, HEAD_DIM: tl.constexpr, MODE: tl.constexpr,
    BIAS: tl.constexpr, ONE_ROW: tl.constexpr,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, PDL: tl.constexpr,
):
    """Multiply the normalised x (batch, INPUTS) with the weight (OUTPUTS, INPUTS); see `_finish`.

    With ONE_ROW it normalises x itself, otherwise `norm` has done so.
    """
    _begin(PDL)
    blocks = tl.cdiv(OUTPUTS, BLOCK)
    block = tl.program_id(0) % blocks
    which = tl.program_id(0) // blocks
    weight = weight_a
    bias = bias_a
    if MODE == QKV:
        if which == 1:
            weight = weight_b
            bias = bias_b
        if which == 2:
            weight = weight_c
            bias = bias_c
    outputs = block * BLOCK + tl.arange(0, BLOCK)
    keep = outputs < OUTPUTS
    inputs = tl.arange(0, CHUNK)
    added = tl.zeros([BLOCK], tl.float32)
    if BIAS:
        added = tl.load(bias + outputs, mask=keep, other=0.0).to(tl.float32)
    if ONE_ROW:  # CHUNK covers INPUTS
        real = inputs < INPUTS
        tile = tl.load(
            weight + outputs[:, None] * INPUTS + inputs[None, :],
            mask=keep[:, None] & real[None, :], other=0.0,
        )
        g = tl.load(gain + inputs, mask=real, other=0.0).to(tl.float32)
        s = tl.load(shift + inputs, mask=real, other=0.0).to(tl.float32)
        _wait(PDL)
        row = tl.program_id(1)
        normed = _normed(tl.load(x + inputs, mask=real, other=0.0), g, s, eps, real, INPUTS)
        products = tl.sum(tile.to(tl.float32) * normed.to(tl.float32)[None, :], 1)
        _finish(
            products, added, row, which, outputs, keep, x.dtype.element_ty,
            out, keys, values, indices, capacity, best, best_at, bad, block, blocks,
            OUTPUTS, HEAD_DIM, MODE,
        )
    else:
        rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        there = rows < batch
        many = _products(
            x, weight, rows, there, outputs, keep, INPUTS, BLOCK, CHUNK, ROWS, PDL
        )
        _finish_many(
            many, added, rows, there, which, outputs, keep, x.dtype.element_ty,
            out, keys, values, indices, capacity, best, best_at, bad, block, blocks,
            OUTPUTS, HEAD_DIM, MODE,
        )


@triton.jit
def _finish_many(
    products, bias, rows, there, which, outputs, keep, x_dtype: tl.constexpr,
    out, keys, values, indices, capacity, best, best_at, bad, block, blocks,
    OUTPUTS: tl.constexpr, HEAD_DIM: tl.constexpr, MODE: tl.constexpr,
):
    """`_finish` for several rows."""
    found = (products + bias[None, :]).to(x_dtype)
    real = there[:, None] & keep[None, :]
    at = rows[:, None].to(tl.int64) * OUTPUTS + outputs[None, :]
    if MODE == QKV:
        if which == 0:
            tl.store(out + at, found, mask=real)
        else:
            head = rows[:, None] * (OUTPUTS // HEAD_DIM) + outputs[None, :] // HEAD_DIM
            index = tl.load(indices + rows, mask=there, other=0)
            at = (head.to(tl.int64) * capacity + index[:, None]) * HEAD_DIM
            at += outputs[None, :] % HEAD_DIM
            if which == 1:
                tl.store(keys + at, found, mask=real)
            else:
                tl.store(values + at, found, mask=real)
    if MODE == GELU:
        tl.store(out + at, _gelu(found.to(tl.float32)).to(x_dtype), mask=real)
    if MODE == LOGITS:
        tl.store(out + at, found, mask=real)
        logits = found.to(tl.float32)
        wrong = (logits != logits) | (logits == float("inf"))
        if tl.max(tl.max((wrong & real).to(tl.int32), 1), 0) > 0:
            tl.store(bad, 1)
        logits = tl.where(real, logits, -float("inf"))
        top = tl.max(logits, 1)
        first = tl.min(tl.where(logits == top[:, None], outputs[None, :], OUTPUTS), 1)
        tl.store(best + rows * blocks + block, top, mask=there)
        tl.store(best_at + rows * blocks + block, first, mask=there)


@triton.jit
def attend(
    queries, keys, values, indices, padding, out, part, part_max, part_sum, capacity, scale,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, KEYS: tl.constexpr, PIECES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Attention of one head of one row over one chunk of its keys.

    With one chunk it stores the context vector, otherwise the partial sums that `_join` combines.
    """
    _begin(PDL)
    which = tl.program_id(0)
    piece = tl.program_id(1)
    row = which // HEADS
    begin = tl.load(padding + row)
    _wait(PDL)
    stop = tl.load(indices + row) + 1
    size = tl.cdiv(tl.cdiv(stop - begin, PIECES), KEYS) * KEYS
    begin += piece * size
    stop = tl.minimum(stop, begin + size)
    dims = tl.arange(0, HEAD_DIM)
    q = tl.load(queries + which * HEAD_DIM + dims).to(tl.float32) * scale
    highest = tl.full([], NOTHING, tl.float32)
    total = tl.full([], 0.0, tl.float32)
    context = tl.zeros([HEAD_DIM], tl.float32)
    for first in range(begin, stop, KEYS):
        key = first + tl.arange(0, KEYS)
        real = key < stop
        at = (which.to(tl.int64) * capacity + key)[:, None] * HEAD_DIM + dims[None, :]
        k = tl.load(keys + at, mask=real[:, None], other=0.0).to(tl.float32)
        v = tl.load(values + at, mask=real[:, None], other=0.0).to(tl.float32)
        scores = tl.where(real, tl.sum(k * q[None, :], 1), NOTHING)
        higher = tl.maximum(highest, tl.max(scores, 0))
        weights = tl.where(real, tl.exp(scores - higher), 0.0)
        shrink = tl.exp(highest - higher)
        total = total * shrink + tl.sum(weights, 0)
        context = context * shrink + tl.sum(weights[:, None] * v, 0)
        highest = higher
    here = which * PIECES + piece
    if PIECES == 1:
        tl.store(out + here * HEAD_DIM + dims, (context / total).to(out.dtype.element_ty))
    else:
        tl.store(part + here * HEAD_DIM + dims, context)
        tl.store(part_max + here, highest)
        tl.store(part_sum + here, total)


@triton.jit
def _join(
    part, part_max, part_sum, CHUNK: tl.constexpr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    PIECES: tl.constexpr,
):
    """Combine the chunks into the context vectors of all heads, side by side."""
    HEADS_UP: tl.constexpr = CHUNK // HEAD_DIM
    head = tl.arange(0, HEADS_UP)[:, None]
    here = head * PIECES + tl.arange(0, PIECES)[None, :]
    real = (head < HEADS) & (here >= 0)
    highest = tl.load(part_max + here, mask=real, other=0.0)
    share = tl.exp(highest - tl.max(highest, 1)[:, None])
    total = tl.sum(share * tl.load(part_sum + here, mask=real, other=1.0), 1)
    at = here[:, :, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, None, :]
    sums = tl.load(part + at, mask=real[:, :, None], other=0.0)
    context = tl.sum(share[:, :, None] * sums, 1) / total[:, None]
    return context.reshape(CHUNK)  # (heads, head_dim) -> (heads * head_dim,)


@triton.jit
def mix(
    x, source, part_max, part_sum, weight, bias, batch,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    PIECES: tl.constexpr, ONE_ROW: tl.constexpr,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, PDL: tl.constexpr,
):
    """Add source (batch, INPUTS) times the weight (OUTPUTS, INPUTS), and the bias, to x.

    With PIECES above 1 (ONE_ROW only), the source is the partial sums stored by `attend`.
    """
    _begin(PDL)
    dtype = x.dtype.element_ty
    outputs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = outputs < OUTPUTS
    inputs = tl.arange(0, CHUNK)
    added = tl.load(bias + outputs, mask=keep, other=0.0).to(tl.float32)
    if ONE_ROW:
        real = inputs < INPUTS
        tile = tl.load(
            weight + outputs[:, None] * INPUTS + inputs[None, :],
            mask=keep[:, None] & real[None, :], other=0.0,
        )
        _wait(PDL)
        if PIECES > 1:
            v = _join(source, part_max, part_sum, CHUNK, HEADS, HEAD_DIM, PIECES).to(dtype)
        else:
            v = tl.load(source + inputs, mask=real, other=0.0)
        products = tl.sum(tile.to(tl.float32) * v.to(tl.float32)[None, :], 1)
        found = (products + added).to(dtype).to(tl.float32)
        old = tl.load(x + outputs, mask=keep, other=0.0).to(tl.float32)
        tl.store(x + outputs, (old + found).to(dtype), mask=keep)
    else:
        rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        there = rows < batch
        many = _products(
            source, weight, rows, there, outputs, keep, INPUTS, BLOCK, CHUNK, ROWS, PDL
        )
        found = (many + added[None, :]).to(dtype).to(tl.float32)
        at = rows[:, None] * OUTPUTS + outputs[None, :]
        real = there[:, None] & keep[None, :]
        old = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
        tl.store(x + at, (old + found).to(dtype), mask=real)


@triton.jit
def follow(
    best, best_at, picked, history, indices, padding, token, position, x, capacity, blocks,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, BLOCKS: tl.constexpr, CHOSEN: tl.constexpr,
    PDL: tl.constexpr,
):
    """Record the next token of a row, put its vector into x, and advance the index."""
    _begin(PDL)
    row = tl.program_id(0)
    missing = tl.load(padding + row)
    _wait(PDL)
    if CHOSEN:
        chosen = tl.load(picked + row)
    else:
        number = tl.arange(0, BLOCKS)
        tops = tl.load(best + row * blocks + number, mask=number < blocks, other=-float("inf"))
        ats = tl.load(best_at + row * blocks + number, mask=number < blocks, other=2147483647)
        # All logits are minus infinity or NaN: take any token; `bad` reports NaN.
        chosen = tl.min(tl.where(tops == tl.max(tops, 0), ats, 2147483647), 0)
        chosen = tl.where(chosen == 2147483647, 0, chosen).to(tl.int64)
    index = tl.load(indices + row) + 1
    tl.debug_barrier()  # every warp reads the index before one of them advances it
    tl.store(history + row.to(tl.int64) * capacity + index, chosen)
    tl.store(indices + row, index)
    column = tl.arange(0, COLUMNS)
    real = column < WIDTH
    vector = tl.load(token + chosen * WIDTH + column, mask=real).to(tl.float32)
    here = tl.load(position + (index - missing) * WIDTH + column, mask=real).to(tl.float32)
    tl.store(x + row * WIDTH + column, (vector + here).to(x.dtype.element_ty), mask=real)
# fmt: on
