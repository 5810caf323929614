"""Time several ways to compute the same thing, side by side and fairly.

1.  Equality first: a contestant whose result is too far from the reference is reported, not timed.
2.  Warm up, then run in rounds. Each round runs every contestant once, in a new random order, so a
    slow minute of the machine affects all of them. A contestant more than twice as slow as the
    fastest runs only in every fourth round.
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
SLOW = 2.0  # a contestant that takes this many times the fastest one's time is slow
SLOW_EVERY = 4  # slow contestants run in every fourth round
FEWEST_ROUNDS = 2 * SLOW_EVERY + 1  # so that a slow contestant runs at least three times
SAMPLE_SECONDS = 0.02  # shorter runs are repeated within one sample, because clocks are coarse
MOST_REPEATS = 50
_RESAMPLES = 2000  # for the bootstrap interval


@dataclass(frozen=True)
class Contestant:
    """One way to compute something.

    Args:
        name: Its name in tables.
        run: One run, to be timed. None if it cannot run; `note` then explains why.
        gap: Computes how far its result is from the reference, relative to the reference, or
            returns a sentence that describes the difference. None to skip the comparison.
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

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "median": round(self.median, 4),
            "interval_95": [round(self.low, 4), round(self.high, 4)],
            "rounds": self.rounds,
        }


@dataclass
class Row:
    """The measurements of one contestant. `seconds` maps each round it ran in to its time."""

    name: str
    status: str  # "timed", "different" (computes something else) or "not run"
    note: str = ""
    ours: bool = False
    gap: float | None = None
    seconds: dict[int, float] = field(default_factory=dict)
    ratio_to_ours: Ratio | None = None

    @property
    def median(self) -> float:
        """The median time of one run, in seconds."""
        return statistics.median(self.seconds.values())

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third quartile of the times."""
        low, high = np.quantile(list(self.seconds.values()), [0.25, 0.75])
        return float(low), float(high)


def nothing() -> None:
    """Do nothing: the default for callbacks."""


def race(
    contestants: Sequence[Contestant],
    *,
    tolerance: float,
    rounds: int,
    seconds: float = float("inf"),
    fewest: int = FEWEST_ROUNDS,
    warm_ups: int = 3,
    synchronize: Callable[[], None] = nothing,
) -> list[Row]:
    """Check equality, warm up, run interleaved rounds. Returns rows in the contestants' order.

    Args:
        contestants: The contestants.
        tolerance: The largest gap to the reference that counts as equal.
        rounds: The number of rounds.
        seconds: Stop after this time, but not before `fewest` rounds.
        fewest: The fewest rounds; lower it where one run takes seconds.
        warm_ups: Runs of each contestant before the rounds; 0 where the equality check has just
            run for seconds.
        synchronize: Waits until the device has finished.
    """
    rows = [_judge(contestant, tolerance) for contestant in contestants]
    running = {
        row.name: contestant.run
        for row, contestant in zip(rows, contestants, strict=True)
        if row.status == "timed" and contestant.run is not None
    }
    best = {}  # the shortest time so far: one disturbed run must not mark a contestant as slow
    for name, run in running.items():
        samples = (_sample(run, 1, synchronize) for _ in range(warm_ups))
        best[name] = min(samples, default=float("inf"))
    repeats = {
        name: max(1, min(MOST_REPEATS, round(SAMPLE_SECONDS / seconds_once)))
        for name, seconds_once in best.items()
    }
    order = random.Random(0)
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
    ours = next((row for row in rows if row.ours and row.status == "timed"), None)
    if ours is not None:
        for row in rows:
            if row.status == "timed" and row is not ours:
                row.ratio_to_ours = paired_ratio(row, ours)
    return rows


def paired_ratio(row: Row, base: Row) -> Ratio:
    """The time of `row` as a multiple of the time of `base`, from the rounds in which both ran.

    Examples:
        >>> slow = Row("slow", "timed", seconds={0: 2.0, 4: 4.0})
        >>> fast = Row("fast", "timed", seconds={0: 1.0, 1: 9.0, 4: 2.0})
        >>> print(paired_ratio(slow, fast))
        2.00 [2.00, 2.00]
    """
    shared = sorted(row.seconds.keys() & base.seconds.keys())
    ratios = np.array([row.seconds[number] / base.seconds[number] for number in shared])
    resampled = np.random.default_rng(0).choice(ratios, (_RESAMPLES, len(ratios)))
    medians = np.median(resampled, axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return Ratio(float(np.median(ratios)), float(low), float(high), len(ratios))


def environment(packages: Sequence[str]) -> dict[str, Any]:
    """Where and when this was measured: machine and its load, versions, commit, date."""
    versions = {"python": platform.python_version()}
    installed = {distribution.name.lower() for distribution in metadata.distributions()}
    for package in packages:
        if package in installed:
            versions[package] = metadata.version(package)
        else:  # perhaps a folder on the path, without metadata
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
    """The processor's model, as reported by the system."""
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def commit(file: Path) -> str | None:
    """The commit checked out, with "-dirty" if files differ; None if `file` is not tracked."""
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
    """Write one line of JSON; see `write_text`."""
    write_text(path, json.dumps(found, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file. A reader sees either the old file or the complete new one."""
    with beside(path) as whole:
        whole.write_text(text, encoding="utf-8")


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
            if not found <= tolerance:  # also catches NaN
                row.status = "different"
                row.note = f"computes something else: off by {found:.1e} of the largest value"
    return row


def _sample(run: Callable[[], object], repeats: int, synchronize: Callable[[], None]) -> float:
    """The mean time of `repeats` runs, in seconds."""
    started = time.perf_counter()
    for _ in range(repeats):
        run()
    synchronize()
    return (time.perf_counter() - started) / repeats
