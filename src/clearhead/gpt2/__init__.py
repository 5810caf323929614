"""GPT-2: `transformer.py` is the network (ids -> logits), `model.py` the `GPT2` that users call.

Weights enter through `weights.py`; `key_names.py` holds the names that other projects use.
`generation.py` is the loop, `sampling.py` chooses tokens, the rest is fast decoding.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clearhead.gpt2.model import GPT2
    from clearhead.gpt2.transformer import FeedForward, TransformerBlock

_HOME = {"GPT2": "model", "FeedForward": "transformer", "TransformerBlock": "transformer"}
__all__ = ["GPT2", "FeedForward", "TransformerBlock"]


def __getattr__(name: str) -> object:
    # Imported on first use, so that the command line does not wait for torch.
    if name not in _HOME:
        raise AttributeError(f"module 'clearhead.gpt2' has no attribute {name!r}")
    return getattr(importlib.import_module(f"clearhead.gpt2.{_HOME[name]}"), name)
