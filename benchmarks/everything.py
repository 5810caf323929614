"""`clearhead bench all`: the command line. Importing this file imports no torch."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.options import Device, check_device, progress


def everything(
    device: Annotated[Device, typer.Option(help="Where to run.")] = Device.cpu,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder for the JSON files.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0, help="Share so much time among all cases. Each still gets 5 to 9 rounds."
        ),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="PART", help="Only this part; may be repeated.")
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(metavar="PART", help="Not this part; may be repeated.")
    ] = None,
    compiled: Annotated[bool, typer.Option(help="Also what torch.compile makes of them.")] = True,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny sizes, one round: a trial. Needs --out.")
    ] = False,
    just_list: Annotated[bool, typer.Option("--list", help="Say what would run, and end.")] = False,
) -> None:
    """Run every benchmark that suits the device, and write a JSON file for each part.

    A part's file is there as soon as the part is done: Ctrl-C loses only the one under way. A part
    that fails is told of at the end, and the exit status is 1. Files go to benchmarks/results,
    unless --out is given. Nothing else should run on the machine meanwhile.
    """
    if quick and out is None:
        raise typer.BadParameter(
            "it measures nothing worth keeping: give --out a folder of its own.",
            param_hint="--quick",
        )
    folder = Path("benchmarks/results") if out is None else out
    if folder.exists() and not folder.is_dir():
        raise typer.BadParameter(f"{folder} is no folder.", param_hint="--out")

    from benchmarks.attention import Result, verdict
    from benchmarks.parts import Job, Outcome, Part, choose, parts_for, run_all
    from clearhead.drawing import console

    if not just_list:
        check_device(device)
    try:
        parts = choose(parts_for(device.value, compiled=compiled), only or (), skip or ())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    screen = console()

    def tell(line: str) -> None:
        screen.print(line, markup=False, highlight=False, soft_wrap=True)

    for part in parts:
        tell(f"  {part.name:22} {part.minutes:4.1f} min   {folder / part.file}")
    usual = sum(part.minutes for part in parts)
    tell(f"{len(parts)} parts, about {usual:.0f} minutes on an otherwise quiet machine.")
    if minutes is not None:
        tell(f"They share {minutes:g} minutes, as far as the fewest rounds allow.")
    if just_list:
        return
    done: list[str] = []

    def before(part: Part, number: int) -> None:
        tell(f"[{number + 1}/{len(parts)}] {part.name}")

    def after(outcome: Outcome) -> None:
        took = f"{outcome.seconds / 60:.1f} min"
        if outcome.error:
            tell(f"  failed after {took}: {outcome.error}")
        else:
            done.append(outcome.part.name)
            tell(f"  {took}, wrote {folder / outcome.part.file}")

    def show(result: Result) -> None:
        tell(f"  {result.title}\n    {verdict(result)}")

    command = _as_typed(device, minutes, compiled, quick)
    command += "".join(f" --only {part}" for part in only or ())
    command += "".join(f" --skip {part}" for part in skip or ())
    with progress() as say:
        job = Job(
            device.value, float("inf") if minutes is None else minutes, quick, compiled, show, say
        )
        try:
            outcomes = run_all(parts, folder, job, command=command, before=before, after=after)
        except KeyboardInterrupt:
            tell(f"Stopped. Written: {', '.join(done) or 'nothing yet'}.")
            raise typer.Exit(130) from None
    failed = [outcome for outcome in outcomes if outcome.error]
    if failed:
        tell(f"{len(failed)} of {len(parts)} parts failed:")
        for outcome in failed:
            tell(f"  {outcome.part.name}: {outcome.error}")
        raise typer.Exit(1)


def _as_typed(device: Device, minutes: float | None, compiled: bool, quick: bool) -> str:
    """The command again, for the files."""
    words = ["clearhead bench all", f"--device {device.value}"]
    words += [] if minutes is None else [f"--minutes {minutes:g}"]
    words += [] if compiled else ["--no-compiled"]
    words += ["--quick"] if quick else []
    return " ".join(words)
