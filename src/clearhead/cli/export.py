"""`clearhead export`: write a model as ONNX or for torch.export."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from clearhead.atomic_files import check_place
from clearhead.cli.shared import JsonOption, ModelOption, out_option
from clearhead.version import install

EXAMPLE = "clearhead export model.onnx"


def export(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="OUT",
            help="The file to write: .onnx, or .pt2 for torch. Or give it as -o OUT.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path | None, out_option("The same as OUT.")] = None,
    model: ModelOption = None,
    what: Annotated[
        Literal["model", "step"],
        typer.Option(
            help="All tokens at once, or only the new ones with earlier keys and values as inputs."
        ),
    ] = "model",
    as_json: JsonOption = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Also show the warnings of torch's exporter.")
    ] = False,
) -> None:
    """Export a model to ONNX or torch.export, and check the file.

    One graph serves all batch sizes and lengths. The ONNX file uses standard operators only; the
    weights of a large model are stored beside it in OUT.data. A checkpoint must be a GPT-2.
    """
    named = [each for each in (path, out) if each is not None]
    if len(named) != 1:
        raise ValueError(f"Name one file to write: OUT, or -o OUT.\n  Try: {EXAMPLE}")
    (target,) = named
    check_place(target)
    from rich.console import Console

    from clearhead import drawing

    screen = Console(stderr=True)
    with screen.status("importing torch") as status:
        from clearhead.exporter import TOLERANCE, UnequalExport
        from clearhead.exporter import export as write
        from clearhead.models import find_model

        status.update(f"loading {model or 'the model that comes with Clearhead'}")
        loaded = find_model(model)
        try:
            written = write(loaded.gpt2, target, what=what, say=status.update, verbose=verbose)
        except (ModuleNotFoundError, UnequalExport) as error:
            raise ValueError(str(error)) from error
    if as_json:
        found = {**asdict(written), "path": str(written.path), "model": loaded.path}
        print(json.dumps({"schema": 1, **found}, allow_nan=False))
        return
    out_screen = drawing.console()
    out_screen.print(f"{written.path}: {what}, dynamic batch and tokens", markup=False)
    out_screen.print(f"  in    {_list(written.inputs)}", markup=False)
    out_screen.print(f"  out   {_list(written.outputs)}", markup=False)
    if written.gap is None:
        out_screen.print(f"  not compared with the model: {install('onnx')}", markup=False)
        return
    lengths = ", ".join(
        f"{tokens} + {past}" if past else f"{tokens}" for _, tokens, past in written.sizes
    )
    out_screen.print(
        f"  equal to the model within {written.gap:.0e} (allowed {TOLERANCE:.0e}) "
        f"at {lengths} tokens",
        markup=False,
    )


def _list(names: list[str]) -> str:
    """A few of the names; a model has two per layer."""
    return ", ".join(names if len(names) <= 5 else [*names[:3], "...", names[-1]])
