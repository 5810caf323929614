"""A text, and the attention that it goes through: random weights, a GPT-2's, or the lab's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from clearhead import lab, ladder
from clearhead.attention import MultiHeadAttention
from clearhead.embedding import Embedding
from clearhead.explainer.tracing import Trace, trace
from clearhead.gpt2.model import GPT2
from clearhead.models import gpt2_reader, text_stream
from clearhead.models import word_reading as typed
from clearhead.models.trained_model import trained_file
from clearhead.tokenizers import GPT2Tokenizer, WordTokenizer
from clearhead.validation import check_heads

# The example of chapter 3 in Raschka's book: six words with three numbers each.
BOOK_TEXT = "Your journey starts with one step"
BOOK_VECTORS = [
    [0.43, 0.15, 0.89],
    [0.55, 0.87, 0.66],
    [0.57, 0.85, 0.64],
    [0.22, 0.58, 0.33],
    [0.77, 0.25, 0.10],
    [0.05, 0.80, 0.55],
]
ONE_HEAD = ("simplified", "self", "causal")
MOST_TOKENS = 1024  # the n x n tables of every step are kept


@dataclass(frozen=True)
class Example:
    """A text that went through attention, and the script that does the same.

    Attributes:
        text: What was typed, or the book's sentence.
        variant: The form of attention.
        tokenizer: "word" or "gpt2"; None for the book's sentence, whose vectors are given.
        seed: What the random weights were made from; None for a model with weights of its own.
        ids: The token ids; None for the book's sentence.
        trace: All steps.
        setup: Python lines that make `x` and `module`, as `Step.code` needs them.
        model: Where the weights are from; None for random ones.
        layer: Which layer of that model.
    """

    text: str
    variant: str
    tokenizer: str | None
    seed: int | None
    ids: list[int] | None
    trace: Trace
    setup: str
    model: str | None = None
    layer: int | None = None


def build(
    text: str | None,
    *,
    variant: str = "multihead",
    heads: int | None = None,
    d_model: int | None = None,
    seed: int = 123,
    tokenizer: str = "word",
) -> Example:
    """Send a text through one form of attention, with random weights.

    Args:
        text: The text; None for the book's sentence and its vectors.
        variant: simplified, self, causal, wrapper, multihead or encoder.
        heads: How many heads; 2 if None (3 for the encoder on the book's sentence).
        d_model: The width of the vectors and of the output; 8 if None.
        seed: For the random weights.
        tokenizer: "word" or "gpt2".
    """
    if variant in ONE_HEAD and heads not in (None, 1):
        raise ValueError(
            f"--heads {heads}: the variant {variant} has one head.\n"
            "  Several heads: --variant wrapper, multihead or encoder."
        )
    torch.manual_seed(seed)
    lines = ["import torch", "", "torch.set_grad_enabled(False)", f"torch.manual_seed({seed})"]
    ids = None
    imports = []
    if text is None:
        width = 3
        if variant in ("simplified", "encoder") and d_model not in (None, width):
            raise ValueError(
                f"--d-model {d_model}: the book's vectors have 3 numbers, and the variant "
                f"{variant} keeps that width.\n  Give a TEXT, or choose another --variant."
            )
        tokens = BOOK_TEXT.split()
        x = torch.tensor(BOOK_VECTORS)
        lines.append(f"x = torch.tensor({BOOK_VECTORS})")
        if variant not in ("simplified", "self"):
            x = x[None]
            lines.append("x = x[None]  # a batch of one sentence")
        d_out = width if variant == "encoder" else 8 if d_model is None else d_model
        heads = heads or (3 if variant == "encoder" else 2)
    else:
        heads = heads or 2
        width = d_out = 8 if d_model is None else d_model
        if tokenizer == "word":
            text = " ".join(text.split())  # how words are spaced does not count
        words = GPT2Tokenizer() if tokenizer == "gpt2" else WordTokenizer.from_text(text)
        ids, tokens = words.encode(text), words.tokens(text)
        _check_count(len(ids))
        x = Embedding(words.vocab_size, width, len(ids))(torch.tensor([ids]))
        imports.append("from clearhead.embedding import Embedding")
        lines.append(f"ids = torch.tensor([{ids}])")
        lines.append(
            f"x = Embedding(vocab_size={words.vocab_size}, d_model={width}, "
            f"context_length={len(ids)})(ids)"
        )
    module, line = _module(variant, width, d_out, len(tokens), heads)
    if line:
        imports.append(f"from clearhead.ladder import {type(module).__name__}")
        lines.append(line)
    lines[1:1] = imports
    return Example(
        text=BOOK_TEXT if text is None else text,
        variant=variant,
        tokenizer=None if text is None else tokenizer,
        seed=seed,
        ids=ids,
        trace=trace(module, x.detach(), tokens=tokens),
        setup="\n".join(lines),
    )


def build_from_model(text: str, *, model: str, layer: int | None = None) -> Example:
    """Send a text through a GPT-2, and take what the attention of one layer does.

    Args:
        text: The text.
        model: A folder, a file, or a name on the hub, as `GPT2.from_pretrained` takes it; or what
            `clearhead train` wrote.
        layer: Which layer, counted from 0; if None the first one, of a lab's model the last.
    """
    file = trained_file(model)
    if file is not None:
        return build_from_lab(text, layer=layer, file=file)
    layer = layer or 0
    loaded = GPT2.from_pretrained(model)
    layers = loaded.config["num_layers"]
    if not 0 <= layer < layers:
        raise ValueError(f"--layer: expected 0 to {layers - 1}, got {layer}.")
    tokenizer, _ = text_stream.find_tokenizer(model, loaded.config["vocab_size"])
    ids = tokenizer.encode(text)
    _check_count(len(ids), loaded.config["context_length"])
    with torch.no_grad():
        x = gpt2_reader.layer_input(loaded, torch.tensor([ids]), layer)
    module = loaded.blocks[layer].attention
    assert isinstance(module, MultiHeadAttention)
    lines = [
        "import torch",
        "from clearhead import GPT2",
        "",
        "torch.set_grad_enabled(False)",
        f"model = GPT2.from_pretrained({model!r})",
        *_layer_lines(ids, layer),
    ]
    return Example(
        text=text,
        variant="multihead",
        tokenizer="gpt2" if isinstance(tokenizer, GPT2Tokenizer) else "its own",
        seed=None,
        ids=ids,
        trace=trace(module, x, tokens=gpt2_reader.labels(tokenizer, text, ids)),
        setup="\n".join(lines),
        model=model,
        layer=layer,
    )


def build_from_lab(text: str, *, layer: int | None = None, file: Path | None = None) -> Example:
    """Send a text through the trained model that comes with Clearhead.

    Args:
        text: The text; words that the model does not know are marked.
        layer: Which layer, counted from 0; the last one if None.
        file: Another model, from `clearhead train`.
    """
    model, words = lab.load(file)
    layers = len(model.blocks)
    layer = layers - 1 if layer is None else layer
    if not 0 <= layer < layers:
        raise ValueError(f"--layer: expected 0 to {layers - 1}, got {layer}.")
    _check_count(len(text.split()))
    read = typed.read(text, words)
    if len(read.ids) > (most := model.config["context_length"]):
        raise ValueError(
            f"TEXT has {len(read.ids)} tokens, and the lab's model takes {most}.\n"
            "  Another model: --model DIR_OR_NAME. "
            f"Up to {MOST_TOKENS} tokens, with random weights: --untrained."
        )
    with torch.no_grad():
        x = gpt2_reader.layer_input(model, torch.tensor([read.ids]), layer)
    module = model.blocks[layer].attention
    assert isinstance(module, MultiHeadAttention)
    seen = trace(module, x, tokens=read.labels)
    lines = [
        "import torch",
        "from clearhead import lab",
        "",
        "torch.set_grad_enabled(False)",
        f"model, tokenizer = lab.load({'' if file is None else repr(str(file))})",
        *_layer_lines(read.ids, layer),
    ]
    return Example(
        text=text,
        variant="multihead",
        tokenizer="word",
        seed=None,
        ids=read.ids,
        trace=replace(seen, notes=(*read.notes, *seen.notes)),
        setup="\n".join(lines),
        model="the lab's model" if file is None else str(file),
        layer=layer,
    )


def _layer_lines(ids: list[int], layer: int) -> list[str]:
    """Python lines from a `model` to `x` and `module`."""
    return [
        f"x = model.embedding(torch.tensor([{ids}]))",
        f"for block in model.blocks[:{layer}]:",
        "    x = block(x)",
        f"x = model.blocks[{layer}].norm1(x)",
        f"module = model.blocks[{layer}].attention",
        "mask = None  # beyond the module's own: no query sees a later key",
    ]


def _check_count(tokens: int, context_length: int = MOST_TOKENS) -> None:
    if tokens == 0:
        raise ValueError(
            'TEXT is empty.\n  Try: clearhead explain "the cat sat on the mat", '
            "or leave TEXT out for the book's example."
        )
    if tokens > MOST_TOKENS:
        raise ValueError(
            f"TEXT has {tokens} tokens; explain keeps every tokens × tokens table and takes "
            f"{MOST_TOKENS} at most.\n  Give it a sentence or a paragraph of the text."
        )
    if tokens > context_length:
        raise ValueError(f"TEXT has {tokens} tokens, and this model takes {context_length}.")


def _module(variant: str, d_in: int, d_out: int, tokens: int, heads: int) -> tuple[Any, str]:
    """The form of attention, and the line of Python that makes it."""
    match variant:
        case "simplified":
            return ladder.simplified_attention, ""
        case "self":
            return ladder.SelfAttention(d_in, d_out), f"module = SelfAttention({d_in}, {d_out})"
        case "causal":
            sizes = f"{d_in}, {d_out}, context_length={tokens}, dropout=0.0"
            module = ladder.CausalAttention(d_in, d_out, tokens, 0.0)
            return module, f"module = CausalAttention({sizes})"
        case "wrapper":
            each = check_heads(d_out, heads)  # the wrapper's d_out is that of one head
            sizes = f"{d_in}, {each}, context_length={tokens}, dropout=0.0, num_heads={heads}"
            wrapper = ladder.MultiHeadAttentionWrapper(d_in, each, tokens, 0.0, heads)
            return wrapper, f"module = MultiHeadAttentionWrapper({sizes})"
        case "multihead":
            sizes = f"{d_in}, {d_out}, context_length={tokens}, dropout=0.0, num_heads={heads}"
            multi = ladder.MultiHeadAttention(d_in, d_out, tokens, 0.0, heads)
            return multi, f"module = MultiHeadAttention({sizes})"
        case "encoder":
            encoder = ladder.EncoderAttention(d_out, heads)
            return encoder, f"module = EncoderAttention({d_out}, num_heads={heads})"
    raise ValueError(f"no variant is called {variant!r}.")
