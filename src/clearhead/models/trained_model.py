"""The files that `clearhead train` writes: the trained model, and the checkpoint of a run.

Both are safetensors files whose metadata describes the content, so that one file is enough.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import save_file
from torch import Tensor

from clearhead.atomic_files import beside
from clearhead.configs import read_config
from clearhead.embedding import Rope
from clearhead.gpt2.empty_model import without_numbers
from clearhead.gpt2.model import GPT2
from clearhead.gpt2.weight_files import Spec, Tensors
from clearhead.tokenizers import WordTokenizer

MODEL = "model.safetensors"
CHECKPOINT = "checkpoint.safetensors"
METADATA = "clearhead.training"  # of a checkpoint
_MODEL_METADATA = "clearhead.lab"


def write_safetensors(file: Path, tensors: dict[str, Tensor], about: dict[str, str]) -> None:
    """Write tensors and metadata to a file, whole or not at all."""
    with beside(file) as whole:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, whole, about)


def save_model(file: Path, model: GPT2, vocabulary: Sequence[str], about: dict[str, Any]) -> None:
    """Write weights, sizes, vocabulary and the entries of `about` to one safetensors file."""
    described = {
        "schema": 1,
        "config": dict(model.config),
        "rope_base": None if model.rope is None else model.rope.base,
        "vocabulary": list(vocabulary),
        **about,
    }
    write_safetensors(file, dict(model.state_dict()), {_MODEL_METADATA: json.dumps(described)})


def load_model(file: Path) -> tuple[GPT2, WordTokenizer]:
    """The model that `save_model` wrote, in eval mode, and its tokenizer.

    Raises:
        ValueError: The file is damaged, or was not written by `clearhead train`.
    """
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            about = (opened.metadata() or {}).get(_MODEL_METADATA)
        tensors = Tensors([file])
    except (safetensors.SafetensorError, ValueError) as error:
        raise ValueError(f"{file}: not a complete safetensors file ({error}).") from None
    if about is None:
        raise ValueError(f"{file}: a safetensors file, but not one of `clearhead train`.")
    try:
        described = json.loads(about)
        model = _empty_model(described, tensors.specs)
        tokenizer = WordTokenizer(described["vocabulary"])
    # RuntimeError: sizes that torch cannot represent, or JSON that is nested too deeply.
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{file}: the description of its model is not valid "
            f"({type(error).__name__}: {error}).\n"
            "  The file was changed after `clearhead train` wrote it. Train the model again."
        ) from None
    state = {name: tensor.clone() for name, tensor in tensors.read(tensors.specs)}
    model.load_state_dict(state, assign=True)
    return model.eval(), tokenizer


def _empty_model(described: dict[str, Any], specs: Mapping[str, Spec]) -> GPT2:
    """The model without its weights; its shapes are checked against those of the file."""
    base, config = described["rope_base"], read_config(described["config"])
    if config["num_layers"] > len(specs):
        raise ValueError(f"{config['num_layers']} layers, but only {len(specs)} tensors")
    model = without_numbers(lambda: GPT2(config, rope=None if base is None else Rope(base)))
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: spec.shape for name, spec in specs.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise ValueError(
                f"{name}: expected {wanted.get(name, 'no such tensor')}, "
                f"got {found.get(name, 'no such tensor')}"
            )
    return model


def trained_file(path: str | Path) -> Path | None:
    """The model file that `clearhead train` wrote under this path; None if there is none.

    Args:
        path: The file, the folder of a seed, or the folder of a run with one seed.

    Raises:
        ValueError: The run has several models, or is not finished.
    """
    path = Path(path).expanduser()
    if path.is_file():
        if path.name == CHECKPOINT and read_about(path) is not None:
            return trained_file(path.parent)
        return path if _is_trained(path) else None
    if (path / MODEL).is_file():
        return path / MODEL if _is_trained(path / MODEL) else None
    if (about := read_about(path / CHECKPOINT)) is not None:
        raise ValueError(_unfinished(path, about))
    done = [file for file in sorted(path.glob(f"seed-*/{MODEL}")) if _is_trained(file)]
    if len(done) > 1:
        folders = ", ".join(str(file.parent) for file in done)
        raise ValueError(
            f"{path}: a run of `clearhead train` with {len(done)} models.\n"
            f"  Pass one of them: {folders}."
        )
    if done:
        return done[0]
    for file in sorted(path.glob(f"seed-*/{CHECKPOINT}")):
        if (about := read_about(file)) is not None:
            raise ValueError(_unfinished(file.parent, about))
    return None


def load_trained(path: str | Path) -> tuple[GPT2, WordTokenizer]:
    """The model that `clearhead train` wrote under this path, and its tokenizer.

    Raises:
        ValueError: There is no such model, or see `trained_file` and `load_model`.
    """
    path = Path(path).expanduser()
    return load_model(trained_file(path) or (path / MODEL if path.is_dir() else path))


def read_about(checkpoint: Path) -> dict[str, Any] | None:
    """The "settings" and "looks" in a checkpoint's metadata; None if it is not a checkpoint."""
    try:
        with safetensors.safe_open(checkpoint, framework="pt") as opened:
            about = (opened.metadata() or {}).get(METADATA)
        found = None if about is None else json.loads(about)
    except (safetensors.SafetensorError, OSError, ValueError, RecursionError):
        return None
    if isinstance(found, dict) and {"settings", "looks"} <= found.keys():
        return found
    return None


def _is_trained(file: Path) -> bool:
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            return _MODEL_METADATA in (opened.metadata() or {})
    except (safetensors.SafetensorError, OSError):
        return False


def _unfinished(folder: Path, about: dict[str, Any]) -> str:
    settings, looks = about["settings"], about["looks"]
    return (
        f"{folder}: a run of `clearhead train` that is not finished: step {looks[-1]['step']:,} of "
        f"{settings['steps']:,}.\n  Finish it: clearhead train --seeds {settings['seed'] + 1} "
        f"--steps {settings['steps']} --out {folder.parent} --resume"
    )
