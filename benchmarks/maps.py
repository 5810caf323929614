"""Compare the statistics of a whole attention map with PyTorch's own forward pass.

The contestants are the fused causal forward pass on the same q, k and v (on CUDA by cuDNN and by
flash), and the summary (entropy, received, thumbnail and previous, in one pass) with the
log-sum-exp given, as a forward pass returns it, and computed inside. Equality first: entropy,
received and thumbnail are compared with float64 on sampled rows, keys and one cell of one head.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import command
from benchmarks.command import Say, option, positive, row_as_json
from clearhead import timing
from clearhead.maps import AttentionMap, Summary
from clearhead.masks import Mask

_TOLERANCE = 1e-4  # of the largest value of a statistic
_LONG = {"cpu": 8_192, "cuda": 524_288}  # tokens from which a run takes a second


@dataclass(frozen=True)
class Settings(command.Settings):
    """Settings of the maps benchmark."""

    tokens: tuple[int, ...] = option((16_384,), "Sequence lengths.", type=positive)
    heads: int = option(12, "Number of heads.", type=positive)
    head_dim: int = option(64, "Width of a head.", type=positive)
    dense: bool = option(False, "Find the length at which dense weights do not fit (CUDA only).")

    def quick(self) -> Self:
        """One tiny map."""
        return replace(self, tokens=(48,), heads=3, head_dim=8, rounds=1, dense=False)

    def check(self) -> None:
        """Dense weights on the CPU would only make it swap."""
        super().check()
        if self.dense and self.device != "cuda":
            raise ValueError("--dense: needs --device cuda; the CPU would swap.")


def measure(settings: Settings, say: Say) -> dict[str, Any]:
    """Run the benchmark; everything that was measured, as plain data."""
    found = command.header("maps", settings)
    found |= {"heads": settings.heads, "head_dim": settings.head_dim, "cases": []}
    for tokens in settings.tokens:
        say(f"{tokens:,} tokens")
        found["cases"].append(_compare(settings, tokens))
    if settings.dense:
        found["dense_weights"] = _dense(settings)
    return found


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The results as text."""
    for case in found["cases"]:
        yield (
            f"{case['tokens']:,} tokens, {found['heads']} heads x {found['head_dim']}, "
            f"{found['dtype']}, {found['device']}"
        )
        for row in case["rows"]:
            yield command.row_line(row, base="the forward pass")


def _summary(m: AttentionMap) -> Summary:
    cells = min(256, m.shape[2])
    return m.summary(entropy=True, received=True, thumbnail=(cells, cells), previous=True)


def _compare(settings: Settings, tokens: int) -> dict[str, Any]:
    """All contestants at one length."""
    torch.manual_seed(0)
    shape = (1, settings.heads, tokens, settings.head_dim)
    options = {"device": settings.device, "dtype": settings.torch_dtype()}
    q, k, v = (torch.randn(shape, **options) for _ in range(3))  # type: ignore[call-overload]
    causal = Mask.causal()
    lse = AttentionMap(q, k, causal).lse

    def forward(*backends: SDPBackend) -> Callable[[], Tensor]:
        def run() -> Tensor:
            with sdpa_kernel(list(backends)):
                return scaled_dot_product_attention(q, k, v, is_causal=True)

        return run

    def given() -> Summary:
        return _summary(AttentionMap(q, k, causal, lse=lse))

    def inside() -> Summary:
        return _summary(AttentionMap(q, k, causal))

    cuda = settings.device == "cuda"
    forwards = {"forward, SDPA": forward(SDPBackend.FLASH_ATTENTION, SDPBackend.MATH)}
    if cuda:
        forwards = {
            "forward, cuDNN": forward(SDPBackend.CUDNN_ATTENTION),
            "forward, flash": forward(SDPBackend.FLASH_ATTENTION),
        }
    base = next(iter(forwards))  # what the others are compared with
    contestants = [
        *(timing.Contestant(name, run, ours=name == base) for name, run in forwards.items()),
        timing.Contestant("summary, log-sum-exp given", given, lambda: _gap(q, k, given())),
        timing.Contestant("summary, log-sum-exp inside", inside, lambda: _gap(q, k, inside())),
    ]
    warm_ups = 1 if tokens >= _LONG[settings.device] else 3
    rows = settings.race(contestants, _TOLERANCE, warm_ups=warm_ups)
    case: dict[str, Any] = {"tokens": tokens, "rows": [row_as_json(row) for row in rows]}
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        given()
        case["peak_gib"] = {
            "in_all": torch.cuda.max_memory_allocated() / 2**30,
            "of_it_q_k_v_and_log_sum_exp": held / 2**30,
        }
    return case


def _gap(q: Tensor, k: Tensor, found: Summary) -> float:
    """The largest difference from float64 on samples of one head, relative to the largest value."""
    _, heads, tokens, head_dim = q.shape
    head, scale = heads // 2, head_dim**-0.5
    generator = torch.Generator().manual_seed(0)
    sample = torch.randint(tokens, (16,), generator=generator).to(q.device)
    positions = torch.arange(tokens, device=q.device)
    slabs = torch.split(positions, max(1, (2**28 if q.is_cuda else 2**24) // tokens))

    def scores(rows: Tensor, cols: Tensor) -> Tensor:
        product = q[0, head, rows].double() @ k[0, head, cols].double().T * scale
        hidden: Tensor = product.masked_fill(cols > rows[:, None], -torch.inf)
        return hidden

    lse = torch.cat([scores(rows, positions).logsumexp(-1) for rows in slabs])
    weights = (scores(sample, positions) - lse[sample, None]).exp()
    received = torch.zeros(len(sample), dtype=torch.float64, device=q.device)
    for rows in slabs:
        received += (scores(rows, sample) - lse[rows, None]).exp().sum(0)
    assert found.entropy is not None
    assert found.received is not None
    assert found.thumbnail is not None
    cells = found.thumbnail.shape[2]
    row, col = cells * 3 // 4, cells // 3
    inside_rows = positions[positions * cells // tokens == row]
    inside_cols = positions[positions * cells // tokens == col]
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
        try:
            _build_dense((1, settings.heads, tokens, settings.head_dim), settings.torch_dtype())
            fits = True
        except torch.OutOfMemoryError:
            fits = False
        gib = torch.cuda.max_memory_allocated() / 2**30
        found.append({"tokens": tokens, "fits": fits, "peak_gib_reached": round(gib, 1)})
    return found


def _build_dense(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    q, k = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(2))
    hidden = torch.ones(shape[2], shape[2], device="cuda", dtype=torch.bool).triu_(1)
    scores = (q @ k.mT * shape[3] ** -0.5).masked_fill_(hidden, -torch.inf)
    scores.softmax(-1, dtype=torch.float32).to(dtype).sum()


main = partial(command.main, "maps", Settings, measure, lines, __doc__, "--tokens 4096 16384")

if __name__ == "__main__":
    main()
