"""How much memory one run needs on top of weights, buffers and input: peak extra memory.

On the CPU a contestant is alone in a process of its own. It runs once to load libraries and start
threads; then Linux is asked to forget the process's highest resident size (write 5 to
/proc/self/clear_refs), it runs again, and the highest size since (VmHWM) minus the size before is
the answer. That counts everything, also scratch space that torch's own allocator never sees.
MALLOC_MMAP_THRESHOLD_ makes the C library give freed tensors back at once; otherwise a second run
hides in what the first one left. With it, the figure agrees with the sum of torch's own
allocations to a tenth of a MiB (2,048 tokens: 30.0 and 30.0 for ours, 597.9 and 598.0 for rung 4).
A system without /proc/self/clear_refs gets no figure.

Those processes are copies (`os.fork`) of one that has imported everything and computed nothing, so
that each starts fresh without importing torch again.

On CUDA it is `torch.cuda.max_memory_allocated`, which counts tensors only.
"""

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import torch

from benchmarks.cases import Case, make_input
from benchmarks.contestants import find_builder
from benchmarks.gates import make_run

_FORGET_PEAK = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536"}


def method(device: str) -> str:
    """How it is measured here, in words for the JSON."""
    if device == "cuda":
        return "torch.cuda.max_memory_allocated over what was allocated before the second run"
    if _FORGET_PEAK.exists():
        return "VmHWM over VmRSS in a second run, alone in a process of its own"
    return "not measured: needs /proc/self/clear_refs, which is Linux"


class Meter:
    """Measures contestants one after the other; use it in a `with` block.

    On the CPU the process that is copied starts with the first question.
    """

    def __init__(self) -> None:
        self._helper: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Meter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._helper is not None:
            os.killpg(self._helper.pid, signal.SIGTERM)  # itself, and a copy that still runs
            self._helper.communicate()

    def peak_extra_mib(
        self, case: Case, name: str, run: Callable[[], object] | None = None
    ) -> float | None:
        """The peak extra memory of the contestant called `name`; None where not measurable.

        Args:
            case: What it computes.
            name: Its builder's name.
            run: One run, which CUDA measures in this process; built anew if None.
        """
        if case.device == "cuda":
            return _cuda_peak(_prepare(case, name) if run is None else run)
        if not _FORGET_PEAK.exists():
            return None
        if self._helper is None:
            self._helper = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.memory"],
                env={**os.environ, **_ENVIRONMENT},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C is for us; it ends when we leave the block
            )
        assert self._helper.stdin is not None
        assert self._helper.stdout is not None
        try:
            self._helper.stdin.write(json.dumps([case.as_json(), name]) + "\n")
            self._helper.stdin.flush()
            line = self._helper.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:  # the next question starts another one
            self._helper = None
        found = json.loads(line) if line else {"error": "the measuring process ended"}
        if "error" in found:
            raise RuntimeError(f"measuring the memory of {name!r} failed:\n{found['error']}")
        return float(found["mib"])


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


def _answer(line: str) -> dict[str, float | str]:
    case, name = json.loads(line)
    try:
        return {"mib": _linux_peak(_prepare(Case(**case), name))}
    except Exception:  # whatever it was, the asking process tells it
        return {"error": traceback.format_exc()}


def _serve() -> None:
    """One question per line; each is answered by a copy of this process."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what a contestant prints is no answer
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os.write(answers, (json.dumps(_answer(line)) + "\n").encode())
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:  # killed, so it could not say so itself
            words = f"its process ended with status {status}: out of memory?"
            os.write(answers, (json.dumps({"error": words}) + "\n").encode())


if __name__ == "__main__":
    _serve()
