"""export(): write the graph, then read it back and compare it with the module."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.atomic_files import beside, check_place
from clearhead.exporter.export_graph import Graph, What, graph
from clearhead.gpt2 import GPT2
from clearhead.version import __version__

TOLERANCE = 1e-5  # of the largest number that comes out, or of 1 if that is larger
_TALKATIVE = ("torch", "onnxscript", "onnx_ir")  # loggers
OPSET = 18  # the oldest that torch's exporter writes, so that the most runtimes read it


class UnequalExport(RuntimeError):
    """The written file does not give the module's numbers."""


@dataclass(frozen=True)
class Exported:
    """What was written, and how far it is from the module.

    Attributes:
        path: The file.
        what: "model" or "step".
        inputs: The names of what goes in, in order.
        outputs: The names of what comes out, in order.
        gap: The largest difference found, as a part of the largest number; None where the runtime
            that would tell is not installed.
        sizes: The (batch, tokens, past) that were compared.
    """

    path: Path
    what: str
    inputs: list[str]
    outputs: list[str]
    gap: float | None
    sizes: list[tuple[int, int, int]]


def export(
    module: nn.Module,
    path: str | os.PathLike[str],
    *,
    what: What = "model",
    say: Callable[[str], None] | None = None,
    verbose: bool = False,
) -> Exported:
    """Write a module as one graph for every batch and every length up to context_length.

    The file is compared with the module afterwards, also at context_length itself; one that gives
    other numbers is not left behind. ONNX files use standard operators only.

    Args:
        module: A `MultiHeadAttention`, `TransformerBlock` or `GPT2`, in eval mode.
        path: Where to; `.onnx` for ONNX (needs onnx and onnxscript), `.pt2` for `torch.export`.
        what: "model" reads all tokens at once; "step" takes the keys and values of earlier tokens
            as inputs (past.0.keys, past.0.values, ...) and gives those of all (present.0.keys, ..).
        say: Called with what happens next, for a progress line.
        verbose: Let torch's exporter say what it says of its own insides.

    Raises:
        ValueError: The suffix is unknown, or something in the module cannot be exported; the
            message says why.
        TypeError: It is none of these modules.
        OSError: There is no such folder, or the file may not be written.
        ModuleNotFoundError: A package that writes ONNX is missing.
        UnequalExport: The written file does not give the module's numbers.

    Example:
        >>> from clearhead import MultiHeadAttention
        >>> import tempfile
        >>> attention = MultiHeadAttention(8, 8, 16, 0.0, num_heads=2).eval()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     written = export(attention, folder + "/attention.pt2")
        >>> written.inputs, written.gap
        (['x'], 0.0)
    """
    path = Path(path)
    write = {".onnx": _write_onnx, ".pt2": _write_pt2}.get(path.suffix)
    if write is None:
        raise ValueError(
            f"path: expected a name that ends in .onnx or .pt2, got {path.name!r}.\n"
            "  .onnx is read by onnxruntime and others, .pt2 by torch.export.load."
        )
    check_place(path)
    form = graph(module, what)
    if path.suffix == ".onnx":
        _need("onnx", "onnxscript")
    say = say or (lambda text: None)
    with beside(path) as draft:
        say("tracing the module")
        with _only_our_warnings(verbose), torch.no_grad():
            program = _trace(form)
            say(f"writing {path.name}")
            write(program, form, draft, module)
            sizes = _sizes(form)
            gap = None
            if path.suffix == ".pt2" or importlib.util.find_spec("onnxruntime") is not None:
                run = _onnx_runner(draft, form) if path.suffix == ".onnx" else _pt2_runner(draft)
                gap = _compare(form, run, sizes, say)
        for part in set(draft.parent.iterdir()) - {draft}:  # the weights before the graph
            with beside(path.with_name(part.name)) as whole:
                shutil.move(part, whole)
    return Exported(path, what, form.inputs, form.outputs, gap, sizes if gap is not None else [])


def _trace(form: Graph) -> torch.export.ExportedProgram:
    """The graph, free of the example's sizes."""
    example = form.example(batch=2, tokens=3, past=4)
    program = torch.export.export(
        form.module, example, dynamic_shapes=form.dynamic_shapes, strict=False
    )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # names the folders of this machine
    return program


def _write_onnx(
    program: torch.export.ExportedProgram, form: Graph, path: Path, module: nn.Module
) -> None:
    written = torch.onnx.export(
        program,
        dynamo=True,
        opset_version=OPSET,
        input_names=form.inputs,
        output_names=form.outputs,
        dynamic_shapes=form.dynamic_shapes,
        verbose=False,
    )
    assert written is not None
    model = written.model
    for node in model.graph.all_nodes():
        node.metadata_props.clear()  # they too
    model.producer_name, model.producer_version = "clearhead", __version__
    about = {"schema": 1, "class": type(module).__name__, "torch": torch.__version__}
    if isinstance(module, GPT2):
        about["config"] = module.config
    model.metadata_props["clearhead"] = json.dumps(about)
    written.save(path)


def _write_pt2(
    program: torch.export.ExportedProgram, form: Graph, path: Path, module: nn.Module
) -> None:
    torch.export.save(program, path)


# Comparing.


def _sizes(form: Graph) -> list[tuple[int, int, int]]:
    """(batch, tokens, past): the smallest, the largest, and one in between."""
    whole = form.context_length
    if not form.cached:
        return [(1, 1, 0), (3, max(1, whole // 2), 0), (1, whole, 0)]
    half = whole // 2
    return [(1, whole, 0), (2, 1, half), (1, 1, whole - 1), (3, whole - half, half)]


def _compare(
    form: Graph,
    run: Callable[[tuple[Any, ...]], list[Tensor]],
    sizes: list[tuple[int, int, int]],
    say: Callable[[str], None],
) -> float:
    """The largest difference between the file and the module, relative to the largest number."""
    worst = 0.0
    for batch, tokens, past in sizes:
        say(f"comparing with the module: batch {batch}, {tokens} tokens, {past} before")
        example = form.example(batch, tokens, past)
        wanted = form.module(*example)
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        for name, ours, theirs in zip(form.outputs, wanted, run(example), strict=True):
            gap = float((theirs.to(ours) - ours).abs().max() / ours.abs().max().clamp(min=1))
            if not gap <= TOLERANCE:
                raise UnequalExport(
                    f"{name}: the exported file is off by {gap:.1e} of the largest number at "
                    f"batch {batch}, tokens {tokens}, past {past}; allowed is {TOLERANCE:.0e}.\n"
                    "  It was not kept. Another version of torch, onnxscript or onnxruntime may "
                    "do better; please report this one."
                )
            worst = max(worst, gap)
    return worst


def _onnx_runner(path: Path, form: Graph) -> Callable[[tuple[Any, ...]], list[Tensor]]:
    import onnxruntime  # type: ignore[import-untyped]  # it carries no types

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(example: tuple[Any, ...]) -> list[Tensor]:
        tensors = [example[0], *(example[1] if len(example) > 1 else [])]
        arrays = [tensor.cpu().numpy() for tensor in tensors]
        return [
            torch.from_numpy(array)
            for array in session.run(None, dict(zip(form.inputs, arrays, strict=True)))
        ]

    return run


def _pt2_runner(path: Path) -> Callable[[tuple[Any, ...]], list[Tensor]]:
    loaded = torch.export.load(path).module()

    def run(example: tuple[Any, ...]) -> list[Tensor]:
        out = loaded(*example)
        return list(out) if isinstance(out, tuple) else [out]

    return run


def _need(*packages: str) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(
            f"ONNX files need {' and '.join(missing)}.\n  pip install 'clearhead[onnx]'"
        )


@contextmanager
def _only_our_warnings(verbose: bool = False) -> Iterator[None]:
    """Keep from the user what torch's exporter says about its own insides, unless it is asked."""
    if verbose:
        yield
        return
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(max(logger.level, logging.ERROR))
    try:
        with warnings.catch_warnings():
            for kind in (FutureWarning, DeprecationWarning, UserWarning):
                warnings.simplefilter("ignore", kind)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
