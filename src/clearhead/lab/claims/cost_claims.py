"""Claims about time and memory. Times are ratios of interleaved runs, on a GPU if available."""

import math
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from clearhead import timing
from clearhead.lab.claims.claim import Finding, claim, does_not_hold, holds, holds_if, short

Runs = Mapping[str, Callable[[], object]]
Race = Callable[[Runs, bool], dict[str, timing.Row]]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def device() -> str:
    """The device to measure on: a GPU if available."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def device_name() -> str:
    """The same, for people."""
    return "GPU" if device() == "cuda" else "CPU"


def race(runs: Runs, quick: bool) -> dict[str, timing.Row]:
    """Time all of them in turn, in a new order every round, for about ten seconds."""
    synchronize = torch.cuda.synchronize if device() == "cuda" else timing.nothing
    contestants = [timing.Contestant(name, run) for name, run in runs.items()]
    with torch.no_grad():
        rows = timing.race(
            contestants,
            tolerance=0,
            rounds=9 if quick else 40,
            seconds=1.0 if quick else 10.0,
            synchronize=synchronize,
        )
    return {row.name: row for row in rows}


class _Living(TorchFunctionMode):
    """Adds up the bytes of all tensors created inside that are still alive; `peak` is the most.

    It sees what functions return. What a function allocates and frees itself is not counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.peak = 0
        self._known: set[int] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        for given in args:
            if isinstance(given, Tensor):  # inputs are not counted, nor are views of them
                self._known.add(given.untyped_storage().data_ptr())
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple) else (made,):
            if not isinstance(tensor, Tensor):
                continue
            storage = tensor.untyped_storage()
            address, size = storage.data_ptr(), storage.nbytes()
            if address not in self._known:
                self._known.add(address)
                self.alive += size
                self.peak = max(self.peak, self.alive)
                weakref.finalize(storage, self._gone, address, size)
        return made

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.alive -= size


def peak_bytes(run: Callable[[], object]) -> int:
    """The peak memory of a run in bytes of tensors, not counting its inputs."""
    with torch.no_grad(), _Living() as living:
        run()
    return int(living.peak)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention that materialises the tokens × tokens scores."""
    tokens = q.shape[-2]
    future = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(diagonal=1)
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    return torch.softmax(scores.masked_fill(future, -torch.inf), dim=-1) @ v


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same with PyTorch's fused kernel."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def one_per_head(x: Tensor, weights: Tensor, attend: Attend) -> Tensor:
    """One projection per head, one head after the other; weights (3, heads, head_dim, d_in)."""
    contexts = []
    for w_query, w_key, w_value in weights.unbind(1):
        contexts.append(attend(F.linear(x, w_query), F.linear(x, w_key), F.linear(x, w_value)))
    return torch.cat(contexts, dim=-1)


def split(x: Tensor, weights: Tensor, attend: Attend) -> Tensor:
    """One projection each for queries, keys and values, split into heads; all heads together."""
    heads, head_dim = weights.shape[1:3]
    q, k, v = (
        F.linear(x, w.flatten(0, 1)).view(*x.shape[:2], heads, head_dim).transpose(1, 2)
        for w in weights
    )
    return attend(q, k, v).transpose(1, 2).flatten(2)


@claim(
    "split-projection",
    "One projection split into heads is faster than one projection for each head.",
    timed=True,
)
def split_projection_is_faster(race: Race = race, *, quick: bool = False, seed: int = 0) -> Finding:
    """Width 768, 12 heads, short and long inputs, attention written out and fused.

    A few large products use a processor better than many small ones. But all heads together also
    materialise all their scores together, which takes twelve times the memory. So the result
    depends on the machine, on the length, and on whether scores are materialised at all.
    """
    torch.manual_seed(seed)
    weights = torch.randn(3, 12, 64, 768, device=device()) / 768**0.5
    ratios = {}
    for batch, tokens in ((2, 128),) if quick else ((2, 128), (8, 1024)):
        x = torch.randn(batch, tokens, 768, device=device())
        for name, attend in (("plain", plain), ("fused", fused)):
            torch.testing.assert_close(
                one_per_head(x, weights, attend), split(x, weights, attend), rtol=1e-3, atol=1e-3
            )
            runs: Runs = {
                "per head": lambda x=x, attend=attend: one_per_head(x, weights, attend),  # type: ignore[misc]  # mypy cannot infer a lambda with defaults
                "split": lambda x=x, attend=attend: split(x, weights, attend),  # type: ignore[misc]  # as above
            }
            rows = race(runs, quick)
            case = f"{name} with {batch} × {tokens:,} tokens"
            ratios[case] = timing.paired_ratio(rows["per head"], rows["split"])
    return _faster(ratios, f"on the {device_name()}, the speedup from splitting: ")


def _faster(ratios: Mapping[str, timing.Ratio], words: str) -> Finding:
    """The claim holds where the whole interval of the ratio is above 1."""
    figure = words + "; ".join(f"{case} {ratio.median:.2f}" for case, ratio in ratios.items())
    spread = "95 % intervals " + ", ".join(f"[{r.low:.2f}, {r.high:.2f}]" for r in ratios.values())
    spread += f" over {min(ratio.rounds for ratio in ratios.values())} rounds or more"
    wins = [case for case, ratio in ratios.items() if ratio.low > 1]
    numbers = {case: [r.median, r.low, r.high] for case, r in ratios.items()}
    if len(wins) == len(ratios):
        return holds(figure, spread, **numbers)
    if wins:
        return holds_if("attention is " + " or ".join(wins), figure, spread, **numbers)
    return does_not_hold(figure, spread, **numbers)


def fill_in_place(q: Tensor, k: Tensor, v: Tensor, future: Tensor) -> Tensor:
    """Plain attention that masks its scores with `masked_fill_`."""
    scores = q @ k.transpose(-2, -1)
    scores.masked_fill_(future, -torch.inf)
    return torch.softmax(scores, dim=-1) @ v


def fill_a_copy(q: Tensor, k: Tensor, v: Tensor, future: Tensor) -> Tensor:
    """The same with `masked_fill`."""
    scores = q @ k.transpose(-2, -1)
    scores = scores.masked_fill(future, -torch.inf)
    return torch.softmax(scores, dim=-1) @ v


@claim("in-place", "`masked_fill_` in place is more efficient.", timed=True)
def in_place_is_more_efficient(
    in_place: Callable[..., Tensor] = fill_in_place,
    race: Race = race,
    *,
    quick: bool = False,
    seed: int = 0,
) -> Finding:
    """Plain attention, 4 × 512 tokens, 12 heads: time and peak memory.

    A copy costs time. It does not raise the peak memory: softmax needs memory for its result as
    well, and by then the unmasked scores are freed.
    """
    torch.manual_seed(seed)
    batch = 1 if quick else 4
    q, k, v = torch.randn(3, batch, 12, 512, 64, device=device()).unbind()
    future = torch.ones(512, 512, dtype=torch.bool, device=device()).triu(diagonal=1)
    runs: Runs = {
        "in place": lambda: in_place(q, k, v, future),
        "copy": lambda: fill_a_copy(q, k, v, future),
    }
    memory = {name: peak_bytes(run) / 2**20 for name, run in runs.items()}
    rows = race(runs, quick)
    time = timing.paired_ratio(rows["copy"], rows["in place"])
    figure = (
        f"on the {device_name()}, in place is {time.median:.2f} times as fast; peak memory "
        f"{memory['in place']:.0f} MiB, with a copy {memory['copy']:.0f} MiB"
    )
    spread = f"95 % interval [{time.low:.2f}, {time.high:.2f}] over {time.rounds} rounds"
    numbers = {"time": [time.median, time.low, time.high], "mib": memory}
    better = [
        word
        for word, wins in (
            ("time", time.low > 1),
            ("memory", memory["in place"] < 0.99 * memory["copy"]),
        )
        if wins
    ]
    if len(better) == 2:
        return holds(figure, spread, **numbers)
    if better:
        return holds_if(f"efficient means {better[0]}", figure, spread, **numbers)
    return does_not_hold(figure, spread, **numbers)


def _exponent(ratio: float, factor: float) -> float:
    """The power of n by which a cost grows, if n × factor costs `ratio` times as much."""
    return math.log(ratio) / math.log(factor)


@claim("time-n-squared", "The time of attention grows with n².", timed=True)
def time_grows_with_n_squared(race: Race = race, *, quick: bool = False, seed: int = 0) -> Finding:
    """The power of n by which the time grows from n to 4 n tokens.

    First attention alone, 4 heads of 64 (12 on a GPU), then with its projections, width 768. Scores
    and weighted sum grow with n², fused or not: the fused kernel saves memory, not work. But
    projections grow with n, and while n is small they are most of the work.
    """
    torch.manual_seed(seed)
    weights = torch.randn(3, 12, 64, 768, device=device()) / 768**0.5
    heads, long = (12, 4096) if device() == "cuda" else (4, 1024)
    long //= 4 if quick else 1

    def core(attend: Attend, tokens: int) -> Callable[[], object]:
        q, k, v = torch.randn(3, 1, heads, tokens, 64, device=device()).unbind()
        return lambda: attend(q, k, v)

    def whole(tokens: int) -> Callable[[], object]:
        x = torch.randn(1, tokens, 768, device=device())
        return lambda: split(x, weights, fused)

    cases = {
        f"plain, {long:,} to {4 * long:,}": (core(plain, long), core(plain, 4 * long)),
        f"fused, {long:,} to {4 * long:,}": (core(fused, long), core(fused, 4 * long)),
        "with projections, 64 to 256": (whole(64), whole(256)),
    }
    powers = {}
    for case, (short_run, long_run) in cases.items():
        rows = race({"n": short_run, "4 n": long_run}, quick)
        ratio = timing.paired_ratio(rows["4 n"], rows["n"])
        powers[case] = [_exponent(r, 4) for r in (ratio.median, ratio.low, ratio.high)]
    figure = f"on the {device_name()}: " + "; ".join(f"{c} n^{p[0]:.2f}" for c, p in powers.items())
    spread = "95 % intervals " + ", ".join(f"[{p[1]:.2f}, {p[2]:.2f}]" for p in powers.values())
    square = [case for case, power in powers.items() if power[0] > 1.6]
    if len(square) == len(powers):
        return holds(figure, spread, **powers)
    if square:
        condition = "the input is long enough for scores to be most of the work"
        return holds_if(condition, figure, spread, **powers)
    return does_not_hold(figure, spread, **powers)


@claim("memory-n-squared", "The memory of attention grows with n².")
def memory_grows_with_n_squared(
    ways: Mapping[str, Attend] = {"plain": plain, "fused": fused}, *, seed: int = 0
) -> Finding:
    """The peak memory in bytes of tensors, for 256 and for 1,024 tokens, 4 heads.

    The plain form keeps the scores and the weights, tokens × tokens each. A fused kernel computes
    them in small tiles and keeps one number per row. (The memory for the tiles is not counted; it
    does not grow with n.)
    """
    torch.manual_seed(seed)
    powers, mib = {}, {}
    for name, attend in ways.items():
        peaks = []
        for tokens in (256, 1024):
            q, k, v = torch.randn(3, 1, 4, tokens, 64).unbind()
            peaks.append(peak_bytes(lambda: attend(q, k, v)))  # noqa: B023  # runs at once
        powers[name] = _exponent(peaks[1] / peaks[0], 4)
        mib[name] = peaks[1] / 2**20
    figure = "; ".join(f"{name} n^{powers[name]:.2f} ({short(mib[name])} MiB)" for name in ways)
    spread = "a count: nothing is random"
    square = [name for name, power in powers.items() if power > 1.9]
    if len(square) == len(powers):
        return holds(figure, spread, powers=powers, mib=mib)
    if square:
        condition = f"attention is {' or '.join(square)}"
        return holds_if(condition, figure, spread, powers=powers, mib=mib)
    return does_not_hold(figure, spread, powers=powers, mib=mib)
