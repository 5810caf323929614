"""The benchmark of watch(): a forward pass watched beside the same one plain.

A GPT-2 of Hugging Face with random weights. Equality first: what the watched model gives must
be the plain one's, bit for bit. Opening and closing the `with` block is part of what is timed. On a
GPU the recorder in C++ is compiled first, and the one in Python is timed beside it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from clearhead import timing
from clearhead.configs import find_config
from clearhead.watcher import watch

CASES = ((1, 512), (8, 512), (8, 1024))
CUDA_CASES = (*CASES, (32, 1024))
_PACKAGES = ("torch", "transformers", "numpy", "clearhead")
# Tokens in a batch from which a run takes seconds on the CPU: few rounds must do, and comparing the
# outputs has warmed up.
_LONG_RUNS, _FEWEST_LONG_ROUNDS = 4096, 5


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Args:
        cases: (batch, tokens) of each case.
        device: "cpu" or "cuda".
        dtype: "float32" and so on.
        rounds: Interleaved rounds of each case.
        seconds: The rounds of one case end after this time.
        minutes: All cases together should end after this time.
        size: The model's size, by its name in `GPT2_CONFIGS`.
        layers: The model's layers; None = as the size says.
    """

    cases: Sequence[tuple[int, int]] = CASES
    device: str = "cpu"
    dtype: str = "float32"
    rounds: int = 20
    seconds: float = 60.0
    minutes: float = math.inf
    size: str = "gpt2-small"
    layers: int | None = None


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
        "benchmark": "watch",
        **timing.environment(_PACKAGES),
        "threads": torch.get_num_threads(),
        "device": settings.device,
        "dtype": settings.dtype,
        "use_cache": True,  # as a model is called by default
        "cases": [],
    }
    swift = None
    if settings.device == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
        try:
            swift = native.workshop.build()
        except (OSError, RuntimeError) as error:
            found["note"] = f"Recorded in Python: {error}"
    found["recorder"] = "Python" if swift is None else "C++"
    transformers: Any = import_module("transformers")
    torch.manual_seed(0)
    longest = max(tokens for _, tokens in settings.cases)
    size = find_config(settings.size)
    config = transformers.GPT2Config(
        n_embd=size["d_model"],
        n_head=size["num_heads"],
        n_layer=size["num_layers"] if settings.layers is None else settings.layers,
        n_positions=max(size["context_length"], longest),
    )
    model = transformers.GPT2Model(config).to(settings.device, getattr(torch, settings.dtype))
    model.eval()
    millions = round(sum(parameter.numel() for parameter in model.parameters()) / 1e6)
    found["model"] = f"transformers GPT2Model, {millions}M, random weights"
    end = time.monotonic() + 60 * settings.minutes
    for number, (batch, tokens) in enumerate(settings.cases):
        left = max(0.0, end - time.monotonic()) / (len(settings.cases) - number)
        tick = say(f"watch: {batch} x {tokens:,} tokens", settings.rounds)
        seconds = min(settings.seconds, left / 2)
        case = _compare(model, batch, tokens, settings, seconds, tick, swift)
        found["cases"].append(case)
    return found


def draw(found: dict[str, Any]) -> list[str]:
    """The result as lines of text."""
    lines = [f"{found['model']}, {found['dtype']}, {found['device']}"]
    for case in found["cases"]:
        size = f"  {case['batch']} x {case['tokens']:,} tokens"
        ratio = case["watched_over_plain"]
        if ratio is None:
            lines.append(f"{size}: {case['note']}")
            continue
        low, high = ratio["interval_95"]
        lines.append(
            f"{size}: {case['plain_ms']:,.1f} ms plain; watched {ratio['median']:.3f} "
            f"[{low:.3f}, {high:.3f}] times that"
        )
    return lines


def _compare(
    model: Any,
    batch: int,
    tokens: int,
    settings: Settings,
    seconds: float,
    tick: Callable[[], None],
    swift: native.Native | None,
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(tokens)
    ids = torch.randint(model.config.vocab_size, (batch, tokens), generator=generator)
    ids = ids.to(settings.device)

    @torch.no_grad()
    def plain() -> Tensor:
        output: Tensor = model(ids).last_hidden_state
        return output

    def watched() -> Tensor:
        with watch(model):
            return plain()

    def watched_in_python() -> Tensor:
        native.workshop.made = None
        try:
            return watched()
        finally:
            native.workshop.made = swift

    def gap(of: Callable[[], Tensor]) -> float | str:
        one, other = plain(), of()
        different = int((one != other).sum())
        return f"{different:,} of {one.numel():,} numbers differ" if different else 0.0

    contestants = [
        timing.Contestant("plain", plain, ours=True),  # what the others are compared with
        timing.Contestant("watched", watched, partial(gap, watched)),
    ]
    if swift is not None:
        name, again = "watched in Python", partial(gap, watched_in_python)
        contestants.append(timing.Contestant(name, watched_in_python, again))
    takes_long = settings.device == "cpu" and batch * tokens >= _LONG_RUNS
    rows = timing.race(
        contestants,
        tolerance=0.0,
        rounds=settings.rounds,
        seconds=seconds,
        fewest=_FEWEST_LONG_ROUNDS if takes_long else timing.FEWEST_ROUNDS,
        warm_ups=0 if takes_long else 3,
        synchronize=torch.cuda.synchronize if settings.device == "cuda" else timing.nothing,
        tick=tick,
    )
    alone, seen, *others = rows
    case: dict[str, Any] = {
        "batch": batch,
        "tokens": tokens,
        "plain_ms": round(alone.median * 1e3, 4),
        "watched_over_plain": timing.ratio_as_json(seen.ratio_to_ours),
        "equal_bit_for_bit": seen.status == "timed",
    }
    for other in others:
        case["watched_in_python_over_plain"] = timing.ratio_as_json(other.ratio_to_ours)
        case["equal_bit_for_bit"] &= other.status == "timed"
    if seen.note:
        case["note"] = seen.note
    return case
