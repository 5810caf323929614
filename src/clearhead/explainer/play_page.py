"""The page that runs a model: one HTML file with the weights, the tokenizer and the forward pass.

The forward pass is written again in JavaScript (`assets/model_engine.js`), where it runs in a
worker. `tests/browser/test_play_engine.py` compares every number of it with PyTorch.
"""

from __future__ import annotations

import html
import json
import re
from functools import cache
from typing import Any

import torch

from clearhead.attention import MultiHeadAttention
from clearhead.drawing.html_page import SCRIPTS
from clearhead.drawing.page_assets import PageAssets, binary_block, json_block, read_asset
from clearhead.explainer.tracing import trace
from clearhead.gpt2.model import GPT2
from clearhead.models import find_model
from clearhead.models.shipped_models import shipped_file
from clearhead.models.trained_model import MODEL
from clearhead.tokenizers import BytePairTokenizer, WordTokenizer
from clearhead.tokenizers.byte_pair_tokenizer import VOCABULARY

FIRST_TEXT = {
    "english": "Anna has a red ball. Tom has a blue ball. Anna has a",
    "grammar": "the cat that the dogs chase sees the",
}
_PACKAGE = "clearhead.explainer"
_ENGINE = ("model_tokenizers.js", "model_engine.js", "model_worker.js")
_TOKENS = 7  # in the traced example; no other size of a model is 7


def play_html(model: str = "english", text: str | None = None) -> str:
    """The complete HTML file.

    Args:
        model: A shipped model: "english" or "grammar".
        text: The text to begin with.

    Raises:
        ValueError: There is no shipped model of this name.
    """
    if model not in FIRST_TEXT:
        raise ValueError(
            f"--model: expected {' or '.join(FIRST_TEXT)}, got {model!r}.\n"
            f"  For a page of another model: clearhead explain TEXT --model {model} -o page.html"
        )
    loaded = find_model(model)
    gpt2: GPT2 = loaded.gpt2
    rope = None if gpt2.rope is None else gpt2.rope.base
    about = {
        "schema": 1,
        "model": model,
        "name": loaded.name,
        "sizes": {**gpt2.config, "rope_base": rope},
        "parameters": sum(each.numel() for each in gpt2.parameters()),
        "tokenizer": _tokenizer(model, loaded.reader.tokenizer),
        "walk": _walk(gpt2),
        "start": {"text": FIRST_TEXT[model] if text is None else text},
    }
    data = [
        json_block("about", about),
        binary_block("model", shipped_file(MODEL, model).read_bytes()),
        f'<script type="text/plain" id="engine">{engine()}</script>',
    ]
    title = html.escape(f"Clearhead: {loaded.name}")
    page = _assets().page({"title": title, "data": "\n".join(data)})
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii")


def engine() -> str:
    """The script of the worker."""
    return '"use strict";\n' + "\n".join(read_asset(_PACKAGE, name) for name in _ENGINE)


def _tokenizer(model: str, tokenizer: BytePairTokenizer | WordTokenizer) -> dict[str, Any]:
    """The tokens in the order of their ids."""
    if isinstance(tokenizer, WordTokenizer):
        ids = range(tokenizer.vocab_size)
        return {"kind": "words", "pieces": [tokenizer.decode([i]) or "<|nospace|>" for i in ids]}
    vocabulary = json.loads(shipped_file(VOCABULARY, model).read_text(encoding="utf-8"))
    return {"kind": "byte pairs", "pieces": sorted(vocabulary, key=vocabulary.__getitem__)}


@torch.no_grad()
def _walk(gpt2: GPT2) -> dict[str, Any]:
    """The steps of a layer's attention: their texts and shapes, with {n} for the number of tokens.

    The page computes the numbers. Everything else is as in the page of a trace.
    """
    attention = gpt2.blocks[0].attention
    assert isinstance(attention, MultiHeadAttention)
    made = trace(attention, torch.zeros(1, _TOKENS, gpt2.config["d_model"])).page().walk
    assert made is not None
    steps = re.sub(rf"\b{_TOKENS}\b", "{n}", json.dumps(list(made.steps)))
    return {**made.texts, "steps": steps, "tensors": list(made.tensors)}


@cache
def _assets() -> PageAssets:
    return PageAssets(
        _PACKAGE,
        html="play.html",
        css=("page.css", "play.css"),
        scripts=[
            *("layer_data.js", "head_scores.js", "live_data.js", *SCRIPTS),
            *(
                "switches.js",
                "what_if_view.js",
                "experiments_view.js",
                "pytorch_snippet.js",
                "play.js",
            ),
        ],
        sources="img-src data: blob:; worker-src blob:",
    )
