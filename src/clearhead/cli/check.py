"""`clearhead check`: name the mistakes in a file, a class or a folder of submissions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli.shared import seed_option

EXAMPLE = "clearhead check my_attention.py"


def check(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A .py or .ipynb file, FILE:NAME for one class or function in it, or a folder.",
        ),
    ],
    hint: Annotated[
        bool, typer.Option("--hint", help="Show what goes wrong and where, but not the fix.")
    ] = False,
    steps: Annotated[
        bool,
        typer.Option(
            "--steps", help="Show the forward pass, line by line, with the meaning of each axis."
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="For programs: one JSON object per class, each on one line."),
    ] = False,
    csv: Annotated[
        Path | None,
        typer.Option(
            "--csv",
            metavar="FILE",
            help="Write one row per file as it finishes. Repeat the command to resume.",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a summary page to show in class."),
    ] = None,
    feedback: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write one Markdown and one HTML file per submission there."
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=64, help="The number of files to check at a time."),
    ] = 1,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="What counts in this assignment: a TOML file, see docs/check.md."
        ),
    ] = None,
    seed: Annotated[
        int | None, seed_option("Repeat a check: its report names the seed of its sizes.")
    ] = None,
    adapter: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="How to build and call a class with unusual arguments."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The assignment's data files, which submissions may read."
        ),
    ] = None,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Run a file of your own as you, without containment."),
    ] = False,
    write_adapter: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write an adapter template for the class."),
    ] = None,
) -> int:
    """Find and name the mistakes in attention code.

    The file runs in a separate process. The exit status is 0 if all is correct, 1 if something
    is wrong, 2 if something could not be run or judged.
    """
    from clearhead.checker.classroom import check_command as runner

    if write_adapter is not None:
        runner.write_adapter(target, write_adapter, trust=trust)
        return 0
    options = runner.Options(
        as_json=as_json,
        hint=hint,
        adapter=adapter,
        csv=csv,
        html=html,
        policy=policy,
        jobs=jobs,
        seed=seed,
        steps=steps,
        feedback=feedback,
        data=data,
        trust=trust,
    )
    return runner.check(target, options)
