"""Who takes part in a case: each contestant built, compiled where asked, and judged."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks import gates
from benchmarks.cases import Case
from benchmarks.contestants import Builder
from benchmarks.room import Room
from clearhead import timing


@dataclass(frozen=True)
class Entry:
    """A contestant, with what else is known before the race."""

    contestant: timing.Contestant
    module: torch.nn.Module | None = None
    kernel: str = ""
    compile_s: float | None = None


def enter(builder: Builder, case: Case, reference: gates.Reference, room: Room) -> Entry:
    """Build a contestant, compile it, and judge it; one that cannot take part says why."""
    name = f"{builder.name}, compiled" if case.compiled else builder.name

    def stays_out(why: str) -> Entry:
        return Entry(timing.Contestant(name, None, note=why, ours=builder.ours))

    if not builder.installed:
        return stays_out(builder.note)
    if reason := room.refuse(builder):
        return stays_out(reason)
    try:
        module = builder.module(case)
        run = gates.make_run(module, reference.x, reference.gradient, case)
        compile_s = _compile(run, case) if case.compiled else None
        gap, kernel = _judge(builder, module, reference)
    except ImportError as error:
        return stays_out(f"cannot be imported: {error}")
    except torch.OutOfMemoryError:
        return stays_out("out of GPU memory")
    except RuntimeError as error:
        if not case.compiled:
            raise
        return stays_out(f"cannot be compiled: {str(error).partition(chr(10))[0]}")
    contestant = timing.Contestant(name, run, lambda: gap, builder.note, builder.ours)
    return Entry(contestant, module, kernel, compile_s)


def _judge(
    builder: Builder, module: torch.nn.Module, reference: gates.Reference
) -> tuple[float | str, str]:
    """The gap, and the kernel that ran; "" where the gate runs something else than the clock."""
    reference.answers(builder.biases)  # so that its own operations are not seen below
    if reference.case.compiled or reference.case.dropout:
        return reference.gap(builder, module), ""
    return gates.watch_kernel(lambda: reference.gap(builder, module))


def _compile(run: Callable[[], object], case: Case) -> float:
    """Seconds of the first run beyond those of the second."""
    seconds = []
    for _ in range(2):
        started = time.perf_counter()
        run()
        synchronize(case)()
        seconds.append(time.perf_counter() - started)
    return max(0.0, seconds[0] - seconds[1])


def synchronize(case: Case) -> Callable[[], None]:
    """What waits until the device is done."""
    return torch.cuda.synchronize if case.device == "cuda" else timing.nothing
