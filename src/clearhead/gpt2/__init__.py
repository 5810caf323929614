"""GPT-2, whole: the model, its weights from outside, and generation.

    model                               ids -> logits
    names, files, sizes, weights        files of others -> model -> files
    generate, sampling, decoding, ...   ids -> more ids, fast
    speaking, reading, app              text: written on, and what the heads look at in it

The names are imported when they are first used, so that the command line need not wait for torch.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clearhead.gpt2.model import GPT2, FeedForward, TransformerBlock

__all__ = ["GPT2", "FeedForward", "TransformerBlock"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'clearhead.gpt2' has no attribute {name!r}")
    return getattr(importlib.import_module("clearhead.gpt2.model"), name)
