"""The maps benchmark: the statistics of a whole map beside PyTorch's own forward pass.

Equality first: entropy, received and thumbnail are compared with float64 on sampled rows, keys and
one cell of one head. Then the contestants take turns: the fused causal forward pass on the same q,
k and v (on CUDA by cuDNN and by flash), and the summary (entropy + received + thumbnail + previous)
with the log-sum-exp given by a forward pass, and with it computed inside.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from clearhead import timing
from clearhead.kernels import attend_with_lse
from clearhead.maps import AttentionMap, Summary
from clearhead.masks import Mask

_PACKAGES = ("torch", "triton", "numpy", "clearhead")
_TOLERANCE = 1e-4  # of the largest value of a statistic
_LONG_ON_CPU, _LONG_ON_CUDA = 8_192, 524_288  # tokens from which a run takes a second


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Args:
        tokens: The lengths.
        heads: How many heads.
        head_dim: Their width.
        device: "cpu" or "cuda".
        dtype: "float32" and so on.
        rounds: Interleaved rounds at each length.
        dense: Whether to build the weights, too, at growing lengths, until memory runs out.
        seconds: The rounds of one length end after this time.
    """

    tokens: Sequence[int]
    heads: int = 12
    head_dim: int = 64
    device: str = "cpu"
    dtype: str = "float32"
    rounds: int = 9
    dense: bool = False
    seconds: float = math.inf


def summarise(m: AttentionMap) -> Summary:
    """What the benchmark asks of a map."""
    cells = min(256, m.shape[2])
    return m.summary(entropy=True, received=True, thumbnail=(cells, cells), previous=True)


def measure(
    settings: Settings,
    *,
    say: Callable[[str, int], Callable[[], None]] = lambda *_: timing.nothing,
) -> dict[str, Any]:
    """Run the benchmark; everything found, as plain data.

    Args:
        settings: What and how.
        say: Told a title and a number of rounds; gives what to call after each round.
    """
    found: dict[str, Any] = {
        "schema": timing.SCHEMA,
        "benchmark": "maps",
        **timing.environment(_PACKAGES),
        "threads": torch.get_num_threads(),
        "heads": settings.heads,
        "head_dim": settings.head_dim,
        "dtype": settings.dtype,
        "device": settings.device,
        "cases": [],
    }
    if settings.device == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
    for tokens in settings.tokens:
        tick = say(f"{tokens:,} tokens", settings.rounds)
        found["cases"].append(_compare(settings, tokens, tick))
    if settings.dense:
        found["dense_weights"] = _dense(settings)
    return found


def _compare(settings: Settings, tokens: int, tick: Callable[[], None]) -> dict[str, Any]:
    """All contestants at one length, in turns."""
    torch.manual_seed(0)
    shape = (1, settings.heads, tokens, settings.head_dim)
    dtype = getattr(torch, settings.dtype)
    q, k, v = (torch.randn(shape, device=settings.device, dtype=dtype) for _ in range(3))
    causal = Mask.causal()
    lse = _given_lse(q, k, v)

    def forward(backend: SDPBackend | None) -> Callable[[], Tensor]:
        def run() -> Tensor:
            if backend is None:
                return scaled_dot_product_attention(q, k, v, is_causal=True)
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v, is_causal=True)

        return run

    on_gpu = settings.device == "cuda"
    contestants = [
        timing.Contestant(
            "forward, cuDNN" if on_gpu else "forward, SDPA",
            forward(SDPBackend.CUDNN_ATTENTION if on_gpu else None),
            ours=True,  # what the others are compared with
        ),
        timing.Contestant(
            "summary, log-sum-exp given",
            lambda: summarise(AttentionMap(q, k, causal, lse=lse)),
            lambda: _gap(q, k, summarise(AttentionMap(q, k, causal, lse=lse))),
        ),
        timing.Contestant(
            "summary, log-sum-exp inside",
            lambda: summarise(AttentionMap(q, k, causal)),
            lambda: _gap(q, k, summarise(AttentionMap(q, k, causal))),
        ),
    ]
    if on_gpu:
        contestants.insert(
            1, timing.Contestant("forward, flash", forward(SDPBackend.FLASH_ATTENTION))
        )
    rows = timing.race(
        contestants,
        tolerance=_TOLERANCE,
        rounds=settings.rounds,
        seconds=settings.seconds,
        warm_ups=1 if tokens >= (_LONG_ON_CUDA if on_gpu else _LONG_ON_CPU) else 3,
        synchronize=torch.cuda.synchronize if on_gpu else timing.nothing,
        tick=tick,
    )
    case: dict[str, Any] = {"tokens": tokens, "rows": [row.as_json() for row in rows]}
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        summarise(AttentionMap(q, k, causal, lse=lse))
        case["peak_gib"] = {
            "in_all": torch.cuda.max_memory_allocated() / 2**30,
            "of_it_q_k_v_and_log_sum_exp": held / 2**30,
        }
    return case


def _given_lse(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The log-sum-exp as a fused forward pass gives it."""
    if q.device.type == "cuda":
        found: Tensor = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[1]
        return found.float()
    lse = attend_with_lse(q, k, v, Mask.causal())[1]
    return AttentionMap(q, k, Mask.causal()).lse if lse is None else lse


def _gap(q: Tensor, k: Tensor, found: Summary) -> float:
    """The largest difference from float64 on samples of one head, relative to the largest value."""
    _, heads, tokens, head_dim = q.shape
    head, scale = heads // 2, head_dim**-0.5
    generator = torch.Generator().manual_seed(0)
    sample = torch.randint(tokens, (16,), generator=generator).to(q.device)
    everything = torch.arange(tokens, device=q.device)
    slabs = torch.split(everything, max(1, (2**28 if q.is_cuda else 2**24) // tokens))

    def scores(rows: Tensor, cols: Tensor) -> Tensor:
        product = q[0, head, rows].double() @ k[0, head, cols].double().T * scale
        hidden: Tensor = product.masked_fill(cols > rows[:, None], -torch.inf)
        return hidden

    lse = torch.cat([scores(rows, everything).logsumexp(-1) for rows in slabs])
    weights = (scores(sample, everything) - lse[sample, None]).exp()
    received = torch.zeros(len(sample), dtype=torch.float64, device=q.device)
    for rows in slabs:
        received += (scores(rows, sample) - lse[rows, None]).exp().sum(0)
    assert found.entropy is not None
    assert found.received is not None
    assert found.thumbnail is not None
    cells = found.thumbnail.shape[2]
    row, col = cells * 3 // 4, cells // 3
    inside_rows = everything[everything * cells // tokens == row]
    inside_cols = everything[everything * cells // tokens == col]
    cell = (scores(inside_rows, inside_cols) - lse[inside_rows, None]).exp().sum()
    pairs = [
        (found.entropy[0, head, sample], torch.special.entr(weights).sum(-1)),
        (found.received[0, head, sample], received),
        (found.thumbnail[0, head, row, col], cell),
    ]
    return max(
        float((ours.double() - exact).abs().max() / exact.abs().max()) for ours, exact in pairs
    )


def _dense(settings: Settings) -> list[dict[str, Any]]:
    """Build the weights as eager implementations do, at growing lengths, until memory runs out."""
    found: list[dict[str, Any]] = []
    for tokens in (16_384, 32_768, 49_152, 65_536, 98_304):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        shape = (1, settings.heads, tokens, settings.head_dim)
        try:
            _build_dense(shape, settings)
            fits = True
        except torch.OutOfMemoryError:
            fits = False
        gib = torch.cuda.max_memory_allocated() / 2**30
        found.append({"tokens": tokens, "fits": fits, "peak_gib_reached": round(gib, 1)})
    return found


def _build_dense(shape: tuple[int, ...], settings: Settings) -> None:
    dtype = getattr(torch, settings.dtype)
    q, k = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(2))
    hidden = torch.ones(shape[2], shape[2], device="cuda", dtype=torch.bool).triu_(1)
    scores = (q @ k.mT * shape[3] ** -0.5).masked_fill_(hidden, -torch.inf)
    scores.softmax(-1, dtype=torch.float32).to(dtype).sum()
