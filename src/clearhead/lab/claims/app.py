"""`clearhead claims`: the command line. Importing this file imports no torch."""

import itertools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from clearhead.lab.claims.claim import Claim

_TABLE_WIDTH = 150  # in a pipe, where there is no window to fit into


def claims(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Only these, each shown in full.", show_default=False),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Smaller sizes and fewer seeds: less than a minute.")
    ] = False,
    listed: Annotated[
        bool, typer.Option("--list", help="Show ids and claims; measure nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, for programs.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the JSON there, too.")
    ] = None,
    earlier: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Show such a JSON; measure nothing. May be repeated, for --page: more machines.",
        ),
    ] = None,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page in Markdown there, too.")
    ] = None,
) -> None:
    """Put what notes on attention claim to a measurement.

    Each claim is a small experiment with a verdict: it holds, it holds if ..., it does not hold.
    All together take less than ten minutes on two cores.
    """
    for option, path in (("--out", out), ("--page", page)):
        if path is not None and not path.parent.is_dir():
            raise ValueError(f"{option} {path}: there is no folder {path.parent}.")
    from clearhead import drawing, harness
    from clearhead.lab.claims import page as pages

    screen = drawing.console()
    if not screen.is_terminal:
        screen = drawing.console(width=_TABLE_WIDTH)
    if listed:
        from clearhead.lab.claims import catalogue

        for claim in catalogue.CLAIMS.values():
            screen.print(f"{claim.name:21} {claim.says}")
        return
    results = [_read(path, names) for path in earlier or ()] or [_measure(names, quick)]
    found = results[0]
    if out is not None:
        harness.write_json(out, found)
    if page is not None:
        harness.write_text(page, pages.markdown(found, results[1:]))
    if as_json:
        print(json.dumps(found, allow_nan=False))
    elif names:
        print("\n\n".join(pages.describe(claim) for claim in found["claims"]))
    else:
        screen.print(pages.draw(found))


def _read(path: Path, names: list[str] | None) -> dict[str, Any]:
    """What was measured earlier; all of it, or the claims with these names."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"--from {path}: {error.strerror}.") from None
    except ValueError:
        raise ValueError(f"--from {path}: not JSON.") from None
    if not isinstance(found, dict) or found.get("benchmark") != "claims":
        raise ValueError(f"--from {path}: not what `clearhead claims --out FILE` writes.")
    if names:
        found["claims"] = [claim for claim in found["claims"] if claim["name"] in names]
    return found


def _measure(names: list[str] | None, quick: bool) -> dict[str, Any]:
    """Run the experiments, with a bar on standard error if that is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from clearhead import drawing
    from clearhead.lab.claims import catalogue

    chosen = catalogue.find(names) if names else list(catalogue.CLAIMS.values())
    err = drawing.console(sys.stderr)
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    ) as progress:
        task = progress.add_task("", total=len(chosen))
        done = itertools.count()

        def on_start(claim: "Claim[...]") -> None:
            progress.update(task, completed=next(done), description=claim.name)

        return catalogue.measure(chosen, quick=quick, on_start=on_start)
