"""The lab: a small trained model in the box, and what its heads do, measured.

    from clearhead import lab
    model, tokenizer = lab.load()

Importing this does not import torch; `load` does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clearhead.gpt2.model import GPT2
    from clearhead.tokenizers import WordTokenizer

__all__ = ["load"]


def load(path: str | Path | None = None) -> tuple[GPT2, WordTokenizer]:
    """The trained model that comes with Clearhead, in eval mode, and its tokenizer.

    Args:
        path: Another one: the file or the folder that `clearhead train` wrote.

    >>> model, tokenizer = load()
    >>> tokenizer.tokens("the cat sat on the mat")
    ['the', 'cat', 'sat', 'on', 'the', 'mat']
    """
    from clearhead.models.shipped_models import load_shipped
    from clearhead.models.trained_model import load_trained

    return load_shipped() if path is None else load_trained(path)
