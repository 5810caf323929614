"""The attention benchmark: which cases there are, and what is printed and written about them.

- fused: every usual implementation, causal, forward and forward + backward.
- dropout: training with dropout 0.1, where SDPA on the CPU builds tokens × tokens.
- window: each query sees the last 256 keys; SDPA needs that as a dense mask.
- padding: a quarter of each sequence is filling, on the left. (On the right, causality alone hides
  it from every real token, and nobody needs a mask.)
- long: 16,384 tokens, where the book's form would need 12.9 GB for the weights alone.
- import: what importing the library costs on top of torch.

A case of the section "fused" can be asked for compiled, too: those who go through `torch.compile`
well run against each other, in a case of their own. Compiling is timed apart.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.table import Table

from benchmarks import gates, memory
from benchmarks.cases import Case, Pass
from benchmarks.contestants import Builder, builders_for
from benchmarks.entries import enter, synchronize
from benchmarks.room import Room
from clearhead import timing

SECTIONS = ("fused", "dropout", "window", "padding", "long", "import")
FORMS = ("eager", "compiled")
Shape = tuple[int, int, int, int]

_SHAPES: dict[str, tuple[Shape, ...]] = {
    "fused": ((8, 1024, 768, 12), (1, 4096, 768, 12), (2, 100, 768, 12)),
    "dropout": ((1, 4096, 768, 12), (8, 1024, 768, 12)),
    "window": ((1, 4096, 768, 12), (8, 1024, 768, 12)),
    "padding": ((1, 4096, 768, 12), (8, 1024, 768, 12)),
    "long": ((1, 16384, 768, 12),),
}
_QUICK_SHAPE: Shape = (2, 320, 96, 4)
_PASSES: tuple[Pass, ...] = ("forward", "forward+backward")
_PACKAGES = ("torch", "numpy", "clearhead", "transformers", "x-transformers")
_DROPOUT = 0.1
_WINDOW = 256
# batch × tokens × tokens from which runs take long: the gate has warmed up, and few rounds must do.
_LONG_RUNS = {"cpu": 2048**2, "cuda": 131_072**2}
_FEWEST_LONG_ROUNDS = 5


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Args:
        sections: Which of `SECTIONS`.
        shapes: (batch, tokens, d_model, heads) for every section; empty = each section's own.
        rounds: Rounds of each case.
        seconds: The rounds of one case end after this time.
        minutes: All cases together should end after this time; shared among those still to come.
        device: "cpu" or "cuda".
        dtype: "float32" and so on.
        quick: One tiny shape and no memory: to see that it works, not to learn anything.
        memory: Whether to measure memory too.
        forms: "eager", "compiled" or both; compiled ones take part in the section "fused" only.
        seed: Decides the order within rounds and the bootstrap's draws.
    """

    sections: Sequence[str] = SECTIONS
    shapes: Sequence[Shape] = ()
    rounds: int = 40
    seconds: float = 60.0
    minutes: float = math.inf
    device: str = "cpu"
    dtype: str = "float32"
    quick: bool = False
    memory: bool = True
    forms: Sequence[str] = ("eager",)
    seed: int = 0

    def cases(self) -> Iterator[Case]:
        """Every case of attention, in order; importing is none."""
        for section in SECTIONS:
            if section in self.sections and section != "import":
                shapes = self.shapes or ([_QUICK_SHAPE] if self.quick else _SHAPES[section])
                for shape in shapes:
                    cases = list(self._cases(section, shape))
                    if "eager" in self.forms:
                        yield from cases
                    if "compiled" in self.forms and section == "fused":
                        yield from (replace(case, compiled=True) for case in cases)

    def _cases(self, section: str, shape: Shape) -> Iterator[Case]:
        base = Case(section, *shape, dtype=self.dtype, device=self.device)
        tokens = shape[1]
        if section == "long":
            yield base
            yield replace(base, dropout=_DROPOUT)
            return
        for direction in _PASSES:
            case = replace(base, direction=direction)
            if section == "dropout":
                case = replace(case, dropout=_DROPOUT)
            elif section == "window":
                case = replace(case, window=min(_WINDOW, max(1, tokens // 4)))
            elif section == "padding":
                case = replace(case, padding=tokens // 4)
            yield case


@dataclass
class Result:
    """A case and what was found out."""

    case: dict[str, Any]
    title: str
    rows: list[timing.Row]
    seed: int = 0

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        best = timing.ours_to_fastest(self.rows, seed=self.seed)
        return {
            **self.case,
            "rows": [row.as_json() for row in self.rows],
            "ours_to_fastest_other": best
            and {"name": best[0], **(timing.ratio_as_json(best[1]) or {})},
        }


def measure(
    settings: Settings,
    *,
    show: Callable[[Result], None] = lambda _: None,
    say: Callable[[str, int], Callable[[], None]] = lambda *_: timing.nothing,
) -> dict[str, Any]:
    """Run the benchmark; everything found, as plain data.

    Args:
        settings: What and how.
        show: Called with each finished case.
        say: Called with a case's title and number of steps; gives what to call after each step.
    """
    check(settings)
    found = timing.environment(_PACKAGES)
    results = []
    cases = list(settings.cases())
    end = time.monotonic() + 60 * settings.minutes
    with memory.Meter() as meter:
        for number, case in enumerate(cases):
            # A case's rounds get half of its share: gate, compiling and memory take time as well.
            share = max(0.0, end - time.monotonic()) / (len(cases) - number) / 2
            limited = replace(settings, seconds=min(settings.seconds, share))
            result = measure_case(case, limited, say, meter=meter)
            results.append(result)
            show(result)
    if "import" in settings.sections:
        result = measure_import(settings, say)
        results.append(result)
        show(result)
    found["machine"]["threads"] = torch.get_num_threads()
    if settings.device == "cuda":
        found["machine"]["gpu"] = torch.cuda.get_device_name()
    return {
        "schema": timing.SCHEMA,
        "benchmark": "attention",
        **found,
        "settings": {
            "rounds": settings.rounds,
            "seconds": settings.seconds,
            "minutes": settings.minutes if math.isfinite(settings.minutes) else None,
            "quick": settings.quick,
            "seed": settings.seed,
            "tolerance": gates.TOLERANCES[settings.dtype],
            "memory_method": memory.method(settings.device) if _with_memory(settings) else None,
        },
        "cases": [result.as_json() for result in results],
    }


def measure_case(
    case: Case,
    settings: Settings,
    say: Callable[[str, int], Callable[[], None]] = lambda *_: timing.nothing,
    builders: Sequence[Builder] | None = None,
    meter: memory.Meter | None = None,
) -> Result:
    """Gate, race, and the memory of everybody who was timed."""
    builders = builders_for(case) if builders is None else builders
    title = describe(case)
    tick = say(title, settings.rounds + (len(builders) if _with_memory(settings) else 0))
    if case.compiled:
        torch.compiler.reset()  # or torch would compile for any length, after enough lengths
    reference, room = gates.Reference(case), Room(case)
    entries = [enter(builder, case, reference, room) for builder in builders]
    takes_long = case.batch * case.tokens**2 >= _LONG_RUNS[case.device]
    rows = timing.race(
        [entry.contestant for entry in entries],
        tolerance=gates.TOLERANCES[case.dtype],
        rounds=settings.rounds,
        seconds=settings.seconds,
        fewest=_FEWEST_LONG_ROUNDS if takes_long else timing.FEWEST_ROUNDS,
        warm_ups=0 if takes_long else 3,
        seed=settings.seed,
        synchronize=synchronize(case),
        tick=tick,
    )
    with ExitStack() as stack:
        if meter is None:
            meter = stack.enter_context(memory.Meter())
        for row, entry, builder in zip(rows, entries, builders, strict=True):
            run = entry.contestant.run
            if row.status != "timed" or run is None or entry.module is None:
                continue
            row.compile_s = entry.compile_s
            row.kernel = entry.kernel or gates.which_kernel(run, compiled=case.compiled)
            row.stored_mask_mib = gates.stored_mask_mib(entry.module)
            if _with_memory(settings):
                try:
                    row.peak_extra_mib = meter.peak_extra_mib(case, builder.name, run)
                except RuntimeError as error:  # the times are worth keeping without it
                    words = str(error).splitlines()[-1]
                    row.note = "; ".join(filter(None, [row.note, f"memory: {words}"]))
                tick()
    facts = {**case.as_json(), "shape": list(case.shape)}
    facts["book_weights_mib"] = book_weights_mib(case)
    facts["rows_checked"] = None if reference.rows is None else len(reference.rows)
    return Result(facts, title, rows, settings.seed)


def measure_import(
    settings: Settings,
    say: Callable[[str, int], Callable[[], None]] = lambda *_: timing.nothing,
) -> Result:
    """How long a fresh interpreter takes to import torch, and to import our module."""
    title = "import: a fresh interpreter, start to end"
    torch_alone, with_ours = "import torch", "from clearhead import MultiHeadAttention"
    rows = timing.race(
        [
            timing.Contestant(torch_alone, timing.import_run(torch_alone)),
            timing.Contestant(with_ours, timing.import_run(with_ours), ours=True),
        ],
        tolerance=0.0,
        rounds=settings.rounds,
        seconds=settings.seconds,
        seed=settings.seed,
        tick=say(title, settings.rounds),
    )
    return Result({"section": "import"}, title, rows, settings.seed)


def book_weights_mib(case: Case) -> float:
    """What the attention weights alone need in the book's form: computed, not run."""
    return case.batch * case.heads * case.tokens**2 * case.element_size() / 2**20


def describe(case: Case) -> str:
    """A title for the table."""
    words = [
        f"{case.section}: batch {case.batch}, tokens {case.tokens}, d_model {case.d_model}, "
        f"heads {case.heads}",
        case.direction.replace("+", " + "),
        f"{case.dtype}, {case.device}",
    ]
    words += ["compiled"] if case.compiled else []
    words += [f"dropout {case.dropout}, training"] if case.dropout else []
    words += [f"window {case.window}"] if case.window is not None else []
    words += [f"{case.padding} tokens of filling on the left"] if case.padding else []
    return "; ".join(words)


def draw(result: Result) -> Table:
    """One case as a table."""
    caption = [verdict(result)]
    if result.case["section"] == "long":
        caption.append(
            "The book's form would need "
            f"{result.case['book_weights_mib']:,.0f} MiB for its attention weights alone."
        )
    table = Table(title=result.title, caption="\n".join(caption), title_justify="left")
    table.caption_justify = "left"
    table.add_column("contestant")
    for heading in ("median ms", "middle half", "× ours [95 %]", "extra MiB", "mask MiB"):
        table.add_column(heading, justify="right")
    table.add_column("what ran, remarks", overflow="fold")
    for row in result.rows:
        if row.status != "timed":
            table.add_row(row.name, "-", "-", "-", "-", "-", row.note)
            continue
        low, high = row.quartiles
        table.add_row(
            row.name,
            f"{row.median * 1e3:,.2f}",
            f"{low * 1e3:,.2f} - {high * 1e3:,.2f}",
            "1" if row.ours else str(row.ratio_to_ours or "-"),
            _number(row.peak_extra_mib),
            _number(row.stored_mask_mib),
            "; ".join(word for word in (row.kernel, _compile_words(row), row.note) if word),
            style="bold" if row.ours else "",
        )
    return table


def verdict(result: Result) -> str:
    """How ours compares with the fastest other."""
    best = timing.ours_to_fastest(result.rows, seed=result.seed)
    if best is None:
        return "Nobody to compare ours with."
    name, ratio = best
    return (
        f"Ours takes {ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] times the time of the "
        f"fastest other, {name}; {ratio.rounds} rounds."
    )


def _compile_words(row: timing.Row) -> str:
    return "" if row.compile_s is None else f"compiled in {row.compile_s:.1f} s"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _with_memory(settings: Settings) -> bool:
    return settings.memory and not settings.quick


def check(settings: Settings) -> None:
    """Raise ValueError for settings that cannot be measured."""
    unknown = set(settings.sections) - set(SECTIONS)
    if unknown:
        raise ValueError(
            f"sections: expected some of {', '.join(SECTIONS)}, got {', '.join(sorted(unknown))}."
        )
    if settings.dtype not in gates.TOLERANCES:
        raise ValueError(
            f"dtype: expected one of {', '.join(gates.TOLERANCES)}, got {settings.dtype!r}."
        )
    if settings.device not in ("cpu", "cuda"):
        raise ValueError(f'device: expected "cpu" or "cuda", got {settings.device!r}.')
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: torch sees no CUDA device here. Leave --device out for the CPU.")
    if unknown := set(settings.forms) - set(FORMS):
        raise ValueError(
            f"forms: expected some of {', '.join(FORMS)}, got {', '.join(sorted(unknown))}."
        )
    if settings.rounds < 1:
        raise ValueError(f"rounds: expected at least 1, got {settings.rounds}.")
    for batch, tokens, d_model, heads in settings.shapes:
        if min(batch, tokens, d_model, heads) < 1 or d_model % heads:
            raise ValueError(
                "shape: expected batch,tokens,d_model,heads, all positive, heads dividing d_model, "
                f"got {batch},{tokens},{d_model},{heads}."
            )
