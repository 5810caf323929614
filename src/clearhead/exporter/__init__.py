"""export(): a module -> one file that runs without Clearhead, in ONNX or PyTorch's .pt2 format.

`graph.py` wraps the module so that inputs and outputs are plain tensors; this file writes the
graph, reads it back, and compares it with the module. Start with `export`.
"""

from __future__ import annotations

import importlib.util
import io
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
from clearhead.exporter.graph import Graph, What, graph
from clearhead.foreign_names import explained
from clearhead.gpt2 import GPT2
from clearhead.version import __version__, install

TOLERANCE = 1e-5  # relative to the largest output, or to 1 if that is larger
_NOISY_LOGGERS = ("torch", "onnxscript", "onnx_ir")
OPSET = 18  # the oldest that torch writes, so that most runtimes can read it


class UnequalExport(RuntimeError):
    """The exported file does not compute what the module computes."""


@dataclass(frozen=True)
class Exported:
    """An exported file, and how far its results are from the module's.

    Attributes:
        path: The file.
        what: "model" or "step".
        inputs: The names of the inputs, in order.
        outputs: The names of the outputs, in order.
        gap: The largest difference found, relative to the largest output; None if the runtime
            for the comparison is not installed.
        sizes: The (batch, tokens, past) that were compared.
    """

    path: Path
    what: str
    inputs: list[str]
    outputs: list[str]
    gap: float | None
    sizes: list[tuple[int, int, int]]


@explained
def export(
    module: nn.Module,
    path: str | os.PathLike[str],
    *,
    what: What = "model",
    say: Callable[[str], None] | None = None,
    verbose: bool = False,
) -> Exported:
    """Write a module as one graph for all batch sizes and all lengths up to context_length.

    The file is then compared with the module, including at context_length itself, and discarded if
    the results differ. ONNX files use standard operators only.

    Args:
        module: A `MultiHeadAttention`, `TransformerBlock` or `GPT2`, in eval mode.
        path: The file to write: `.onnx` for ONNX (needs onnx and onnxscript), `.pt2` for
            `torch.export`.
        what: "model" reads all tokens at once; "step" takes the keys and values of earlier tokens
            as inputs (past.0.keys, past.0.values, ...) and returns those of all tokens
            (present.0.keys, ...).
        say: Called with a description of each stage, for a progress line.
        verbose: Whether to show the warnings of torch's exporter.

    Returns:
        The file, its inputs and outputs, and how far its results are from the module's.

    Raises:
        ValueError: The suffix is not supported, or the module cannot be exported; the message says
            why.
        TypeError: The module is of a different class.
        OSError: The folder does not exist, or the file cannot be written.
        ModuleNotFoundError: A package needed for ONNX is not installed.
        UnequalExport: The exported file does not compute what the module computes.

    Examples:
        >>> from clearhead import MultiHeadAttention
        >>> import tempfile
        >>> attention = MultiHeadAttention(8, 8, 16, 0.0, num_heads=2).eval()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     written = export(attention, folder + "/attention.pt2")
        >>> written.inputs, written.gap
        (['x'], 0.0)
    """
    path = Path(path)
    onnx = path.suffix == ".onnx"
    if not onnx and path.suffix != ".pt2":
        raise ValueError(
            f"path: expected a name that ends in .onnx or .pt2, got {path.name!r}.\n"
            "  onnxruntime and others read .onnx, torch.export.load reads .pt2."
        )
    check_place(path)
    form = graph(module, what)
    if onnx:
        missing = [name for name in ("onnx", "onnxscript") if not importlib.util.find_spec(name)]
        if missing:
            raise ModuleNotFoundError(
                f"export to ONNX needs {' and '.join(missing)}.\n"
                f"  Install them with: {install('onnx')}"
            )
    say = say or (lambda text: None)
    with beside(path) as draft:
        say("tracing the module")
        with _quiet_exporter(verbose), torch.no_grad():
            program = _trace(form)
            say(f"writing {path.name}")
            if onnx:
                _write_onnx(program, form, draft, module)
            else:
                # Into memory first: PyTorch's own writer ends the process if the disk is full.
                whole = io.BytesIO()
                torch.export.save(program, whole)
                draft.write_bytes(whole.getbuffer())
            sizes = _sizes(form)
            gap = None
            if not onnx or importlib.util.find_spec("onnxruntime") is not None:
                run = _onnx_runner(draft, form) if onnx else _pt2_runner(draft)
                gap = _compare(form, run, sizes, say)
        # The weights of a large model are in files beside the graph: move them first.
        for part in set(draft.parent.iterdir()) - {draft}:
            with beside(path.with_name(part.name)) as target:
                shutil.move(part, target)
    return Exported(path, what, form.inputs, form.outputs, gap, sizes if gap is not None else [])


def _trace(form: Graph) -> torch.export.ExportedProgram:
    """Trace the graph, independent of the example's sizes."""
    example = form.example(batch=2, tokens=3, past=4)
    program = torch.export.export(
        form.module, example, dynamic_shapes=form.dynamic_shapes, strict=False
    )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # contains paths on this machine
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
        node.metadata_props.clear()  # these too
    model.producer_name, model.producer_version = "clearhead", __version__
    about = {"schema": 1, "class": type(module).__name__, "torch": torch.__version__}
    if isinstance(module, GPT2):
        about["config"] = module.config
    model.metadata_props["clearhead"] = json.dumps(about)
    written.save(path)


def _sizes(form: Graph) -> list[tuple[int, int, int]]:
    """(batch, tokens, past) to compare: the smallest, the largest, and one in between."""
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
    """The largest difference between file and module, relative to the largest output."""
    worst = 0.0
    for batch, tokens, past in sizes:
        say(f"comparing with the module: batch {batch}, {tokens} tokens after {past} cached")
        example = form.example(batch, tokens, past)
        wanted = form.module(*example)
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        for name, ours, theirs in zip(form.outputs, wanted, run(example), strict=True):
            gap = float((theirs.to(ours) - ours).abs().max() / ours.abs().max().clamp(min=1))
            if not gap <= TOLERANCE:
                raise UnequalExport(
                    f"{name}: the exported file differs by {gap:.1e} of the largest output at "
                    f"batch {batch}, tokens {tokens}, past {past}; allowed is {TOLERANCE:.0e}.\n"
                    "  The file was discarded. Try another version of torch, onnxscript or "
                    "onnxruntime, and please report this one."
                )
            worst = max(worst, gap)
    return worst


def _onnx_runner(path: Path, form: Graph) -> Callable[[tuple[Any, ...]], list[Tensor]]:
    import onnxruntime  # type: ignore[import-untyped]  # has no types

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


@contextmanager
def _quiet_exporter(verbose: bool = False) -> Iterator[None]:
    """Hide the warnings of torch's exporter about its internals, unless verbose."""
    if verbose:
        yield
        return
    loggers = [logging.getLogger(name) for name in _NOISY_LOGGERS]
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
