"""`clearhead export`: write a model as ONNX or for torch.export."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from clearhead.atomic_files import check_place
from clearhead.cli.shared import GPT2Option

EXAMPLE = "clearhead export model.onnx"


def export(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="The file to write: .onnx, or .pt2 for torch.")
    ],
    model: GPT2Option = None,
    what: Annotated[
        Literal["model", "step"],
        typer.Option(
            help="All tokens at once, or only the new ones with earlier keys and values as inputs."
        ),
    ] = "model",
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Also show the warnings of torch's exporter.")
    ] = False,
) -> None:
    """Export a model to ONNX or torch.export, and check the file.

    One graph serves all batch sizes and lengths. The ONNX file uses standard operators only; the
    weights of a large model are stored beside it in OUT.data.
    """
    check_place(out)
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
            written = write(loaded.gpt2, out, what=what, say=status.update, verbose=verbose)
        except (ModuleNotFoundError, UnequalExport) as error:
            raise ValueError(str(error)) from error
    out_screen = drawing.console()
    out_screen.print(f"{written.path}: {what}, dynamic batch and tokens", markup=False)
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
    """A few of the names; a model has two per layer."""
    return ", ".join(names if len(names) <= 5 else [*names[:3], "...", names[-1]])
