"""Compare the usual ways to write multi-head attention with ours.

A contestant that does not compute the same as the readable ladder is not timed. Sections:

- fused: every usual implementation, causal, forward and forward + backward; also compiled.
- dropout: training with dropout 0.1, for which SDPA on the CPU builds tokens × tokens.
- window: each query attends to the last 256 keys; SDPA needs that as a dense mask.
- padding: a quarter of each sequence is padding, on the left. (On the right, the causal mask alone
  hides it from every real token.)
- long: 16,384 tokens, where the book's form would need 12.9 GB for the weights alone.
- import: what importing the library costs on top of torch.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Self

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import command, memory
from benchmarks.cases import DIRECTIONS, Case, make_run
from benchmarks.command import Say, option, ratio_text, sizes
from benchmarks.contestants import PACKED, Implementation, contestants_for
from benchmarks.equality import TOLERANCES, Reference
from clearhead import timing

SECTIONS = ("fused", "dropout", "window", "padding", "long", "import")
Shape = tuple[int, int, int, int]
_SHAPES: dict[str, tuple[Shape, ...]] = {
    "fused": ((8, 1024, 768, 12), (1, 4096, 768, 12), (2, 100, 768, 12)),
    "long": ((1, 16384, 768, 12),),
    "import": (),
}
_USUAL_SHAPES: tuple[Shape, ...] = ((1, 4096, 768, 12), (8, 1024, 768, 12))
# batch × tokens × tokens from which a run takes long: the equality check was warm-up enough.
_LONG_RUNS = {"cpu": 2048**2, "cuda": 131_072**2}
_FEWEST_LONG_ROUNDS = 5
# Operations that compute attention, the most specific first.
_KERNELS = (
    "clearhead.blocked_attention",
    "aten._scaled_dot_product_flash_attention_for_cpu",
    "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_cudnn_attention",
    "aten._scaled_dot_product_efficient_attention",
    "aten._native_multi_head_attention",
    "aten._safe_softmax",
    "aten._softmax",
)


@dataclass(frozen=True)
class Settings(command.Settings):
    """Settings of the attention benchmark."""

    rounds: int = option(40, "Interleaved rounds per case.", type=command.positive)
    only: tuple[str, ...] = option(SECTIONS, "Only these sections.", choices=SECTIONS)
    shape: tuple[Shape, ...] = option(
        (),
        "Shapes, instead of those of each section.",
        type=sizes("batch", "tokens", "d_model", "heads"),
        metavar="B,N,D,H",
    )
    forms: tuple[str, ...] = option(
        ("eager",), "Forms of the section 'fused'.", choices=("eager", "compiled")
    )
    memory: bool = option(True, "Measure peak extra memory.")

    def quick(self) -> Self:
        """One tiny shape, one round, no memory."""
        return replace(self, shape=((2, 48, 24, 4),), rounds=1, memory=False)

    def check(self) -> None:
        """Refuse shapes whose width cannot be split into heads."""
        super().check()
        for batch, tokens, d_model, heads in self.shape:
            if d_model % heads:
                raise ValueError(
                    "--shape: expected batch,tokens,d_model,heads with heads dividing d_model, "
                    f"got {batch},{tokens},{d_model},{heads}."
                )

    def cases(self) -> list[Case]:
        """Every case of attention, in order."""
        found = []
        for section in (s for s in SECTIONS if s in self.only and s != "import"):
            for shape in self.shape or _SHAPES.get(section, _USUAL_SHAPES):
                cases = list(self._cases(section, shape))
                found += cases if "eager" in self.forms else []
                if "compiled" in self.forms and section == "fused":
                    found += [replace(case, compiled=True) for case in cases]
        return found

    def _cases(self, section: str, shape: Shape) -> Iterator[Case]:
        base = Case(section, *shape, dtype=self.dtype, device=self.device)
        if section == "long":
            yield base
            yield replace(base, dropout=0.1)
            return
        if section == "dropout":
            base = replace(base, dropout=0.1)
        elif section == "window":
            base = replace(base, window=min(256, max(1, base.tokens // 4)))
        elif section == "padding":
            base = replace(base, padding=base.tokens // 4)
        for direction in DIRECTIONS:
            yield replace(base, direction=direction)


def measure(settings: Settings, say: Say) -> dict[str, Any]:
    """Run the benchmark; everything that was measured, as plain data."""
    found = command.header("attention", settings)
    found["settings"]["tolerance"] = TOLERANCES[settings.dtype]
    found["settings"]["memory_method"] = memory.method(settings.device) if settings.memory else None
    found["cases"] = []
    for case in settings.cases():
        say(str(case))
        found["cases"].append(measure_case(case, settings))
        say(f"  {verdict(found['cases'][-1])}")
    if "import" in settings.only:
        say("import: a fresh interpreter")
        found["cases"].append(measure_import(settings))
    return found


def measure_case(
    case: Case, settings: Settings, contestants: Sequence[Implementation] | None = None
) -> dict[str, Any]:
    """Check equality, race, and measure the memory of every contestant that was timed."""
    contestants = contestants_for(case) if contestants is None else contestants
    if case.compiled:
        torch.compiler.reset()  # or torch compiles for all lengths, after several lengths
    reference, budget = Reference(case), memory.Budget(case)
    entries = [_enter(one, case, reference, budget) for one in contestants]
    takes_long = case.batch * case.tokens**2 >= _LONG_RUNS[case.device]
    rows = settings.race(
        [contestant for contestant, _ in entries],
        TOLERANCES[case.dtype],
        fewest=_FEWEST_LONG_ROUNDS if takes_long else timing.FEWEST_ROUNDS,
        warm_ups=0 if takes_long else 3,
    )
    found = []
    for row, (contestant, module), one in zip(rows, entries, contestants, strict=True):
        more: dict[str, Any] = {}
        run = contestant.run
        if row.status == "timed" and run is not None and module is not None:
            stored = sum(b.numel() * b.element_size() for b in module.buffers())
            more = {"kernel": kernel_of(run), "stored_mask_mib": round(stored / 2**20, 1)}
            if settings.memory:
                try:
                    more["peak_extra_mib"] = memory.peak_extra_mib(case, one.name, run)
                except RuntimeError as error:  # the times are worth keeping
                    reason = f"memory: {str(error).partition(chr(10))[0]}"
                    row.note = "; ".join(filter(None, [row.note, reason]))
        found.append(command.row_as_json(row, **more))
    return {
        **asdict(case),
        "shape": list(case.shape),
        "book_weights_mib": case.map_mib(),
        "rows_checked": None if reference.rows is None else len(reference.rows),
        "rows": found,
        "ours_to_fastest_other": ours_to_fastest(rows),
        "packed_to_fastest_other": ours_to_fastest(rows, packed=True),
    }


def _enter(
    one: Implementation, case: Case, reference: Reference, budget: memory.Budget
) -> tuple[timing.Contestant, torch.nn.Module | None]:
    """Build a contestant and compare it; one that cannot take part gets a note with the reason."""
    name = f"{one.name}, compiled" if case.compiled else one.name

    def not_run(why: str) -> tuple[timing.Contestant, None]:
        return timing.Contestant(name, None, note=why, ours=one.ours), None

    if not one.installed:
        return not_run("not installed")
    if reason := budget.refuse(one):
        return not_run(reason)
    try:
        module = one.module(case)
        run = make_run(module, reference.x, reference.gradient, case)
        gap = reference.gap(one, module)
    except ImportError as error:
        return not_run(f"cannot be imported: {error}")
    except torch.OutOfMemoryError:
        return not_run("out of GPU memory")
    except RuntimeError as error:
        if not case.compiled:
            raise
        return not_run(f"cannot be compiled: {str(error).partition(chr(10))[0]}")
    note = "" if one.biases else "has no biases: compared with biases of zero"
    return timing.Contestant(name, run, lambda: gap, note, one.ours), module


def ours_to_fastest(rows: Sequence[timing.Row], *, packed: bool = False) -> dict[str, Any] | None:
    """The fastest of the others, and our time as a multiple of its time."""
    timed = [row for row in rows if row.status == "timed"]
    own = [row for row in timed if row.ours and row.name.startswith(PACKED) == packed]
    ours = next(iter(own), None)
    others = [row for row in timed if not row.ours]
    if ours is None or not others:
        return None
    best = min(others, key=lambda row: row.median)
    return {"name": best.name, **timing.paired_ratio(ours, best).as_json()}


def kernel_of(run: Callable[[], object]) -> str:
    """The operation that computes attention in one run, as torch's profiler sees it."""
    with _without_stderr(), profile(activities=[ProfilerActivity.CPU]) as profiled:
        run()
    names = {event.name.replace("::", ".") for event in profiled.events() or ()}
    return next((name for name in _KERNELS if name in names), "generated by the compiler")


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Hide the two lines that torch's profiler writes to stderr each time."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def measure_import(settings: Settings) -> dict[str, Any]:
    """How long a fresh interpreter takes to import torch, and to import our module."""
    statements = ("import torch", "from clearhead import MultiHeadAttention")
    contestants = [
        timing.Contestant(
            statement,
            partial(subprocess.run, [sys.executable, "-c", statement], check=True),
            ours=statement == statements[1],
        )
        for statement in statements
    ]
    rows = settings.race(contestants, 0.0, warm_ups=1)
    return {
        "section": "import",
        "rows": [command.row_as_json(row) for row in rows],
        "ours_to_fastest_other": ours_to_fastest(rows),
    }


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The results as text."""
    fields = Case.__dataclass_fields__
    for case in found["cases"]:
        known = {key: value for key, value in case.items() if key in fields}
        yield "import" if case["section"] == "import" else str(Case(**known))
        for row in case["rows"]:
            peak = row.get("peak_extra_mib")
            facts = [f"{peak:,.1f} MiB" if peak is not None else "", row.get("kernel") or ""]
            if row["status"] == "timed":
                facts.append(row.get("note", ""))
            yield "   ".join([command.row_line(row), *filter(None, facts)])
        yield f"  {verdict(case)}\n"


def verdict(case: dict[str, Any]) -> str:
    """How ours compares with the fastest other contestant."""
    best = case["ours_to_fastest_other"]
    if best is None:
        return "There is no other contestant to compare with."
    return f"Ours takes {ratio_text(best, 3)} times as long as the fastest other, {best['name']}."


main = partial(
    command.main,
    "attention",
    Settings,
    measure,
    lines,
    __doc__,
    "--only dropout window --shape 1,4096,768,12",
)

if __name__ == "__main__":
    main()
