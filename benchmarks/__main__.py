"""Run every benchmark that suits the device, part by part: `python -m benchmarks`, `make bench`.

Each part writes its JSON as soon as it is done, so that Ctrl-C loses only the part in progress. A
part that fails is reported at the end, and the others still run. Nothing else should run on the
machine meanwhile.
"""

import argparse
import gc
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import attention, command, generate, kernel_choice, maps, play, view, watch
from benchmarks.command import say
from clearhead import timing

RESULTS = Path(__file__).parent / "results"
# (batch, tokens): longer sequences in smaller batches.
SWEEP_CPU = ((8, 128), (4, 512), (2, 1024), (1, 2048), (1, 4096), (1, 8192))
SWEEP_CUDA = ((2, 100), (8, 1024), (1, 8192), (1, 32_768), (1, 131_072))


@dataclass(frozen=True)
class Part:
    """One benchmark with its settings, and the file it writes.

    Args:
        name: What `--only` and `--skip` call it.
        file: The name of its JSON file.
        minutes: About how long it takes, on two cores of a server's CPU or on an H200.
        measure: Runs it.
        settings: Its settings.
    """

    name: str
    file: str
    minutes: float
    measure: Callable[[Any, command.Say], dict[str, Any]]
    settings: command.Settings


def parts_for(device: str, gpu: str | None = None) -> list[Part]:
    """Every part that suits the device, in the order in which they run."""
    if device == "cpu":
        return list(_cpu_parts())
    if gpu is None:
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "cuda"
    return list(_cuda_parts(gpu.lower().removeprefix("nvidia ").replace(" ", "-")))


def _attention(name: str, minutes: float, where: str, **settings: Any) -> Part:
    file = f"import-{where}.json" if name == "import" else f"attention-{where}-{name}.json"
    return Part(name, file, minutes, attention.measure, attention.Settings(**settings))


def _sweep(name: str, minutes: float, where: str, sizes: Any, **settings: Any) -> Part:
    """All contestants at several lengths."""
    shapes = tuple((*size, 768, 12) for size in sizes)
    return _attention(name, minutes, where, only=("fused",), shape=shapes, **settings)


def _cpu_parts() -> Iterator[Part]:
    for dtype in ("float32", "bfloat16"):
        yield _sweep(f"sweep-{dtype}", 10, "cpu", SWEEP_CPU, dtype=dtype, seconds=6)
    for dtype in ("float32", "bfloat16"):
        yield _sweep(
            *(f"compiled-{dtype}", 6, "cpu", SWEEP_CPU), dtype=dtype, seconds=6, forms=("compiled",)
        )
    yield _attention("dropout", 7, "cpu", only=("dropout",), seconds=20)
    small = ((8, 32, 32, 4), (8, 128, 128, 4))  # what students train
    yield _attention("dropout-small", 0.5, "cpu", only=("dropout",), seconds=5, shape=small)
    # In bfloat16 a CPU is too slow for the large shapes.
    for dtype, choices in (("float32", kernel_choice.SHAPES), ("bfloat16", kernel_choice.SMALL)):
        settings = kernel_choice.Settings(dtype=dtype, shape=choices, rounds=20, seconds=2)
        file = f"kernel-choice-cpu-{dtype}.json"
        yield Part(f"kernel-choice-{dtype}", file, 2, kernel_choice.measure, settings)
    yield _attention("window-padding", 5, "cpu", only=("window", "padding"), seconds=20)
    yield _attention("long", 5, "cpu", only=("long",), rounds=9, seconds=20)
    yield _attention("import", 1, "cpu", only=("import",), rounds=10, seconds=20)
    yield Part("maps", "maps-cpu-16384.json", 3, maps.measure, maps.Settings())
    writing = generate.Settings(batch=(1,), tokens=24)
    yield Part("generate", "generate-cpu.json", 3, generate.measure, writing)
    yield Part("watch", "watch-cpu.json", 4, watch.measure, watch.Settings(rounds=40))
    yield Part("view", "view-cpu-32768.json", 3, view.measure, view.Settings())
    yield Part("play", "play-cpu.json", 0.5, play.measure, play.Settings())


def _cuda_parts(where: str) -> Iterator[Part]:
    usual: dict[str, Any] = {"device": "cuda", "dtype": "bfloat16"}
    short: dict[str, Any] = {**usual, "seconds": 4}
    single: dict[str, Any] = {**short, "dtype": "float32"}
    compiled = ("compiled",)
    yield _sweep("sweep-bfloat16", 1.5, where, SWEEP_CUDA, **short)
    yield _sweep("sweep-float32", 1.5, where, SWEEP_CUDA[:-1], **single)
    shapes = ((1, 512), (8, 512), (8, 1024), (32, 1024))
    watched = watch.Settings(**usual, seconds=5, rounds=40, shape=shapes)
    yield Part("watch", f"watch-{where}.json", 0.5, watch.measure, watched)
    large = replace(watched, size="gpt2-xl")
    yield Part("watch-gpt2-xl", f"watch-{where}-gpt2-xl.json", 0.5, watch.measure, large)
    yield _attention("dropout", 0.5, where, only=("dropout",), **short)
    yield _attention("window-padding", 0.7, where, only=("window", "padding"), **short)
    settings = maps.Settings(**usual, tokens=(131_072,), dense=True)
    yield Part("maps", f"maps-{where}-131072.json", 0.5, maps.measure, settings)
    yield _sweep("compiled-bfloat16", 2, where, SWEEP_CUDA, forms=compiled, **short)
    yield _sweep("compiled-float32", 2, where, SWEEP_CUDA[:-1], forms=compiled, **single)
    generation = generate.Settings(**usual, tokens=256)
    yield Part("generate", f"generate-{where}.json", 3, generate.measure, generation)
    # A run takes four seconds: few rounds.
    yield _sweep("sweep-float32-131072", 4, where, SWEEP_CUDA[-1:], rounds=5, **single)
    settings = maps.Settings(**usual, tokens=(1_048_576,), rounds=3)
    yield Part("maps-1048576", f"maps-{where}-1048576.json", 2.5, maps.measure, settings)


def run_all(parts: Sequence[Part], out: Path, *, about: str) -> dict[str, str]:
    """Run the parts and write the JSON of each when it is done.

    Args:
        parts: What to run.
        out: The folder for the files.
        about: The command line, for the JSON.

    Returns:
        The names of the parts that failed, and why.
    """
    out.mkdir(parents=True, exist_ok=True)
    failed = {}
    for number, part in enumerate(parts):
        say(f"[{number + 1}/{len(parts)}] {part.name}")
        started = time.monotonic()
        try:
            found = part.measure(part.settings, lambda text: say(f"  {text}"))
        except Exception as error:
            traceback.print_exc()
            failed[part.name] = _reason(error)
            say(f"  failed: {failed[part.name]}")
        else:
            timing.write_json(out / part.file, found | {"part": part.name, "command": about})
            say(f"  {(time.monotonic() - started) / 60:.1f} min, wrote {out / part.file}")
        gc.collect()
        if part.settings.device == "cuda":
            torch.cuda.empty_cache()
    return failed


def _reason(error: Exception) -> str:
    """What went wrong, on one line."""
    if isinstance(error, ModuleNotFoundError):
        return f"needs {error.name}, which is not installed: pip install '.[bench,view]'"
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return "out of memory"
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def main(argv: Sequence[str] | None = None) -> None:
    """`python -m benchmarks`."""
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=(__doc__ or "").partition("\n\n")[0],
        epilog="Example: python -m benchmarks --only sweep-float32 maps --out mine",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", nargs="+", metavar="PART", help="Run only these parts.")
    parser.add_argument("--skip", nargs="+", default=[], metavar="PART", help="Skip these parts.")
    parser.add_argument("--quick", action="store_true", help="A trial with tiny sizes.")
    parser.add_argument("--list", action="store_true", help="List the parts and exit.")
    parser.add_argument("--out", type=Path, metavar="DIR", help="Where to write the JSON files.")
    options = parser.parse_args(argv)
    if options.quick and options.out is None:
        parser.error("--quick measures nothing: choose another folder with --out.")
    if options.out is not None and options.out.exists() and not options.out.is_dir():
        parser.error(f"--out {options.out}: expected a folder.")
    parts = parts_for(options.device)
    names = [part.name for part in parts]
    for name in {*(options.only or ()), *options.skip} - {*names}:
        parser.error(f"expected parts among {', '.join(names)}, got {name!r}.")
    parts = [p for p in parts if p.name in (options.only or names) and p.name not in options.skip]
    if options.quick:
        parts = [replace(part, settings=part.settings.quick()) for part in parts]
    out = options.out or RESULTS
    for part in parts:
        print(f"  {part.name:22} {part.minutes:4.1f} min   {out / part.file}")
    usual = sum(part.minutes for part in parts)
    print(f"{len(parts)} parts, about {usual:.0f} minutes on an otherwise idle machine.")
    if options.list:
        return
    try:
        for part in parts:
            part.settings.check()
    except ValueError as error:
        parser.error(str(error))
    about = f"python -m benchmarks {shlex.join(argv)}".strip()
    try:
        failed = run_all(parts, out, about=about)
    except KeyboardInterrupt:
        say("Stopped. Files of the finished parts are kept.")
        sys.exit(130)
    if failed:
        print(f"{len(failed)} of {len(parts)} parts failed:")
        for name, reason in failed.items():
            print(f"  {name}: {reason}")
        sys.exit(1)


if __name__ == "__main__":
    main()
