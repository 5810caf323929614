"""How much memory one run needs on top of weights, buffers and input: peak extra memory.

On the CPU a contestant is alone in a fresh process. It runs once to load libraries and start
threads; then Linux is asked to forget the process's highest resident size (write 5 to
/proc/self/clear_refs), it runs again, and the highest size since (VmHWM) minus the size before is
the answer. That counts everything, also scratch space that torch's own allocator never sees.
MALLOC_MMAP_THRESHOLD_ makes the C library give freed tensors back at once; otherwise a second run
hides in what the first one left. With it, the figure agrees with the sum of torch's own
allocations to a tenth of a MiB (2,048 tokens: 30.0 and 30.0 for ours, 597.9 and 598.0 for rung 4).
A system without /proc/self/clear_refs gets no figure.

On CUDA it is `torch.cuda.max_memory_allocated`, which counts tensors only.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from clearhead.bench.contestants import Case, find_builder, make_input
from clearhead.bench.gates import make_run

_FORGET_PEAK = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536"}


def method(device: str) -> str:
    """How it is measured here, in words for the JSON."""
    if device == "cuda":
        return "torch.cuda.max_memory_allocated over what was allocated before the second run"
    if _FORGET_PEAK.exists():
        return "VmHWM over VmRSS in a second run, alone in a fresh process"
    return "not measured: needs /proc/self/clear_refs, which is Linux"


def peak_extra_mib(case: Case, name: str) -> float | None:
    """The peak extra memory of the contestant called `name`, in MiB; None where not measurable."""
    if case.device == "cuda":
        return _cuda_peak(_prepare(case, name))
    if not _FORGET_PEAK.exists():
        return None
    command = [sys.executable, "-m", "clearhead.bench.memory", json.dumps(case.as_json()), name]
    done = subprocess.run(
        command, env={**os.environ, **_ENVIRONMENT}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"measuring the memory of {name!r} failed:\n{done.stderr}")
    return float(done.stdout.splitlines()[-1])


def _prepare(case: Case, name: str) -> Callable[[], object]:
    return make_run(find_builder(name).module(case), *make_input(case), case)


def _cuda_peak(run: Callable[[], object]) -> float:
    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return round((torch.cuda.max_memory_allocated() - before) / 2**20, 1)


def _linux_peak(run: Callable[[], object]) -> float:
    run()
    _FORGET_PEAK.write_text("5")
    before = _status("VmRSS")
    run()
    return round((_status("VmHWM") - before) / 1024, 1)


def _status(name: str) -> int:
    """One entry of /proc/self/status, in KiB."""
    lines = _STATUS.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    print(_linux_peak(_prepare(Case(**json.loads(sys.argv[1])), sys.argv[2])))
