"""Hugging Face checkpoints of any architecture, loaded through transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import safetensors

from clearhead.drawing.text_format import memory
from clearhead.gpt2.empty_model import without_numbers
from clearhead.gpt2.weight_files import from_hub
from clearhead.models.loaded_model import LoadedModel
from clearhead.models.text_readers import HubTextReader, reason

_WEIGHTS = "*.safetensors"
# A float32 model takes eight times the bytes of a 4-bit one; masks and other buffers come on top.
_MAX_RATIO, _SPARE = 16, 2**28
# Without any of these files transformers silently builds an empty tokenizer.
_TOKENIZER = ("tokenizer*", "vocab*", "merges.txt", "*.model", "*.tiktoken")
_OTHER_FILES = (*_TOKENIZER, "*.json")  # to download beside the weights


def load(folder: str | Path, *, language_model: bool = False) -> LoadedModel:
    """Load a checkpoint from a folder or the hub, without running the checkpoint's own code.

    Args:
        folder: Where `save_pretrained` wrote the model, as safetensors, and its tokenizer; or a
            name on the hub, which is downloaded unless it is cached.
        language_model: Load it with the output head that predicts the next token.

    Raises:
        ValueError: The folder is incomplete, or transformers cannot load it.
    """
    name = str(folder)
    folder = Path(folder) if Path(folder).exists() else from_hub(name, also=_OTHER_FILES)
    _check(folder)
    try:
        import transformers
    except ImportError:
        raise ValueError(
            "Loading a checkpoint needs transformers, which is not installed.\n"
            "  Install it: pip install transformers"
        ) from None
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # theirs
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # theirs
    local = {"local_files_only": True, "trust_remote_code": False}
    try:
        _check_cost(folder, transformers.AutoConfig.from_pretrained(folder, **local))
        kind: Any = transformers.AutoModelForCausalLM if language_model else transformers.AutoModel
        model, found = kind.from_pretrained(
            folder,
            use_safetensors=True,
            output_loading_info=True,
            **local,
        )
    except Exception as error:  # a bad config.json can raise anything in transformers
        raise ValueError(f"{folder}: the model cannot be loaded.\n  {reason(error)}") from None
    missing = [name for name in sorted(found["missing_keys"]) if not name.startswith("pooler.")]
    if missing:
        raise ValueError(
            f"{folder}: {len(missing)} weights of {type(model).__name__} are not in the files, "
            f"among them {missing[0]}.\n  With random numbers instead, its maps would mean nothing."
        )
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **local)
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{folder}: the tokenizer cannot be loaded.\n  {reason(error)}") from None
    reader = HubTextReader(tokenizer)
    short = folder.resolve().name if Path(name).exists() else name.rpartition("/")[2]
    return LoadedModel(short, model.eval(), lambda: reader, str(folder))


def has_tokenizer(folder: Path) -> bool:
    """Whether the folder has the files of a tokenizer."""
    return any(file for pattern in _TOKENIZER for file in folder.glob(pattern))


def _check_cost(folder: Path, config: Any) -> None:
    """Raise if config.json describes a much larger model than the weight files hold.

    transformers would first allocate the missing weights and fill them with random numbers.
    """
    import transformers

    files = list(folder.glob(_WEIGHTS))
    size = sum(file.stat().st_size for file in files)
    count = 0
    for file in files:
        with safetensors.safe_open(file, framework="pt") as opened:
            count += len(opened.keys())
    layers = getattr(config, "num_hidden_layers", None)
    if isinstance(layers, int) and layers > count:
        raise ValueError(f"config.json has {layers:,} layers, but the files have {count} tensors.")
    model = without_numbers(
        lambda: transformers.AutoModel.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]  # theirs
    )
    needed = sum(part.nbytes for part in (*model.parameters(), *model.buffers()))
    if needed > _MAX_RATIO * size + _SPARE:
        raise ValueError(
            f"config.json describes a model of {memory(needed)}, but the files have "
            f"{memory(size)}.\n  Are all files present, and does config.json belong to them?"
        )


def _check(folder: Path) -> None:
    if not folder.is_dir():
        raise ValueError(
            f"{folder}: not a folder.\n  --model expects a folder that save_pretrained() wrote, or "
            "a name on the hub."
        )
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder}: it has no config.json, so it is not a checkpoint folder.")
    if not any(folder.glob(_WEIGHTS)):
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt"))
        hint = "Copy the file model.safetensors into it."
        if pickled:
            hint = (
                "Its .bin or .pt files are pickles, which can run any code. If you trust them, "
                "load them with transformers, then call model.save_pretrained(folder)."
            )
        raise ValueError(f"{folder}: it has no weights ({_WEIGHTS}).\n  {hint}")
    if not has_tokenizer(folder):
        raise ValueError(
            f"{folder}: it has no tokenizer.\n"
            f"  Save it there: tokenizer.save_pretrained({str(folder)!r})."
        )
