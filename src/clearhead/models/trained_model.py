"""The model in the box: a GPT-2 of our own parts, trained on the grammar, as one small file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import safetensors

from clearhead.configs import read_config
from clearhead.embedding import Rope
from clearhead.gpt2.empty_model import without_numbers
from clearhead.gpt2.model import GPT2
from clearhead.gpt2.weight_files import Spec, Tensors
from clearhead.models import gpt2_reader
from clearhead.models.hugging_face import Checkpoint
from clearhead.models.training_checkpoint import CHECKPOINT, read_about, write_safetensors
from clearhead.models.word_reading import read
from clearhead.tokenizers import END_OF_TEXT, WordTokenizer

MODEL = "model.safetensors"
_METADATA = "clearhead.lab"


def save_model(file: Path, model: GPT2, vocabulary: Sequence[str], about: dict[str, Any]) -> None:
    """Write weights, sizes and vocabulary to one safetensors file; what `about` says, too."""
    described = {
        "schema": 1,
        "config": dict(model.config),
        "rope_base": None if model.rope is None else model.rope.base,
        "vocabulary": list(vocabulary),
        **about,
    }
    write_safetensors(file, dict(model.state_dict()), {_METADATA: json.dumps(described)})


def load_model(file: Path) -> tuple[GPT2, WordTokenizer]:
    """The model that `save_model` wrote, in eval mode, and its tokenizer.

    Raises:
        ValueError: the file is broken, or another kind of file.
    """
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            about = (opened.metadata() or {}).get(_METADATA)
        tensors = Tensors([file])
    except (safetensors.SafetensorError, ValueError) as error:
        raise ValueError(f"{file}: not a whole safetensors file ({error}).") from None
    if about is None:
        raise ValueError(f"{file}: a safetensors file, but not one of `clearhead train`.")
    try:
        described = json.loads(about)
        model, words = _described(described, tensors.specs), described["vocabulary"]
        tokenizer = WordTokenizer(words)
    except (
        LookupError,
        TypeError,
        ValueError,
        RuntimeError,
    ) as error:  # too deep is a RuntimeError
        raise ValueError(
            f"{file}: what it says of its model makes no sense ({type(error).__name__}: {error}).\n"
            "  It was changed after `clearhead train` wrote it. Train it again."
        ) from None
    state = {name: tensor.clone() for name, tensor in tensors.read(tensors.specs)}
    model.load_state_dict(state, assign=True)
    return model.eval(), tokenizer


def _described(described: dict[str, Any], specs: Mapping[str, Spec]) -> GPT2:
    """The model without its numbers, once its shapes are found to be those of the file."""
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
    """The model that `clearhead train` wrote under this path; None if something else is there.

    Args:
        path: The file, the folder of a seed, or the folder of a run with one seed.

    Raises:
        ValueError: it is a run, but with several models, or not finished.
    """
    path = Path(path).expanduser()
    if path.is_file():
        if path.name == CHECKPOINT and read_about(path) is not None:
            return trained_file(path.parent)
        return path if _is_trained(path) else None
    if (path / MODEL).is_file():
        return path / MODEL if _is_trained(path / MODEL) else None
    if read_about(path / CHECKPOINT) is not None:
        raise ValueError(_unfinished(path / CHECKPOINT))
    done = [file for file in sorted(path.glob(f"seed-*/{MODEL}")) if _is_trained(file)]
    if len(done) > 1:
        folders = ", ".join(str(file.parent) for file in done)
        raise ValueError(
            f"{path}: a run of `clearhead train` with {len(done)} models.\n"
            f"  Give one of them: {folders}."
        )
    begun = [file for file in sorted(path.glob(f"seed-*/{CHECKPOINT}")) if read_about(file)]
    if not done and begun:
        raise ValueError(_unfinished(begun[0]))
    return done[0] if done else None


def _is_trained(file: Path) -> bool:
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            return _METADATA in (opened.metadata() or {})
    except (safetensors.SafetensorError, OSError):
        return False


def _unfinished(checkpoint: Path) -> str:
    about = read_about(checkpoint)
    assert about is not None
    settings, looks = about["settings"], about["looks"]
    folder = checkpoint.parent
    return (
        f"{folder}: a run of `clearhead train` that is not finished: step {looks[-1]['step']:,} of "
        f"{settings['steps']:,}.\n  Finish it: clearhead train --seeds {settings['seed'] + 1} "
        f"--steps {settings['steps']} --out {folder.parent} --resume"
    )


def shipped() -> tuple[GPT2, WordTokenizer]:
    """The model that comes with Clearhead, and its tokenizer."""
    with resources.as_file(
        resources.files("clearhead.models") / "grammar" / "model.safetensors"
    ) as file:
        return load_model(file)


class Words:
    """The lab's tokenizer for what people type, under the calls that GPT-2's answers.

    Attributes:
        end: The id that ends a text.
    """

    def __init__(self, tokens: WordTokenizer) -> None:
        self._tokens = tokens
        self.end = tokens.encode(END_OF_TEXT)[0]

    def encode(self, text: str) -> list[int]:
        """Text to ids; "The" is read as "the"."""
        return read(text, self._tokens).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Ids to text."""
        return self._tokens.decode(ids)


def find_checkpoint(model: str | Path | None = None) -> Checkpoint:
    """The model that `--model` names, in the form in which a text is read with any checkpoint.

    Args:
        model: What `clearhead train` wrote, or somebody else's checkpoint; None for the model in
            the box.
    """
    if model is None:
        return _as_checkpoint(*shipped(), "the lab's model")
    file = trained_file(model)
    if file is None:
        return gpt2_reader.load(model)
    return _as_checkpoint(*load_model(file), file.resolve().parent.name)


def _as_checkpoint(model: GPT2, tokens: WordTokenizer, name: str) -> Checkpoint:
    return Checkpoint(gpt2_reader.GPT2Model(model).eval(), gpt2_reader.Called(Words(tokens)), name)
