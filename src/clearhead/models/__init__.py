"""What `--model` means: a shipped model, a folder, a file or a name on the hub.

Enters: what the user wrote after `--model`. Leaves: a `LoadedModel`, which has the weights, a name,
and a reader that turns text into token ids. Start reading at `find_model`.

    shipped_models   the models that come with Clearhead, with their cards
    int8_weights     weights in eight bits: the file of the shipped English model
    trained_model    the files that `clearhead train` writes for the grammar
    hugging_face     local checkpoints of any architecture, through transformers
    text_readers     text -> token ids and labels, token ids -> text
"""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from clearhead.configs import GPT2_CONFIGS
from clearhead.foreign_names import explained
from clearhead.gpt2.model import GPT2
from clearhead.gpt2.weight_files import read_json
from clearhead.models import hugging_face
from clearhead.models.loaded_model import LoadedModel
from clearhead.models.shipped_models import SHIPPED, load_english, load_grammar
from clearhead.models.text_readers import (
    BytePairTextReader,
    TextReader,
    WordTextReader,
    find_reader,
)
from clearhead.models.trained_model import load_model, trained_file
from clearhead.tokenizers import Tokenizer
from clearhead.tokenizers.gpt2_tokenizer import GPT2_VOCAB_SIZE

__all__ = ["LoadedModel", "find_model", "load"]

_NAMES = {"english": "the English model", "grammar": "the grammar model"}


@explained
def load(
    model: str | Path = "english", *, device: str | torch.device = "cpu"
) -> tuple[GPT2, Tokenizer]:
    """Load a model in eval mode, and its tokenizer.

    Args:
        model: "english" or "grammar", which come with Clearhead; a folder that `clearhead train`
            wrote; or a GPT-2: a folder, a file or a name on the hub.
        device: Where the weights go.

    Returns:
        The model, and the tokenizer that it was trained with.

    Raises:
        ValueError: The model is missing, damaged or not supported.

    Examples:
        >>> model, tokenizer = load("english")
        >>> tokenizer.tokens("The cat sat on the mat.")
        ['The', ' cat', ' sat', ' on', ' the', ' mat', '.']
    """
    loaded = find_model(model, device=device)
    tokenizer: Tokenizer = loaded.reader.tokenizer
    return loaded.gpt2, tokenizer


def find_model(
    model: str | Path | None = None,
    *,
    any_architecture: bool = False,
    language_model: bool = False,
    device: str | torch.device = "cpu",
) -> LoadedModel:
    """Load the model that `--model` names, in eval mode.

    Args:
        model: None for the default shipped model. Otherwise what `clearhead train` wrote, a GPT-2
            (a folder, a file or a name on the hub), or the name of a shipped model; an existing
            file or folder of that name comes first.
        any_architecture: Also accept Hugging Face checkpoints that are not GPT-2s. They can be
            watched, but not explained, exported or used to generate text.
        language_model: Load such a checkpoint with the output head that predicts tokens.
        device: Where the weights go; checkpoints of other architectures stay on the CPU.

    Raises:
        ValueError: The model is missing, damaged or not supported.

    Examples:
        >>> loaded = find_model("grammar")
        >>> loaded.read("The blue cat sat").labels
        ['The', 'blue?', 'cat', 'sat']
    """
    model = SHIPPED[0] if model is None else model
    if str(model) in SHIPPED and not Path(model).exists():
        return _shipped(str(model), device)
    file = trained_file(model)
    if file is not None:
        gpt2, words = load_model(file)
        folder = file.resolve().parent.name
        return LoadedModel(folder, gpt2.to(device), lambda: WordTextReader(words), str(file))
    with _naming_the_shipped(model):
        if any_architecture and not _is_our_gpt2(Path(model)):
            return hugging_face.load(model, language_model=language_model)
        gpt2 = GPT2.from_pretrained(model, device=device)
    reader = partial(find_reader, model, gpt2.config["vocab_size"])
    return LoadedModel(Path(model).resolve().name, gpt2.eval(), reader, str(model))


@contextmanager
def _naming_the_shipped(model: str | Path) -> Iterator[None]:
    """Where a name is neither a folder nor on the hub, also say which models there are."""
    if Path(model).exists():
        yield
        return
    known = (*SHIPPED, "gpt2", *GPT2_CONFIGS)
    close = difflib.get_close_matches(str(model).lower(), known, n=1, cutoff=0.7)
    if close and str(model) not in known and "/" not in str(model):  # do not ask the hub
        raise ValueError(
            f"{model}: no such file or folder. Did you mean {close[0]}?\n"
            f"  {' and '.join(SHIPPED)} come with Clearhead."
        )
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{error}\n  {' and '.join(SHIPPED)} come with Clearhead.") from error


def _shipped(name: str, device: str | torch.device) -> LoadedModel:
    reader: TextReader
    if name == "english":
        gpt2, pairs = load_english()
        reader = BytePairTextReader(pairs)
    else:
        gpt2, words = load_grammar()
        reader = WordTextReader(words)
    return LoadedModel(_NAMES[name], gpt2.to(device), lambda: reader, name)


def _is_our_gpt2(folder: Path) -> bool:
    """Whether a folder is loaded with our own GPT2 although transformers might load it as well.

    This is so for folders that Clearhead wrote with a vocabulary of their own, and where
    transformers or the folder's tokenizer is missing and the vocabulary is GPT-2's. The attention
    maps are the same.
    """
    config = folder / "config.json"
    described = read_json(config) if config.is_file() else {}
    kind, gpt2_vocabulary = (
        described.get("model_type"),
        described.get("vocab_size") == GPT2_VOCAB_SIZE,
    )
    if kind == "gpt2" and gpt2_vocabulary:
        has_transformers = importlib.util.find_spec("transformers") is not None
        return not (has_transformers and hugging_face.has_tokenizer(folder))
    return kind == "clearhead-gpt2" or (kind == "gpt2" and "clearhead_version" in described)
