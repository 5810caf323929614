"""Models of others: a local Hugging Face checkpoint, a text, and what its heads look at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
from jaxtyping import Int
from torch import Tensor, nn

from clearhead.drawing.text_format import memory
from clearhead.gpt2.empty_model import without_numbers

_WEIGHTS = "*.safetensors"
# A model of float32 has eight times the bytes of one of 4 bits; masks and the like come on top.
_MOST_TIMES, _SPARE = 16, 2**28
# Without any of these transformers makes an empty tokenizer, and does not say so.
_TOKENIZER = ("tokenizer*", "vocab*", "merges.txt", "*.model", "*.tiktoken")


@dataclass(frozen=True)
class Checkpoint:
    """A model and its tokenizer, loaded from a folder.

    Attributes:
        model: The model, without its output head, in eval mode.
        tokenizer: What cuts text into its tokens.
        name: The name of the folder.
    """

    model: nn.Module
    tokenizer: Any
    name: str

    @property
    def longest(self) -> int | None:
        """The most tokens that the model takes, if it has a limit."""
        config = getattr(self.model, "config", None)
        limits = [getattr(config, "max_position_embeddings", None)]
        limits.append(getattr(self.tokenizer, "model_max_length", None))
        # A tokenizer without a limit says so with a number like 10^30.
        known = [limit for limit in limits if isinstance(limit, int) and 0 < limit < 10**9]
        return min(known, default=None)

    def encode(self, text: str) -> Int[Tensor, "1 tokens"]:
        """The token ids of a text, all of them."""
        ids: Tensor = self.tokenizer(text, return_tensors="pt", verbose=False)["input_ids"]
        if not ids.numel():
            raise ValueError("TEXT has no tokens: there is nothing to look at.")
        return ids

    def tokens(self, ids: Int[Tensor, "1 tokens"]) -> list[str]:
        """The text of each token, with the space before it."""
        numbers = ids[0].tolist()
        different = sorted(set(numbers))
        raw = self.tokenizer.convert_ids_to_tokens(different)
        texts = {}
        for number, token in zip(different, raw, strict=True):
            text = self.tokenizer.decode([number], clean_up_tokenization_spaces=False)
            # SentencePiece writes the space as ▁ and drops it from a text's first token.
            lost = str(token).startswith("\u2581") and not text.startswith(" ")
            texts[number] = f" {text}" if lost else text
        return [texts[number] for number in numbers]


def load(folder: str | Path) -> Checkpoint:
    """Load a checkpoint from a folder: nothing from the network, no code of the folder's own.

    Args:
        folder: Where `save_pretrained` wrote model and tokenizer, weights as safetensors.
    """
    folder = Path(folder)
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
        model, found = transformers.AutoModel.from_pretrained(
            folder,
            use_safetensors=True,
            attn_implementation="sdpa",
            output_loading_info=True,
            **local,
        )
    except Exception as error:  # whatever transformers makes of a bad config.json
        raise ValueError(f"{folder}: the model cannot be loaded.\n  {reason(error)}") from None
    missing = [name for name in sorted(found["missing_keys"]) if not name.startswith("pooler.")]
    if missing:
        raise ValueError(
            f"{folder}: {len(missing)} weights of {type(model).__name__} are not in the files, "
            f"among them {missing[0]}.\n  With random numbers in their place its maps mean nothing."
        )
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **local)
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{folder}: the tokenizer cannot be loaded.\n  {reason(error)}") from None
    return Checkpoint(model.eval(), tokenizer, folder.resolve().name)


def reason(error: Exception) -> str:
    """What transformers says, without its advice to run code of a stranger."""
    if "trust_remote_code" in str(error):
        return "It needs Python code of the folder's own, and that is never run here."
    return str(error)


def has_tokenizer(folder: Path) -> bool:
    """Whether there are files of a tokenizer in this folder."""
    return any(file for pattern in _TOKENIZER for file in folder.glob(pattern))


def _check_cost(folder: Path, config: Any) -> None:
    """Raise where config.json asks for much more than the files have.

    transformers fills what is missing with random numbers, and says so when it is done.
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
        raise ValueError(f"config.json says {layers:,} layers, and the files have {count} tensors.")
    model = without_numbers(
        lambda: transformers.AutoModel.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]  # theirs
    )
    needed = sum(part.nbytes for part in (*model.parameters(), *model.buffers()))
    if needed > _MOST_TIMES * size + _SPARE:
        raise ValueError(
            f"config.json describes a model of {memory(needed)}, and the files have "
            f"{memory(size)}.\n  Are all files there, and is it their config.json?"
        )


def _check(folder: Path) -> None:
    if not folder.is_dir():
        raise ValueError(
            f"{folder}: there is no such folder.\n"
            "  --model is a local checkpoint: what save_pretrained() wrote, or what "
            f"`hf download {folder} --local-dir my-model` brings."
        )
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder}: no config.json in it, so it is not a checkpoint's folder.")
    if not any(folder.glob(_WEIGHTS)):
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt"))
        hint = "Copy the file model.safetensors into it."
        if pickled:
            hint = (
                "Its .bin or .pt files are pickles, which can run code of a stranger. "
                "Load them where you trust them, then model.save_pretrained(folder)."
            )
        raise ValueError(f"{folder}: no weights in it ({_WEIGHTS}).\n  {hint}")
    if not has_tokenizer(folder):
        raise ValueError(
            f"{folder}: no tokenizer in it.\n"
            f"  Save it there: tokenizer.save_pretrained({str(folder)!r})."
        )
