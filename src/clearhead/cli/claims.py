"""`clearhead claims`: common claims about attention, tested."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearhead.atomic_files import check_place
from clearhead.cli.shared import INTERRUPTED, JsonOption, out_option, progress_bar

if TYPE_CHECKING:
    from clearhead.lab.claims.claim import Claim

EXAMPLE = "clearhead claims mask-after-softmax"


def claims(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID", help="Test only these claims and show each in full.", show_default=False
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Use smaller sizes and fewer seeds: less than a minute."),
    ] = False,
    listed: Annotated[
        bool, typer.Option("--list", help="List ids and claims; measure nothing.")
    ] = False,
    out: Annotated[
        Path | None, out_option("Write the results as JSON, updated after each claim.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Measure only what is not yet in --out FILE."),
    ] = False,
    earlier: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Show results from a JSON file; measure nothing. Repeat to add other machines to "
            "--page.",
        ),
    ] = None,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the results as Markdown.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Test common claims about attention.

    Each claim gets a small experiment and a verdict: holds, holds if ..., or does not hold. All of
    them take less than ten minutes on two cores.
    """
    for option, path in (("--out", out), ("--page", page)):
        if path is not None:
            check_place(path, option)
    if resume and (out is None or not out.is_file()):
        raise ValueError("--resume continues the results in --out FILE: give an existing file.")
    from clearhead import drawing, timing
    from clearhead.lab.claims import claim_report

    screen = drawing.console()
    if listed:
        from clearhead.lab.claims import catalogue

        chosen = catalogue.find(names) if names else list(catalogue.CLAIMS.values())
        if as_json:
            print(json.dumps([{"name": claim.name, "says": claim.says} for claim in chosen]))
            return 0
        for claim in chosen:
            print(claim_report.hanging(f"{claim.name:21} ", claim.says, screen.width))
        return 0
    if earlier:
        results = [_read("--from", path, names) for path in earlier]
    else:
        measured = _measure(names, quick, out, resume)
        if measured is None:
            return INTERRUPTED
        results = [measured]
    found = results[0]
    if out is not None:
        timing.write_json(out, found)
    if page is not None:
        timing.write_text(page, claim_report.markdown(found, results[1:]))
    for file in (out, page):
        if file is not None:
            print(f"Wrote {file}", file=sys.stderr)
    if as_json and out is None:
        print(json.dumps(found, allow_nan=False))
    elif names and not as_json:
        width = min(screen.width, 80)
        print("\n\n".join(claim_report.describe(claim, width) for claim in found["claims"]))
    elif not as_json:
        screen.print(claim_report.draw(found))
    return 0


def _read(option: str, path: Path, names: list[str] | None) -> dict[str, Any]:
    """Earlier results: all of them, or the claims with these names."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{option} {path}: {error.strerror}.") from None
    except ValueError:
        raise ValueError(f"{option} {path}: not a JSON file.") from None
    if not isinstance(found, dict) or found.get("benchmark") != "claims":
        raise ValueError(f"{option} {path}: expected the output of `clearhead claims --out FILE`.")
    if names:
        found["claims"] = [claim for claim in found["claims"] if claim["name"] in names]
    return found


def _measure(
    names: list[str] | None, quick: bool, out: Path | None, resume: bool
) -> dict[str, Any] | None:
    """Test claims with a progress bar; results so far go to `out`. None after Ctrl-C."""
    from clearhead import timing
    from clearhead.lab.claims import catalogue

    known: list[dict[str, Any]] = []
    if resume and out is not None:
        before = _read("--out", out, None)
        known = before["claims"]
        if before["settings"] != {"quick": quick}:
            there, here = ("without", "with") if quick else ("with", "without")
            raise ValueError(
                f"--resume: {out} was measured {there} --quick, and this run is {here} it."
            )
    chosen = catalogue.find(names) if names else list(catalogue.CLAIMS.values())
    done = {claim["name"] for claim in known}
    left = [claim for claim in chosen if claim.name not in done]
    measured = 0
    if not names:
        time = "less than a minute" if quick else "up to ten minutes; --quick, less than one"
        print(f"Testing {len(left)} claims: {time}.", file=sys.stderr)

    def on_done(found: dict[str, Any]) -> None:
        nonlocal measured
        measured += 1
        if out is not None:
            timing.write_json(out, found)

    with progress_bar() as progress:
        task = progress.add_task("", total=len(left))

        def on_start(claim: Claim[...]) -> None:
            progress.update(task, completed=measured, description=claim.name)

        try:
            return catalogue.measure(
                left, quick=quick, earlier=known, on_start=on_start, on_done=on_done
            )
        except KeyboardInterrupt:
            progress.stop()
    print(_interrupted(measured, len(left), out), file=sys.stderr)
    return None


def _interrupted(measured: int, total: int, out: Path | None) -> str:
    """What an interrupted run has saved, and how to resume it."""
    text = f"\nInterrupted: {measured} of {total} claims measured"
    if out is None:
        return f"{text}. Nothing is saved: with --out FILE, the run could be resumed."
    if not measured:
        return f"{text}; {out} is unchanged."
    return f"{text} and saved in {out}. For the rest, repeat the command with --resume."
