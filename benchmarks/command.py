"""What every benchmark shares: settings that are also its command-line options, and its header.

A benchmark is a module with a `Settings` class, `measure(settings, say)`, which returns plain data,
and `lines(found)`, which renders that data for the terminal. `main` makes a command of the three.
"""

import argparse
import dataclasses
import math
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import torch

from clearhead import timing
from clearhead.atomic_files import check_place
from clearhead.configs import GPT2_CONFIGS

DTYPES = ("float64", "float32", "bfloat16", "float16")
PACKAGES = (
    *("torch", "triton", "numpy", "transformers", "x-transformers", "starlette", "uvicorn"),
    "clearhead",
)
Say = Callable[[str], None]


def option(default: Any, help: str, **parser_arguments: Any) -> Any:
    """A field of a settings class that is also an option of `argparse`."""
    return dataclasses.field(default=default, metadata={"help": help, **parser_arguments})


def positive(text: str) -> int:
    """A whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}.")
    return int(text)


def sizes(*names: str) -> Callable[[str], tuple[int, ...]]:
    """A parser for positive numbers separated by commas.

    >>> sizes("batch", "tokens")("8,1024")
    (8, 1024)
    """

    def parse(text: str) -> tuple[int, ...]:
        parts = text.split(",")
        if len(parts) != len(names) or not all(p.isdecimal() and int(p) for p in parts):
            raise argparse.ArgumentTypeError(f"expected {','.join(names)}, got {text!r}.")
        return tuple(map(int, parts))

    return parse


def model_size() -> Any:
    """The `--size` option of benchmarks that run a GPT-2."""
    return option("gpt2-small", "Size of the GPT-2; its weights are random.", choices=GPT2_CONFIGS)


@dataclass(frozen=True)
class Settings:
    """Settings of all benchmarks. Each benchmark adds its own."""

    device: str = option("cpu", "Where to run.", choices=("cpu", "cuda"))
    dtype: str = option("float32", "Data type.", choices=DTYPES)
    rounds: int = option(9, "Interleaved rounds per case.", type=positive)
    seconds: float = option(60.0, "End a case after this time, once it had 5 to 9 rounds.")

    def quick(self) -> Self:
        """Tiny sizes and one round: shows that the benchmark works, measures nothing."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise ValueError if these settings cannot be measured here."""
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("--device cuda: torch finds no CUDA device on this machine.")

    def synchronize(self) -> None:
        """Wait until the device has finished."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch's object."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    def race(
        self,
        contestants: Sequence[timing.Contestant],
        tolerance: float,
        *,
        warm_ups: int = 3,
        fewest: int = timing.FEWEST_ROUNDS,
    ) -> list[timing.Row]:
        """`timing.race` with these settings."""
        return timing.race(
            contestants,
            tolerance=tolerance,
            rounds=self.rounds,
            seconds=self.seconds,
            fewest=fewest,
            warm_ups=warm_ups,
            synchronize=self.synchronize,
        )


SettingsType = TypeVar("SettingsType", bound=Settings)


def header(benchmark: str, settings: Settings) -> dict[str, Any]:
    """The first fields of every results file: schema, benchmark, environment, settings."""
    found = timing.environment(PACKAGES)
    found["machine"]["threads"] = torch.get_num_threads()
    if settings.device == "cuda":
        found["machine"]["gpu"] = torch.cuda.get_device_name()
    given = dataclasses.asdict(settings)
    given = {k: None if v == math.inf else v for k, v in given.items()}  # JSON has no infinity
    return {
        "schema": timing.SCHEMA,
        "benchmark": benchmark,
        **found,
        "device": settings.device,
        "dtype": settings.dtype,
        "settings": given,
    }


def row_as_json(row: timing.Row, **more: Any) -> dict[str, Any]:
    """One contestant as plain data. One that was not timed has no times."""
    found: dict[str, Any] = {"name": row.name, "status": row.status, "ours": row.ours}
    found |= {"note": row.note} if row.note else {}
    # JSON has no NaN.
    found["gap"] = row.gap if row.gap is None or math.isfinite(row.gap) else str(row.gap)
    if row.status == "timed":
        low, high = row.quartiles
        found |= {
            "median_ms": round(row.median * 1e3, 4),
            "quartiles_ms": [round(low * 1e3, 4), round(high * 1e3, 4)],
            "rounds": len(row.seconds),
            "ratio_to_ours": row.ratio_to_ours and row.ratio_to_ours.as_json(),
            **more,
        }
    return found


def ratio_text(ratio: dict[str, Any] | None, digits: int = 2) -> str:
    """A ratio and its interval, which a single round does not have.

    >>> ratio_text({"median": 1.5, "interval_95": [1.25, 2.0]})
    '1.50 [1.25, 2.00]'
    """
    if not ratio:
        return ""
    if ratio.get("rounds") == 1:
        return f"{ratio['median']:.{digits}f}"
    low, high = ratio["interval_95"]
    return f"{ratio['median']:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def row_line(row: dict[str, Any], value: str = "", base: str = "our time") -> str:
    """One contestant on one line; `value` replaces the time, `base` names what ratios refer to."""
    if row["status"] != "timed":
        return f"  {row['name']:36} {row.get('note', row['status'])}"
    value = value or f"{row['median_ms']:,.2f} ms"
    ratio = ratio_text(row["ratio_to_ours"])
    beside = f"   {ratio} x {base}" if ratio else ""
    return f"  {row['name']:36} {value:>18}{beside}"


def say(text: str) -> None:
    """Report progress on stderr."""
    print(text, file=sys.stderr, flush=True)


def main(
    name: str,
    settings_class: type[SettingsType],
    measure: Callable[[SettingsType, Say], dict[str, Any]],
    lines: Callable[[dict[str, Any]], Iterable[str]],
    about: str,
    example: str,
    argv: Sequence[str] | None = None,
) -> None:
    """The command `python -m benchmarks.NAME`.

    Args:
        name: The benchmark's name.
        settings_class: Its settings, one option per field.
        measure: Runs it.
        lines: Renders what it found.
        about: What the command does; the first paragraph is shown by `--help`.
        example: Options of an example, shown by `--help`.
        argv: The options; None = those of the process.
    """
    argv = sys.argv[1:] if argv is None else argv
    command = f"python -m benchmarks.{name}"
    parser = argparse.ArgumentParser(
        prog=command,
        description=about.partition("\n\n")[0],
        epilog=f"Example: {command} {example}",
    )
    for field in dataclasses.fields(settings_class):
        arguments = dict(field.metadata)
        if isinstance(field.default, bool):
            arguments["action"] = argparse.BooleanOptionalAction
        elif isinstance(field.default, tuple):
            arguments |= {"nargs": "+", "action": "extend"}
        else:
            arguments.setdefault("type", type(field.default))
        if field.default not in (None, ()):
            arguments["help"] += f" Default: {_shown(field.default)}."
        parser.add_argument("--" + field.name.replace("_", "-"), default=None, **arguments)
    parser.add_argument("--quick", action="store_true", help="A trial with tiny sizes.")
    parser.add_argument("--out", type=Path, metavar="FILE", help="Write the results as JSON.")
    options = vars(parser.parse_args(argv))
    out, quick = options.pop("out"), options.pop("quick")
    given = {key: value for key, value in options.items() if value is not None}
    settings = settings_class(**given)
    settings = settings.quick() if quick else settings
    try:
        settings.check()
        if out is not None:
            check_place(out, "--out")
    except (ValueError, OSError) as error:
        parser.error(str(error))
    found = measure(settings, say) | {"command": f"{command} {shlex.join(argv)}".strip()}
    for line in lines(found):
        print(line)
    if out is not None:
        timing.write_json(out, found)
        say(f"Wrote {out}")


def _shown(default: Any) -> str:
    values = default if isinstance(default, tuple) else (default,)
    return " ".join(
        ",".join(map(str, v)) if isinstance(v, tuple) else str(v).replace("%", "%%") for v in values
    )
