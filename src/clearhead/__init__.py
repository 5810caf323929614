"""Multi-head attention you can see through, at full speed.

The public names, in the order in which data flows. Each is imported when it is first used, so that
`clearhead --help` and `clearhead info` need not wait for torch.
"""

import importlib
import sys
from typing import TYPE_CHECKING

from clearhead.version import __version__

if TYPE_CHECKING:
    from clearhead import lab, ladder
    from clearhead.attention import (
        MultiHeadAttention,
        create_gpt2_large_attention,
        create_gpt2_medium_attention,
        create_gpt2_small_attention,
        create_gpt2_xl_attention,
    )
    from clearhead.cache import KVCache
    from clearhead.checker import assert_attention, check
    from clearhead.checker.report import Report
    from clearhead.configs import GPT2_CONFIGS
    from clearhead.embedding import Embedding, Rope
    from clearhead.explainer.tracing import Trace, trace
    from clearhead.exporter import export
    from clearhead.gpt2 import GPT2, FeedForward, TransformerBlock
    from clearhead.maps import AttentionMap
    from clearhead.masks import Mask
    from clearhead.models import load
    from clearhead.tokenizers import GPT2Tokenizer, SlidingWindowDataset, WordTokenizer
    from clearhead.validation import ShapeError
    from clearhead.viewer import view
    from clearhead.watcher import Seen, ablate, knockout, watch

_HOME = {
    "GPT2_CONFIGS": "configs",
    "ShapeError": "validation",
    "Mask": "masks",
    "WordTokenizer": "tokenizers",
    "GPT2Tokenizer": "tokenizers",
    "SlidingWindowDataset": "tokenizers",
    "Embedding": "embedding",
    "Rope": "embedding",
    "ladder": "ladder",
    "AttentionMap": "maps",
    "MultiHeadAttention": "attention",
    "KVCache": "cache",
    "create_gpt2_small_attention": "attention",
    "create_gpt2_medium_attention": "attention",
    "create_gpt2_large_attention": "attention",
    "create_gpt2_xl_attention": "attention",
    "trace": "explainer.tracing",
    "Trace": "explainer.tracing",
    "watch": "watcher",
    "Seen": "watcher",
    "ablate": "watcher",
    "knockout": "watcher",
    "GPT2": "gpt2",
    "load": "models",
    "TransformerBlock": "gpt2",
    "FeedForward": "gpt2",
    "lab": "lab",
    "check": "checker",
    "assert_attention": "checker",
    "Report": "checker.report",
    "view": "viewer",
    "export": "exporter",
}

__all__ = [  # noqa: RUF022  # the order of the flow
    "__version__",
    "GPT2_CONFIGS",
    "ShapeError",
    "Mask",
    "WordTokenizer",
    "GPT2Tokenizer",
    "SlidingWindowDataset",
    "Embedding",
    "Rope",
    "ladder",
    "AttentionMap",
    "MultiHeadAttention",
    "KVCache",
    "create_gpt2_small_attention",
    "create_gpt2_medium_attention",
    "create_gpt2_large_attention",
    "create_gpt2_xl_attention",
    "trace",
    "Trace",
    "watch",
    "Seen",
    "ablate",
    "knockout",
    "GPT2",
    "load",
    "TransformerBlock",
    "FeedForward",
    "lab",
    "check",
    "assert_attention",
    "Report",
    "view",
    "export",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        said = f"module 'clearhead' has no attribute {name!r}"
        raise AttributeError(said, name=name, obj=sys.modules[__name__])
    module = importlib.import_module(f"clearhead.{_HOME[name]}")
    return module if _HOME[name] == name else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
