"""`clearhead claims`: the command line. Importing this file imports no torch."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearhead.atomic_files import check_place

if TYPE_CHECKING:
    from clearhead.lab.claims.claim import Claim

EXAMPLE = "clearhead claims mask-after-softmax"
_INTERRUPTED = 130  # what a shell reports after Ctrl-C


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
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the JSON there, after each claim what is measured so far."
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Measure only what is not in --out FILE yet."),
    ] = False,
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
) -> int:
    """Put what notes on attention claim to a measurement.

    Each claim is a small experiment with a verdict: it holds, it holds if ..., it does not hold.
    All together take less than ten minutes on two cores.
    """
    for option, path in (("--out", out), ("--page", page)):
        if path is not None:
            check_place(path, option)
    if resume and (out is None or not out.is_file()):
        raise ValueError("--resume goes on with what is in --out FILE: give a file that is there.")
    from clearhead import drawing, timing
    from clearhead.lab.claims import claim_report as pages

    screen = drawing.console()
    if listed:
        from clearhead.lab.claims import catalogue

        for claim in catalogue.CLAIMS.values():
            print(pages.hanging(f"{claim.name:21} ", claim.says, screen.width))
        return 0
    results = [_read("--from", path, names) for path in earlier or ()]
    if not results:
        before = _read("--out", out, None) if resume and out is not None else None
        measuring = _Measuring(names, quick, out, before)
        try:
            results = [measuring.run()]
        except KeyboardInterrupt:
            print(measuring.kept(), file=sys.stderr)
            return _INTERRUPTED
    found = results[0]
    if out is not None:
        timing.write_json(out, found)
    if page is not None:
        timing.write_text(page, pages.markdown(found, results[1:]))
    for file in (out, page):
        if file is not None:
            print(f"Wrote {file}", file=sys.stderr)
    if as_json and out is None:
        print(json.dumps(found, allow_nan=False))
    elif names and not as_json:
        print("\n\n".join(pages.describe(claim) for claim in found["claims"]))
    elif not as_json:
        screen.print(pages.draw(found))
    return 0


def _read(option: str, path: Path, names: list[str] | None) -> dict[str, Any]:
    """What was measured earlier; all of it, or the claims with these names."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{option} {path}: {error.strerror}.") from None
    except ValueError:
        raise ValueError(f"{option} {path}: not JSON.") from None
    if not isinstance(found, dict) or found.get("benchmark") != "claims":
        raise ValueError(f"{option} {path}: not what `clearhead claims --out FILE` writes.")
    if names:
        found["claims"] = [claim for claim in found["claims"] if claim["name"] in names]
    return found


class _Measuring:
    """The experiments, one after the other; what is measured is in the file after each of them.

    Args:
        names: Only these; all if None.
        quick: Smaller sizes and fewer seeds.
        out: Where the JSON goes, too.
        before: What an earlier run of the same kind has measured already.
    """

    def __init__(
        self,
        names: list[str] | None,
        quick: bool,
        out: Path | None,
        before: dict[str, Any] | None,
    ) -> None:
        from clearhead.lab.claims import catalogue

        self._quick, self._out = quick, out
        known = [] if before is None else before["claims"]
        self._before = [claim for claim in known if claim["name"] in catalogue.CLAIMS]
        if before is not None and before["settings"] != {"quick": quick}:
            with_it, without = ("", " not") if quick else (" not", "")
            raise ValueError(
                f"--resume: {out} was{without} measured with --quick, and this run is{with_it}."
            )
        self._chosen = catalogue.find(names) if names else list(catalogue.CLAIMS.values())
        done = {claim["name"] for claim in self._before}
        self._left = [claim for claim in self._chosen if claim.name not in done]
        self._measured = 0

    def run(self) -> dict[str, Any]:
        """Measure what is left, with a bar on standard error if that is a terminal."""
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        from clearhead import drawing
        from clearhead.lab.claims import catalogue

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
            task = progress.add_task("", total=len(self._left))

            def on_start(claim: "Claim[...]") -> None:
                progress.update(task, completed=self._measured, description=claim.name)

            found = catalogue.measure(
                self._left, quick=self._quick, on_start=on_start, on_done=self._keep
            )
        return self._joined(found)

    def _keep(self, found: dict[str, Any]) -> None:
        from clearhead import timing

        self._measured += 1
        if self._out is not None:
            timing.write_json(self._out, self._joined(found))

    def _joined(self, found: dict[str, Any]) -> dict[str, Any]:
        """With what was measured before, in the catalogue's order."""
        from clearhead.lab.claims import catalogue

        order = list(catalogue.CLAIMS)
        claims = [*self._before, *found["claims"]]
        return {**found, "claims": sorted(claims, key=lambda claim: order.index(claim["name"]))}

    def kept(self) -> str:
        """What is left of a run that was stopped, and how to go on with it."""
        words = f"\nStopped: {self._measured} of {len(self._left)} claims measured"
        if self._out is None:
            return f"{words}. Nothing is kept: with --out FILE it could go on from here."
        if not self._measured:
            return f"{words}; {self._out} is as it was."
        return f"{words}, and kept in {self._out}. The rest: the same command with --resume."
