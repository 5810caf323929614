"""`clearhead export`: the command line. Importing this file imports no torch."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from clearhead.atomic_files import check_place

EXAMPLE = "clearhead export model.onnx"


class What(StrEnum):
    """The forms of a model that can be exported."""

    MODEL = "model"
    STEP = "step"


def export(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="The file to write: .onnx, or .pt2 for torch.")
    ],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR_OR_NAME",
            help="A GPT-2: a folder, a file, a name on the hub, or what `clearhead train` wrote. "
            "[default: the small trained model that comes with Clearhead]",
            show_default=False,
        ),
    ] = None,
    what: Annotated[
        What,
        typer.Option(
            help="All tokens at once, or only the new ones with earlier keys and values as inputs."
        ),
    ] = What.MODEL,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show the warnings of torch's exporter, too.")
    ] = False,
) -> None:
    """Write a model as ONNX or for torch.export, and compare.

    One graph serves every batch and every length. The ONNX file has standard operators only; a
    large model's weights stand beside it in OUT.data.
    """
    check_place(out)
    from rich.console import Console

    from clearhead import drawing

    screen = Console(stderr=True)
    with screen.status("importing torch") as status:
        from clearhead.exporter.export_file import TOLERANCE, UnequalExport
        from clearhead.exporter.export_file import export as write
        from clearhead.models import find_model

        status.update(f"reading {model or 'the model in the box'}")
        loaded = find_model(model)
        try:
            written = write(loaded.gpt2, out, what=what.value, say=status.update, verbose=verbose)
        except (ModuleNotFoundError, UnequalExport) as error:
            raise ValueError(str(error)) from error
    out_screen = drawing.console()
    out_screen.print(f"{written.path}: {what.value}, batch and tokens are free", markup=False)
    out_screen.print(f"  in    {_list(written.inputs)}", markup=False)
    out_screen.print(f"  out   {_list(written.outputs)}", markup=False)
    if written.gap is None:
        out_screen.print("  not compared with the model: pip install onnxruntime", markup=False)
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
    """A few names; a model has two for each layer."""
    return ", ".join(names if len(names) <= 5 else [*names[:3], "...", names[-1]])
