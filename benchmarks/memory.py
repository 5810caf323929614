"""Memory: which contestants fit, and how much one run needs on top of weights, masks and input.

On the CPU each contestant is measured in a separate process. It runs once to load libraries and
start threads. Writing 5 to /proc/self/clear_refs then resets the peak of the resident size, the
contestant runs again, and the result is the peak since then (VmHWM) minus the size before. That
includes scratch memory that torch's allocator does not count. MALLOC_MMAP_THRESHOLD_ makes the C
library return freed tensors at once; otherwise the second run reuses what the first one freed. The
result agrees with the sum of torch's own allocations to 0.1 MiB. Systems without
/proc/self/clear_refs get no figure.

These processes come from a fork server that has imported everything and computed nothing, so that
torch is imported only once. On CUDA the figure is `torch.cuda.max_memory_allocated`.
"""

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path

import torch

from benchmarks.cases import Case, make_input, make_run
from benchmarks.contestants import Implementation, find

CPU_MIB = 4096.0  # the most a contestant may use on the CPU: beyond it, it is slow anyway
SHARE = 0.9  # of the memory that is free
_MEMINFO = Path("/proc/meminfo")
_RESET_PEAK = Path("/proc/self/clear_refs")


def method(device: str) -> str:
    """How peak memory is measured, for the results file."""
    if device == "cuda":
        return "torch.cuda.max_memory_allocated over what was allocated before the second run"
    if _RESET_PEAK.exists():
        return "VmHWM over VmRSS in a second run, in a process of its own"
    return "not measured: needs /proc/self/clear_refs (Linux)"


def free_mib(device: str, meminfo: Path = _MEMINFO) -> float:
    """How many MiB the contestants of a case may use."""
    if device == "cuda":
        torch.cuda.empty_cache()
        return float(SHARE * torch.cuda.mem_get_info()[0] / 2**20)
    lines = meminfo.read_text(encoding="ascii").splitlines() if meminfo.exists() else []
    available = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return min(CPU_MIB, SHARE * available[0] / 1024) if available else CPU_MIB


class Budget:
    """The memory that the contestants of a case share: all keep their masks, one runs at a time.

    Args:
        case: The case.
        free: The MiB that are free; None = ask the system.
    """

    def __init__(self, case: Case, free: float | None = None) -> None:
        self._case = case
        self._free = free_mib(case.device) if free is None else free
        self._stored = self._peak = 0.0

    def refuse(self, contestant: Implementation) -> str:
        """Why the contestant does not fit; "" if it does, and then its share is reserved."""
        stored, peak = contestant.stored_mib(self._case), contestant.running_mib(self._case)
        left = max(0.0, self._free - self._stored)
        if stored + max(peak, self._peak) > left:
            return (
                f"would need about {(stored + peak) / 1024:,.1f} GiB; "
                f"{left / 1024:,.1f} of {self._free / 1024:,.1f} GiB are left"
            )
        self._stored += stored
        self._peak = max(self._peak, peak)
        return ""


def peak_extra_mib(case: Case, name: str, run: Callable[[], object]) -> float | None:
    """The peak extra memory of one run; None where it cannot be measured.

    Args:
        case: The case.
        name: The contestant's name.
        run: One run; used on CUDA, where the measurement is made in this process.
    """
    if case.device == "cuda":
        return _cuda_peak(run)
    if not _RESET_PEAK.exists():
        return None
    with ProcessPoolExecutor(1, mp_context=_fork_server()) as pool:
        return pool.submit(_linux_peak, case, name).result()


@cache
def _fork_server() -> ForkServerContext:
    """The fork server, started. It is the parent of all processes that are measured."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.memory"])
    name = "MALLOC_MMAP_THRESHOLD_"
    before = os.environ.get(name)
    os.environ[name] = "65536"  # read once, when the server starts
    try:
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            pool.submit(int).result()
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before
    return context


def _cuda_peak(run: Callable[[], object]) -> float:
    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return round((torch.cuda.max_memory_allocated() - before) / 2**20, 1)


def _linux_peak(case: Case, name: str) -> float:
    run = make_run(find(name).module(case), *make_input(case), case)
    run()
    _RESET_PEAK.write_text("5")
    before = _status("VmRSS")
    run()
    return round((_status("VmHWM") - before) / 1024, 1)


def _status(name: str) -> int:
    """One entry of /proc/self/status, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
