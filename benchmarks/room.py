"""Who fits into memory: a contestant that would build too much tokens × tokens is not tried.

The figures behind `Builder.squares` were measured (`benchmarks/results`); a test compares the two.
All contestants of a case stay in memory, with their masks, and one runs at a time.
"""

from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.cases import Case
from benchmarks.contestants import Builder

CPU_MIB = 4096.0  # what a contestant may use on the CPU, however much there is: more is slow, too
SHARE = 0.9  # of what is free
_MEMORY = Path("/proc/meminfo")


class Needs(NamedTuple):
    """MiB that a contestant stores, and that building it and running it need on top."""

    stored: float
    building: float
    running: float


def needed_mib(builder: Builder, case: Case) -> Needs:
    """What the contestant needs, about."""
    square = case.tokens**2 / 2**20  # Mi pairs of tokens
    size = case.element_size()
    stored = square * builder.masks(case)
    # Masks are built as float32, one after the other, and converted then.
    building = stored * (4 / size - 1) + 4 * square if stored else 0.0
    vectors = case.batch * case.tokens * case.d_model / 2**20 * (16 if case.training else 6)
    maps = case.batch * case.heads * square * builder.squares(case)
    return Needs(stored, building, (vectors + maps) * size)


def free_mib(device: str, memory: Path = _MEMORY) -> float:
    """How much may be used."""
    if device == "cuda":
        torch.cuda.empty_cache()
        return float(SHARE * torch.cuda.mem_get_info()[0] / 2**20)
    if not memory.exists():
        return CPU_MIB
    lines = memory.read_text(encoding="ascii").splitlines()
    sizes = (int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    available = next(sizes, None)
    return CPU_MIB if available is None else min(CPU_MIB, SHARE * available / 1024)


class Room:
    """The memory that the contestants of one case share.

    Args:
        case: What they compute.
        free: How many MiB there are; asked of the system if None.
    """

    def __init__(self, case: Case, free: float | None = None) -> None:
        self._case = case
        self._free = free_mib(case.device) if free is None else free
        self._stored = 0.0
        self._peak = 0.0

    def refuse(self, builder: Builder) -> str:
        """Why the contestant must stay out; "" when it fits, and then its share is taken."""
        stored, *on_top = needed_mib(builder, self._case)
        peak = max(on_top)
        if self._stored + stored + max(peak, self._peak) > self._free:
            return (
                f"would need about {(stored + peak) / 1024:,.1f} GiB; of the "
                f"{self._free / 1024:,.1f} GiB that may be used, "
                f"{max(0.0, self._free - self._stored) / 1024:,.1f} are left"
            )
        self._stored += stored
        self._peak = max(self._peak, peak)
        return ""
