"""`clearhead bench all`: every benchmark that suits a device, one after the other.

Each part writes its JSON as soon as it is done, so that stopping loses only the part under way. A
part that fails is reported at the end, and the others still run. The minutes beside each part are
estimates for two cores of a server's CPU, or for an H200.
"""

import gc
import math
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import attention, generate, maps, viewing, watching
from clearhead import timing

Say = Callable[[str, int], Callable[[], None]]

WIDTH, HEADS = 768, 12
# (batch, tokens): a longer input in a smaller batch.
SWEEP_CPU = ((8, 128), (4, 512), (2, 1024), (1, 2048), (1, 4096), (1, 8192))
SWEEP_CUDA = ((8, 1024), (1, 8192), (1, 32_768), (1, 131_072))
_QUICK_SHAPES: tuple[attention.Shape, ...] = ((2, 16, 24, 3), (1, 48, 24, 3))
_FOREVER = math.inf
_LEAST_SECONDS = 1.0


@dataclass(frozen=True)
class Job:
    """What a part is told when it runs.

    Args:
        device: "cpu" or "cuda".
        minutes: How long it may take, about; inf = as long as it needs.
        quick: Tiny sizes everywhere: to see that it works, not to learn anything.
        compiled: Whether what must be compiled takes part.
        show: Called with each finished case of attention.
        say: Told a title and a number of steps; gives what to call after each step.
    """

    device: str
    minutes: float = _FOREVER
    quick: bool = False
    compiled: bool = True
    show: Callable[[attention.Result], None] = lambda _: None
    say: Say = lambda *_: timing.nothing

    def seconds(self, cases: int, usual: float = 60.0) -> float:
        """How long the rounds of one of so many cases may take: half of its share."""
        return max(_LEAST_SECONDS, min(usual, 60 * self.minutes / cases / 2))


@dataclass(frozen=True)
class Part:
    """One benchmark, and the file it writes.

    Args:
        name: What `--only` and `--skip` call it.
        file: The name of its JSON.
        minutes: How long it takes, about.
        run: Measures; gives plain data.
    """

    name: str
    file: str
    minutes: float
    run: Callable[[Job], dict[str, Any]]


@dataclass(frozen=True)
class Outcome:
    """What became of a part: how long it took, and why it failed ("" = it did not)."""

    part: Part
    seconds: float
    error: str = ""


def short_name(device: str, gpu: str | None = None) -> str:
    """The device's part of a file name.

    >>> short_name("cpu"), short_name("cuda", "NVIDIA H200")
    ('cpu', 'h200')
    """
    if device == "cpu":
        return "cpu"
    if gpu is None:
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "cuda"
    return gpu.lower().removeprefix("nvidia ").replace(" ", "-")


def parts_for(device: str, *, compiled: bool = True, gpu: str | None = None) -> list[Part]:
    """Every part that suits the device, in the order in which they run."""
    name = short_name(device, gpu)
    found = list(_cuda_parts(name) if device == "cuda" else _cpu_parts(name))
    return [part for part in found if compiled or not part.name.startswith("compiled")]


def _cpu_parts(name: str) -> Iterator[Part]:
    for dtype in ("float32", "bfloat16"):
        run = _fused(SWEEP_CPU, dtype, seconds=6)
        yield Part(f"sweep-{dtype}", f"attention-{name}-sweep-{dtype}.json", 10, run)
    for dtype in ("float32", "bfloat16"):
        run = _fused(SWEEP_CPU, dtype, forms=("compiled",), seconds=6)
        yield Part(f"compiled-{dtype}", f"attention-{name}-compiled-{dtype}.json", 6, run)
    yield Part("dropout", f"attention-{name}-dropout.json", 7, _sections("dropout"))
    both = _sections("window", "padding")
    yield Part("window-padding", f"attention-{name}-window-padding.json", 5, both)
    yield Part("long", f"attention-{name}-long.json", 5, _sections("long", rounds=9))
    yield Part("import", f"import-{name}.json", 1, _sections("import", rounds=10))
    yield Part("maps", f"maps-{name}-16384.json", 3, _maps(16_384))
    yield Part("generate", f"generate-{name}.json", 3, _generate)
    yield Part("watch", f"watch-{name}.json", 4, _watch)
    yield Part("view", f"view-{name}-32768.json", 3, _view)


def _cuda_parts(name: str) -> Iterator[Part]:
    run = _fused(SWEEP_CUDA, "bfloat16", seconds=4)
    yield Part("sweep-bfloat16", f"attention-{name}-sweep-bfloat16.json", 1.5, run)
    run = _fused(SWEEP_CUDA[:-1], "float32", seconds=4)
    yield Part("sweep-float32", f"attention-{name}-sweep-float32.json", 1.5, run)
    yield Part("watch", f"watch-{name}.json", 0.5, _watch)
    run = partial(_watch, size="gpt2-xl")
    yield Part("watch-gpt2-xl", f"watch-{name}-gpt2-xl.json", 0.5, run)
    yield Part("dropout", f"attention-{name}-dropout.json", 0.5, _sections("dropout", seconds=4))
    both = _sections("window", "padding", seconds=4)
    yield Part("window-padding", f"attention-{name}-window-padding.json", 0.7, both)
    yield Part("maps", f"maps-{name}-131072.json", 0.5, _maps(131_072, dense=True))
    run = _fused(SWEEP_CUDA, "bfloat16", forms=("compiled",), seconds=4)
    yield Part("compiled-bfloat16", f"attention-{name}-compiled-bfloat16.json", 2, run)
    run = _fused(SWEEP_CUDA[:-1], "float32", forms=("compiled",), seconds=4)
    yield Part("compiled-float32", f"attention-{name}-compiled-float32.json", 2, run)
    yield Part("generate", f"generate-{name}.json", 3, _generate)
    # Four seconds a run: few rounds.
    run = _fused(SWEEP_CUDA[-1:], "float32", rounds=5, seconds=4)
    yield Part("sweep-float32-131072", f"attention-{name}-sweep-float32-131072.json", 4, run)
    yield Part("maps-1048576", f"maps-{name}-1048576.json", 2.5, _maps(1_048_576, rounds=3))


def choose(parts: Sequence[Part], only: Sequence[str], skip: Sequence[str]) -> list[Part]:
    """The parts asked for; ValueError names one that there is not."""
    known = [part.name for part in parts]
    for name in (*only, *skip):
        if name not in known:
            raise ValueError(f"parts: expected some of {', '.join(known)}, got {name!r}.")
    chosen = [p for p in parts if p.name not in skip and (not only or p.name in only)]
    if not chosen:
        raise ValueError("parts: everything is skipped; there is nothing to run.")
    return chosen


def run_all(
    parts: Sequence[Part],
    out: Path,
    job: Job,
    *,
    command: str = "",
    before: Callable[[Part, int], None] = lambda *_: None,
    after: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """Run the parts, write each one's JSON when it is done.

    Args:
        parts: What to run.
        out: The folder for the files.
        job: What every part is told; `minutes` is the time for all of them, shared by what they
            usually take, and shared anew after each.
        command: What was typed, for the JSON.
        before: Called with each part that starts, and its number.
        after: Called with what became of it.
    """
    out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * job.minutes
    outcomes = []
    for number, part in enumerate(parts):
        before(part, number)
        started = time.monotonic()
        weight = part.minutes / sum(later.minutes for later in parts[number:])
        share = max(0.0, end - started) / 60 * weight
        own = Job(job.device, share, job.quick, job.compiled, job.show, job.say)
        error = ""
        try:
            found = part.run(own)
            timing.write_json(out / part.file, found | {"part": part.name, "command": command})
        except Exception as problem:
            traceback.print_exc()
            error = _reason(problem)
        gc.collect()
        if job.device == "cuda":
            torch.cuda.empty_cache()
        outcomes.append(Outcome(part, time.monotonic() - started, error))
        after(outcomes[-1])
    return outcomes


def _reason(problem: Exception) -> str:
    """One line about what went wrong."""
    if isinstance(problem, ModuleNotFoundError):
        return f"needs {problem.name}, which is not installed: pip install 'clearhead[bench,view]'"
    if isinstance(problem, torch.OutOfMemoryError | MemoryError):
        return "out of memory"
    lines = str(problem).splitlines() or [""]
    return f"{type(problem).__name__}: {lines[0]}"


def _fused(
    sizes: Sequence[tuple[int, int]],
    dtype: str,
    *,
    forms: Sequence[str] = ("eager",),
    rounds: int = 40,
    seconds: float = 60.0,
) -> Callable[[Job], dict[str, Any]]:
    """All contestants at several lengths."""

    def run(job: Job) -> dict[str, Any]:
        shapes = [(batch, tokens, WIDTH, HEADS) for batch, tokens in sizes]
        if job.quick:
            shapes = [*_QUICK_SHAPES][: 1 if "compiled" in forms else 2]
        return _attention(job, ["fused"], shapes, dtype, forms, rounds, seconds)

    return run


def _sections(
    *sections: str, rounds: int = 40, seconds: float = 20.0
) -> Callable[[Job], dict[str, Any]]:
    """Sections of the attention benchmark at their own shapes, in the device's usual dtype."""

    def run(job: Job) -> dict[str, Any]:
        shapes = [_QUICK_SHAPES[1]] if job.quick else []
        return _attention(job, sections, shapes, _dtype(job), ("eager",), rounds, seconds)

    return run


def _attention(
    job: Job,
    sections: Sequence[str],
    shapes: Sequence[attention.Shape],
    dtype: str,
    forms: Sequence[str],
    rounds: int,
    seconds: float,
) -> dict[str, Any]:
    settings = attention.Settings(
        sections=sections,
        shapes=shapes,
        rounds=1 if job.quick else rounds,
        seconds=seconds,
        minutes=job.minutes,
        device=job.device,
        dtype=dtype,
        quick=job.quick,
        forms=forms,
    )
    return attention.measure(settings, show=job.show, say=job.say)


def _maps(tokens: int, *, rounds: int = 9, dense: bool = False) -> Callable[[Job], dict[str, Any]]:
    def run(job: Job) -> dict[str, Any]:
        settings = maps.Settings(
            [48 if job.quick else tokens],
            device=job.device,
            dtype=_dtype(job),
            rounds=1 if job.quick else rounds,
            dense=dense and not job.quick,
            seconds=job.seconds(1),
        )
        return maps.measure(settings, say=job.say)

    return run


def _generate(job: Job) -> dict[str, Any]:
    on_gpu = job.device == "cuda"
    batches = [1, 16] if on_gpu else [1]
    settings = generate.Settings(
        batches=[1] if job.quick else batches,
        device=job.device,
        dtype=_dtype(job),
        tokens=2 if job.quick else (256 if on_gpu else 24),
        rounds=1 if job.quick else 9,
        prefill=8 if job.quick else 1024,
        compiled=job.compiled and not job.quick,
        seconds=job.seconds(len(batches) + 1),
        layers=1 if job.quick else None,
    )
    return generate.measure(settings, say=job.say)


def _watch(job: Job, size: str = "gpt2-small") -> dict[str, Any]:
    cases = watching.CUDA_CASES if job.device == "cuda" else watching.CASES
    settings = watching.Settings(
        cases=[(2, 16)] if job.quick else cases,
        device=job.device,
        dtype=_dtype(job),
        rounds=1 if job.quick else 40,
        seconds=5.0 if job.device == "cuda" else 60.0,
        minutes=job.minutes,
        size=size,
        layers=1 if job.quick else None,
    )
    return watching.measure(settings, say=job.say)


def _view(job: Job) -> dict[str, Any]:
    settings = viewing.Settings()
    if job.quick:
        settings = viewing.Settings(tokens=2048, heads=1, head_dim=8, tiles=20)
    return viewing.measure(settings, say=job.say)


def _dtype(job: Job) -> str:
    """What models run in on the device."""
    return "bfloat16" if job.device == "cuda" else "float32"
