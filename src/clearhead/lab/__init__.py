"""The lab: a grammar whose relations are known, what heads do with them, and claims tested.

Enters: a model. Leaves: sentences with labels, head reports, verdicts on claims. Start reading at
`grammar`; `grammar_training` makes the model that `load` returns, `head_scores` measures heads, and
`claims` tests common claims about attention. Importing this package does not import torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clearhead.gpt2.model import GPT2
    from clearhead.tokenizers import WordTokenizer

__all__ = ["load"]


def load(path: str | Path | None = None) -> tuple[GPT2, WordTokenizer]:
    """Load a model trained on the grammar, in eval mode, and its tokenizer.

    Args:
        path: A file or folder written by `clearhead train`; None for the grammar model that comes
            with Clearhead.

    Examples:
        >>> model, tokenizer = load()
        >>> tokenizer.tokens("the cat sat on the mat")
        ['the', 'cat', 'sat', 'on', 'the', 'mat']
    """
    from clearhead.models.shipped_models import load_grammar
    from clearhead.models.trained_model import load_trained

    return load_grammar() if path is None else load_trained(path)
