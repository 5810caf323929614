"""`clearhead bench`: the command line. Importing this file imports no torch."""

import json
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.everything import everything
from benchmarks.options import Device, Dtype, check_device, check_file, progress

app = typer.Typer(
    help="Measure ours beside the others, once they are proven equal.",
    no_args_is_help=True,
)

_TABLE_WIDTH = 150  # in a pipe, where there is no window to fit into


class Section(StrEnum):
    """The parts of `clearhead bench attention`."""

    fused = "fused"
    dropout = "dropout"
    window = "window"
    padding = "padding"
    long = "long"
    imports = "import"


@app.callback()
def _bench() -> None:
    """Keep `attention` a command of its own, also while it is the only one."""


@app.command()
def attention(
    only: Annotated[
        list[Section] | None, typer.Option(help="Only this part; may be repeated.")
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(help="batch,tokens,d_model,heads; may be repeated.", metavar="B,N,D,H"),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds of each case.")] = 40,
    seconds: Annotated[
        float, typer.Option(min=0, help="End a case after so long, and 5 to 9 rounds.")
    ] = 60.0,
    device: Annotated[Device, typer.Option(help="Where to run.")] = Device.cpu,
    dtype: Annotated[Dtype, typer.Option(help="The numbers' type.")] = Dtype.float32,
    memory: Annotated[bool, typer.Option(help="Measure peak extra memory, too.")] = True,
    compiled: Annotated[
        bool, typer.Option(help="The compiled forms, too, each fused case a second time.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="One tiny shape, few rounds, no memory: a trial.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the JSON to this file.")] = None,
) -> None:
    """Compare the usual ways to write multi-head attention with ours.

    Who does not compute the same as the readable ladder is not timed.
    Prints a table for each case, then everything as one line of JSON.
    The full run takes about half an hour on two cores;
    nothing else should run on the machine meanwhile.
    """
    shapes = [_parse_shape(text) for text in shape or ()]
    check_file(out)

    from benchmarks.attention import FORMS, SECTIONS, Result, Settings, check, draw, measure
    from clearhead.drawing import console

    settings = Settings(
        sections=[section.value for section in only] if only else SECTIONS,
        shapes=shapes,
        rounds=min(rounds, 9) if quick else rounds,
        seconds=seconds,
        device=device.value,
        dtype=dtype.value,
        quick=quick,
        memory=memory,
        forms=FORMS if compiled else FORMS[:1],
    )
    try:
        check(settings)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    screen = console()
    if not screen.is_terminal:
        screen = console(width=_TABLE_WIDTH)
    with progress() as say:

        def show(result: Result) -> None:
            screen.print(draw(result))
            screen.print()

        found = measure(settings, show=show, say=say)
    _write(found, out)


@app.command()
def maps(
    tokens: Annotated[
        list[int] | None, typer.Option(min=1, help="The length; may be repeated. Default 16384.")
    ] = None,
    heads: Annotated[int, typer.Option(min=1, help="How many heads.")] = 12,
    head_dim: Annotated[int, typer.Option(min=1, help="Their width.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds at each length.")] = 9,
    device: Annotated[Device, typer.Option(help="Where to run.")] = Device.cpu,
    dtype: Annotated[Dtype, typer.Option(help="The numbers' type.")] = Dtype.float32,
    dense: Annotated[
        bool, typer.Option("--dense", help="On CUDA: where building the weights stops fitting.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the JSON to this file.")] = None,
) -> None:
    """Compare the statistics of a whole map with PyTorch's own forward pass.

    Entropy, received, a 256 x 256 thumbnail and previous, in one pass, of causal attention.
    Prints a table, then everything as one line of JSON.

    Example: clearhead bench maps --tokens 16384
    """
    if dense and device is not Device.cuda:
        raise typer.BadParameter("only on CUDA: the CPU would swap.", param_hint="--dense")
    check_file(out)
    check_device(device)

    from benchmarks.maps import Settings, measure
    from clearhead.drawing import console

    settings = Settings(
        tokens or [16384], heads, head_dim, device.value, dtype.value, rounds, dense
    )
    with progress() as say:
        found = measure(settings, say=say)
    screen = console()
    for case in found["cases"]:
        screen.print(f"{case['tokens']:,} tokens, {heads} heads x {head_dim}, {dtype.value}")
        for row in case["rows"]:
            if row["status"] != "timed":
                screen.print(f"  {row['name']:28} {row['note']}", markup=False)
                continue
            ratio = row["ratio_to_ours"]
            beside = f"{ratio['median']:.2f} x the forward" if ratio else ""
            screen.print(f"  {row['name']:28} {row['median_ms']:10.1f} ms  {beside}")
    _write(found, out)


@app.command(epilog="Example: clearhead bench generate --batch 1 --tokens 32")
def generate(
    size: Annotated[
        str, typer.Option(help="gpt2-small, -medium, -large or -xl; the weights are random.")
    ] = "gpt2-small",
    batch: Annotated[
        list[int] | None,
        typer.Option(min=1, help="How many texts at a time; may be repeated. [default: 1 and 16]"),
    ] = None,
    device: Annotated[Device, typer.Option(help="Where to run.")] = Device.cpu,
    dtype: Annotated[Dtype, typer.Option(help="The numbers' type.")] = Dtype.float32,
    tokens: Annotated[int, typer.Option(min=1, help="New tokens in a run.")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds of each case.")] = 9,
    prefill: Annotated[
        int, typer.Option(min=0, help="Time the reading of a prompt this long, too; 0 = not.")
    ] = 1024,
    compiled: Annotated[
        bool, typer.Option(help="On CUDA: Hugging Face's static cache with torch.compile, too.")
    ] = True,
    out: Annotated[Path | None, typer.Option(help="Write the JSON to this file.")] = None,
) -> None:
    """Compare how fast GPT-2 writes: ours, Hugging Face's generate, and without a cache.

    Who writes other tokens is not timed. Prints a table for each case, then everything as one line
    of JSON.
    """
    check_file(out)
    check_device(device)
    _check_size(size)

    from benchmarks.generate import Settings, draw, measure

    settings = Settings(
        size, batch or [1, 16], device.value, dtype.value, tokens, rounds, prefill, compiled
    )
    with progress() as say:
        found = measure(settings, say=say)
    _show(draw(found))
    _write(found, out)


@app.command()
def view(
    tokens: Annotated[int, typer.Option(min=1, help="The length.")] = 32768,
    heads: Annotated[int, typer.Option(min=1, help="How many heads.")] = 12,
    head_dim: Annotated[int, typer.Option(min=1, help="Their width.")] = 64,
    tiles: Annotated[int, typer.Option(min=20, help="Tiles to ask for in each way.")] = 200,
    out: Annotated[Path | None, typer.Option(help="Write the JSON to this file.")] = None,
) -> None:
    """Measure the viewer: time to the first picture, milliseconds per tile, memory.

    Prints a few lines, then everything as one line of JSON.

    Example: clearhead bench view --tokens 32768
    """
    check_file(out)
    from benchmarks.viewing import Settings, measure
    from clearhead.drawing import console

    with progress() as say:
        found = measure(Settings(tokens, heads, head_dim, tiles), say=say)
    screen = console()
    screen.print(
        f"{tokens:,} tokens: first picture after {found['first_picture_s']} s, "
        f"all {heads} after {found['all_pictures_s']} s"
    )
    for name in ("while_walking", "one_by_one", "three_at_a_time"):
        row = found[f"tiles_{name}_ms"]
        words = name.replace("_", " ")
        screen.print(f"  a tile, {words:16} median {row['median']} ms, 95 % {row['p95']} ms")
    _write(found, out)


@app.command(epilog="Example: clearhead bench watch --device cuda --dtype bfloat16")
def watch(
    device: Annotated[Device, typer.Option(help="Where to run.")] = Device.cpu,
    dtype: Annotated[Dtype, typer.Option(help="The numbers' type.")] = Dtype.float32,
    shape: Annotated[
        list[str] | None,
        typer.Option(help="batch,tokens; may be repeated.", metavar="B,N"),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds of each case.")] = 20,
    size: Annotated[
        str, typer.Option(help="The model's size: gpt2-small to gpt2-xl.", metavar="NAME")
    ] = "gpt2-small",
    layers: Annotated[
        int | None, typer.Option(min=1, help="The model's layers, if not those of its size.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the JSON to this file.")] = None,
) -> None:
    """Compare GPT-2 watched with GPT-2 plain: what looking costs.

    The output must be equal bit for bit first. Prints a few lines, then everything as one line of
    JSON. About five minutes on two cores.
    """
    cases = [_parse_case(text) for text in shape or ()]
    _check_size(size)
    check_file(out)
    check_device(device)

    from benchmarks.watching import CASES, CUDA_CASES, Settings, draw, measure

    usual = CUDA_CASES if device is Device.cuda else CASES
    settings = Settings(cases or usual, device.value, dtype.value, rounds, size=size, layers=layers)
    with progress() as say:
        found = measure(settings, say=say)
    _show(draw(found))
    _write(found, out)


app.command("all", epilog="Example: clearhead bench all --only sweep-float32 --out my-results")(
    everything
)


def _show(lines: Iterable[str]) -> None:
    from clearhead.drawing import console

    screen = console()
    for line in lines:
        screen.print(line, markup=False, highlight=False, soft_wrap=True)


def _write(found: dict[str, Any], out: Path | None) -> None:
    """Everything as one line of JSON: into the file, if there is to be one, and out."""
    from clearhead.timing import write_json

    if out is not None:
        write_json(out, found)
    print(json.dumps(found, allow_nan=False))


def _check_size(size: str) -> None:
    """Refuse what is no name of a GPT-2."""
    from clearhead.configs import GPT2_CONFIGS

    if size not in GPT2_CONFIGS:
        raise typer.BadParameter(
            f"expected one of {', '.join(GPT2_CONFIGS)}, got {size!r}.", param_hint="--size"
        )


def _parse_shape(text: str) -> tuple[int, int, int, int]:
    """(8, 1024, 768, 12) from "8,1024,768,12"."""
    parts = text.split(",")
    if len(parts) != 4 or not all(part.strip().isdecimal() for part in parts):
        raise typer.BadParameter(
            f"expected batch,tokens,d_model,heads, for example 8,1024,768,12, got {text!r}.",
            param_hint="--shape",
        )
    batch, tokens, d_model, heads = (int(part) for part in parts)
    return batch, tokens, d_model, heads


def _parse_case(text: str) -> tuple[int, int]:
    """(8, 1024) from "8,1024"."""
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().isdecimal() and int(part) for part in parts):
        raise typer.BadParameter(
            f"expected batch,tokens, for example 8,1024, got {text!r}.", param_hint="--size"
        )
    batch, tokens = (int(part) for part in parts)
    return batch, tokens
