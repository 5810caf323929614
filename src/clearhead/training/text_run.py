"""A run of `clearhead train --text`: its folder, from the prepared text to the trained model.

    text.safetensors, vocab.json, merges.txt   the prepared text; see `text_corpus`
    checkpoint.safetensors                     everything needed to resume
    model.safetensors, config.json             the trained model; see `GPT2.save_pretrained`
    training.json                              settings, loss during training, how long it took

transformers loads the folder too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from clearhead.atomic_files import beside
from clearhead.gpt2.model import GPT2
from clearhead.models.trained_model import CHECKPOINT, MODEL
from clearhead.tokenizers import BytePairTokenizer
from clearhead.training import distributed
from clearhead.training.loop import Curve, train
from clearhead.training.text_corpus import TEXT, Corpus, load_corpus, prepare, read_documents
from clearhead.training.text_task import TextSettings, TextTask

TRAINING = "training.json"


def is_prepared(folder: Path) -> bool:
    """Whether a folder holds a prepared text."""
    return (folder / TEXT).is_file()


def has_started(folder: Path) -> bool:
    """Whether training has begun in a folder."""
    return any((folder / name).exists() for name in (CHECKPOINT, MODEL, distributed.CHECKPOINTS))


def prepared_corpus(folder: Path, text: Path | None, vocab_size: int) -> Corpus:
    """The text of a folder; prepared first if it is not there yet.

    Args:
        folder: The folder of the run.
        text: A text file, or a folder of them; needed if nothing is prepared yet.
        vocab_size: The number of tokens of the vocabulary.
    """
    if is_prepared(folder):
        return load_corpus(folder)
    if text is None:
        raise ValueError(f"{folder}: no prepared text.\n  Give the text: --text FILE_OR_FOLDER.")
    folder.mkdir(parents=True, exist_ok=True)
    return prepare(read_documents(text), folder, vocab_size=vocab_size)


def train_text(
    corpus: Corpus,
    settings: TextSettings,
    folder: Path,
    *,
    device: str = "cpu",
    compiled: bool = False,
    on_step: Callable[[int, Curve, GPT2], None] | None = None,
) -> Curve:
    """Train a model on a prepared text, from its checkpoint if there is one, and write it.

    Args:
        corpus: The text.
        settings: How to train.
        folder: The folder of the run.
        device: Where to train.
        compiled: Whether to use `torch.compile`.
        on_step: Called after every step with the number of steps done, the curve and the model.
    """
    task = TextTask(settings, corpus, device)
    model, curve = train(
        task, folder, resume=True, device=device, compiled=compiled, on_step=on_step
    )
    _write(folder, model, settings, corpus, curve.seconds, curve.evaluations, len(curve.loss))
    return curve


def train_text_distributed(
    corpus: Corpus,
    settings: TextSettings,
    folder: Path,
    on_step: Callable[[int, float], None] | None = None,
) -> float:
    """The same with all ranks of the process group, which `torchrun` started.

    Returns:
        The loss on the held-out text.

    Raises:
        ValueError: The run is given in minutes: the ranks' clocks differ.
    """
    if settings.minutes is not None:
        raise ValueError("--minutes: not supported with several processes.\n  Use --steps N.")
    task = TextTask(settings, corpus)
    model = distributed.train(task, folder, on_step=on_step)
    loss: float = task.evaluate(model)["loss"]
    if dist.get_rank() == 0:
        looks = [{"step": settings.steps, "loss": loss}]
        _write(folder, model, settings, corpus, None, looks, settings.steps)
    return loss


def sample(model: GPT2, tokenizer: BytePairTokenizer, tokens: int = 24) -> str:
    """A text that the model writes from nothing, the same one for the same weights."""
    ids = model.eval().generate(
        [tokenizer.end], tokens, temperature=0.8, top_k=50, seed=0, stop=tokenizer.end
    )
    return tokenizer.decode(token for token in ids if token != tokenizer.end)


def _write(
    folder: Path,
    model: GPT2,
    settings: TextSettings,
    corpus: Corpus,
    seconds: float | None,
    evaluations: list[dict[str, Any]],
    steps: int,
) -> None:
    model.cpu().save_pretrained(folder)
    content = {
        "schema": 1,
        "settings": asdict(settings),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "tokens": len(corpus.train),
        "held_out_tokens": len(corpus.validation),
        "bytes_per_token": corpus.bytes_per_token,
        "steps": steps,
        "seconds": seconds,
        "torch": torch.__version__,
        "evaluations": evaluations,
    }
    with beside(folder / TRAINING) as file:
        file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
