"""Measuring several ways to compute one thing, side by side and fairly. Knows no attention.

1.  Equality first: a contestant whose answer is too far from the reference is named, not timed.
2.  Warm up, then rounds. In each round everybody runs once, in a new random order, so that a slow
    minute of the machine hits all alike. Who is more than twice as slow as the fastest runs in
    every fourth round only.
3.  Compare within rounds: the ratio of two contestants is the median of their per-round ratios,
    with a bootstrap interval of that median.
"""

import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from clearhead.atomic_files import beside

SCHEMA = 1
SLOW = 2.0  # this many times the fastest one's time: a slow contestant
SLOW_EVERY = 4  # a slow contestant runs in every fourth round
FEWEST_ROUNDS = 2 * SLOW_EVERY + 1  # so that a slow contestant runs at least three times
SAMPLE_SECONDS = 0.02  # shorter runs are repeated within one sample, for the clock's sake
MOST_REPEATS = 50


@dataclass(frozen=True)
class Contestant:
    """One way to compute it.

    Args:
        name: What the table calls it.
        run: One run, to be timed; None when it cannot run at all, and `note` says why.
        gap: How far its answer is from the reference, relative to it; or a sentence that says what
            else is wrong with it. None = nothing to compare.
        note: A remark for the table.
        ours: Whether the others are compared with this one.
    """

    name: str
    run: Callable[[], object] | None
    gap: Callable[[], float | str] | None = None
    note: str = ""
    ours: bool = False


@dataclass(frozen=True)
class Ratio:
    """The median of per-round ratios, and a 95 % bootstrap interval of that median."""

    median: float
    low: float
    high: float
    rounds: int

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass
class Row:
    """What was found out about one contestant. `seconds` has one entry a round it ran in."""

    name: str
    status: str  # "timed", "different" (computes something else) or "not run"
    note: str = ""
    ours: bool = False
    gap: float | None = None
    seconds: dict[int, float] = field(default_factory=dict)
    ratio_to_ours: Ratio | None = None
    kernel: str | None = None
    peak_extra_mib: float | None = None
    stored_mask_mib: float | None = None
    compile_s: float | None = None  # a compiled one's first run, beyond what a run takes

    @property
    def median(self) -> float:
        """The median time of one run, in seconds."""
        return statistics.median(self.seconds.values())

    @property
    def quartiles(self) -> tuple[float, float]:
        """The middle half of the times lies between these."""
        low, high = np.quantile(list(self.seconds.values()), [0.25, 0.75])
        return float(low), float(high)

    def as_json(self) -> dict[str, Any]:
        """Plain data. A contestant that was not timed has no times."""
        found: dict[str, Any] = {"name": self.name, "status": self.status, "ours": self.ours}
        found |= {"note": self.note} if self.note else {}
        # JSON has no NaN.
        found["gap"] = self.gap if self.gap is None or np.isfinite(self.gap) else str(self.gap)
        if self.status == "timed":
            low, high = self.quartiles
            found |= {
                "median_ms": round(self.median * 1e3, 4),
                "quartiles_ms": [round(low * 1e3, 4), round(high * 1e3, 4)],
                "rounds": len(self.seconds),
                "ratio_to_ours": ratio_as_json(self.ratio_to_ours),
                "kernel": self.kernel,
                "peak_extra_mib": self.peak_extra_mib,
                "stored_mask_mib": self.stored_mask_mib,
            }
            found |= {} if self.compile_s is None else {"compile_s": round(self.compile_s, 2)}
        return found


def nothing() -> None:
    """Do nothing: the default of what may be called between runs."""


def race(
    contestants: Sequence[Contestant],
    *,
    tolerance: float,
    rounds: int,
    seconds: float = float("inf"),
    fewest: int = FEWEST_ROUNDS,
    warm_ups: int = 3,
    seed: int = 0,
    synchronize: Callable[[], None] = nothing,
    tick: Callable[[], None] = nothing,
) -> list[Row]:
    """Compare answers, warm up, run interleaved rounds. Rows come in the contestants' order.

    Args:
        contestants: Who takes part.
        tolerance: The largest gap to the reference that counts as equal.
        rounds: How many rounds.
        seconds: Stop after this time, but not before `fewest` rounds (or `rounds`).
        fewest: See there; fewer where a run takes seconds.
        warm_ups: Runs of each one before the rounds; none where it has just run for seconds, to
            be compared.
        seed: Decides the order within the rounds and the bootstrap's draws.
        synchronize: Waits until the device is done.
        tick: Called after each round.
    """
    rows = [_judge(contestant, tolerance) for contestant in contestants]
    running = {
        row.name: contestant.run
        for row, contestant in zip(rows, contestants, strict=True)
        if row.status == "timed" and contestant.run is not None
    }
    best = {}  # each one's shortest time so far: a single disturbed run must not make it slow
    for name, run in running.items():
        samples = (_sample(run, 1, synchronize) for _ in range(warm_ups))
        best[name] = min(samples, default=float("inf"))
    repeats = {
        name: max(1, min(MOST_REPEATS, round(SAMPLE_SECONDS / seconds_once)))
        for name, seconds_once in best.items()
    }
    order = random.Random(seed)
    by_name = {row.name: row for row in rows}
    started = time.perf_counter()
    for number in range(rounds):
        if number >= fewest and time.perf_counter() - started > seconds:
            break
        limit = SLOW * min(best.values(), default=0.0)
        names = [name for name in running if number % SLOW_EVERY == 0 or best[name] <= limit]
        order.shuffle(names)
        for name in names:
            sample = _sample(running[name], repeats[name], synchronize)
            by_name[name].seconds[number] = sample
            best[name] = min(best[name], sample)
        tick()
    ours = next((row for row in rows if row.ours and row.status == "timed"), None)
    if ours is not None:
        for row in rows:
            if row.status == "timed" and row is not ours:
                row.ratio_to_ours = paired_ratio(row, ours, seed=seed)
    return rows


def paired_ratio(row: Row, base: Row, *, draws: int = 2000, seed: int = 0) -> Ratio:
    """How many times `base`'s time `row` takes, from the rounds in which both ran.

    >>> slow = Row("slow", "timed", seconds={0: 2.0, 4: 4.0})
    >>> fast = Row("fast", "timed", seconds={0: 1.0, 1: 9.0, 4: 2.0})
    >>> print(paired_ratio(slow, fast))
    2.00 [2.00, 2.00]
    """
    shared = sorted(row.seconds.keys() & base.seconds.keys())
    ratios = np.array([row.seconds[number] / base.seconds[number] for number in shared])
    generator = np.random.default_rng(seed)
    medians = np.median(generator.choice(ratios, (draws, len(ratios))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return Ratio(float(np.median(ratios)), float(low), float(high), len(ratios))


def ours_to_fastest(rows: Sequence[Row], *, seed: int = 0) -> tuple[str, Ratio] | None:
    """The fastest of the others, and how many times its time ours takes (below 1: we win)."""
    timed = [row for row in rows if row.status == "timed"]
    ours = next((row for row in timed if row.ours), None)
    others = [row for row in timed if not row.ours]
    if ours is None or not others:
        return None
    best = min(others, key=lambda row: row.median)
    return best.name, paired_ratio(ours, best, seed=seed)


def ratio_as_json(ratio: Ratio | None) -> dict[str, Any] | None:
    """Plain data."""
    if ratio is None:
        return None
    return {
        "median": round(ratio.median, 4),
        "interval_95": [round(ratio.low, 4), round(ratio.high, 4)],
        "rounds": ratio.rounds,
    }


def environment(packages: Sequence[str]) -> dict[str, Any]:
    """Where this was measured: machine, versions, commit, date, and how busy the machine was."""
    versions = {"python": platform.python_version()}
    installed = {distribution.name.lower() for distribution in metadata.distributions()}
    for package in packages:
        if package in installed:
            versions[package] = metadata.version(package)
        else:  # a folder on the path, perhaps, without a word about its version
            found = find_spec(package.replace("-", "_"))
            versions[package] = "not installed" if found is None else "not known"
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        },
        "versions": versions,
        "commit": commit(Path(__file__)),
    }


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's model, as far as the system tells."""
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def commit(file: Path) -> str | None:
    """The commit that `file` stands at, with "-dirty" when files differ; None outside git."""
    folder = str(file.resolve().parent)

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["git", "-C", folder, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    if shutil.which("git") is None or git("ls-files", "--error-unmatch", str(file)).returncode:
        return None
    head = git("rev-parse", "--verify", "HEAD")
    if head.returncode:
        return None
    changed = git("status", "--porcelain", "--untracked-files=no").stdout.strip()
    return head.stdout.strip() + ("-dirty" if changed else "")


def write_json(path: Path, found: dict[str, Any]) -> None:
    """One line of JSON; see `write_text`."""
    write_text(path, json.dumps(found, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """A reader sees the old file or the whole new one."""
    with beside(path) as whole:
        whole.write_text(text, encoding="utf-8")


def import_run(statement: str) -> Callable[[], object]:
    """A run that executes one statement in a fresh interpreter."""
    return lambda: subprocess.run([sys.executable, "-c", statement], check=True)


def _judge(contestant: Contestant, tolerance: float) -> Row:
    row = Row(contestant.name, "timed", contestant.note, contestant.ours)
    if contestant.run is None:
        row.status = "not run"
    elif contestant.gap is not None:
        found = contestant.gap()
        if isinstance(found, str):
            row.status = "different"
            row.note = f"computes something else: {found}"
        else:
            row.gap = found
            if not found <= tolerance:  # NaN, too
                row.status = "different"
                row.note = f"computes something else: off by {found:.1e} of the largest value"
    return row


def _sample(run: Callable[[], object], repeats: int, synchronize: Callable[[], None]) -> float:
    """Seconds of one run; the mean of `repeats` when it is too short for the clock."""
    started = time.perf_counter()
    for _ in range(repeats):
        run()
    synchronize()
    return (time.perf_counter() - started) / repeats
