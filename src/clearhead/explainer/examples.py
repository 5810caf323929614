"""Examples: a text, the attention applied to it, and its trace."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead import ladder
from clearhead.attention import MultiHeadAttention
from clearhead.embedding import Embedding
from clearhead.explainer.head_choice import HeadSummary, clearest, next_tokens, summarise_heads
from clearhead.explainer.steps import Attention
from clearhead.explainer.tracing import Trace, trace
from clearhead.models import LoadedModel, find_model
from clearhead.models.text_readers import Reading
from clearhead.tokenizers import GPT2Tokenizer, WordTokenizer
from clearhead.validation import check_heads
from clearhead.watcher import Seen
from clearhead.watcher.one_text import see

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
BOOK_WIDTH = len(BOOK_VECTORS[0])
ONE_HEAD = ("simplified", "self", "causal")
MAX_TOKENS = 1024  # the tokens × tokens tables of every step are kept


@dataclass(frozen=True)
class Example:
    """A text with the trace of its attention, and the script that reproduces it.

    Attributes:
        text: The user's text, or the book's sentence.
        variant: The form of attention.
        tokenizer: "word", "gpt2" or "its own"; None for the book's sentence, whose vectors are
            given.
        seed: The seed of the random weights; None for a trained model.
        ids: The token ids; None for the book's sentence.
        trace: All steps.
        setup: Python lines that define `x` and `module`, as `Step.code` needs them.
        model: What `--model` takes for the model; None for random weights.
        name: What the model is called in a sentence.
        layer: The layer of that model.
        head: The head to look at first.
        does: What that head does with the text.
        chosen: Whether the head was chosen because it is the clearest one.
        others: What each head of the layer does, in order.
        next: The most likely next tokens and their probabilities.
        maps: The attention of all layers of that model.
    """

    text: str
    variant: str
    tokenizer: str | None
    seed: int | None
    ids: list[int] | None
    trace: Trace
    setup: str
    model: str | None = None
    name: str | None = None
    layer: int | None = None
    head: int | None = None
    does: str | None = None
    chosen: bool = False
    others: tuple[str, ...] = ()
    next: tuple[tuple[str, float], ...] = ()
    maps: Seen | None = None


def untrained_example(
    text: str | None,
    *,
    variant: str = "multihead",
    heads: int | None = None,
    d_model: int | None = None,
    seed: int = 123,
    tokenizer: str = "word",
) -> Example:
    """Apply one form of attention with random weights to a text.

    Args:
        text: The text; None for the book's sentence and its vectors.
        variant: simplified, self, causal, wrapper, multihead or encoder.
        heads: The number of heads; 2 if None (3 for the encoder on the book's sentence).
        d_model: The width of the vectors and of the output; 8 if None.
        seed: The seed of the random weights.
        tokenizer: "word" or "gpt2".

    Raises:
        ValueError: The sizes do not fit the form, or the text is empty or too long.
    """
    if variant in ONE_HEAD and heads not in (None, 1):
        raise ValueError(
            f"--heads {heads}: the variant {variant} has one head.\n"
            "  For several heads: --variant wrapper, multihead or encoder."
        )
    torch.manual_seed(seed)
    imports: list[str] = []
    lines = ["torch.set_grad_enabled(False)", f"torch.manual_seed({seed})"]
    ids = None
    if text is None:
        tokens = BOOK_TEXT.split()
        d_in, d_out = BOOK_WIDTH, _book_d_out(variant, d_model)
        heads = heads or (3 if variant == "encoder" else 2)
        x = torch.tensor(BOOK_VECTORS)
        lines.append(f"x = torch.tensor({BOOK_VECTORS})")
        if variant not in ("simplified", "self"):
            x = x[None]
            lines.append("x = x[None]  # a batch of one sentence")
    else:
        heads = heads or 2
        d_in = d_out = 8 if d_model is None else d_model
        if tokenizer == "word":
            text = " ".join(text.split())  # white space does not count
        words = GPT2Tokenizer() if tokenizer == "gpt2" else WordTokenizer.from_text(text)
        ids, tokens = words.encode(text), words.tokens(text)
        _check_length(len(ids))
        sizes = {"vocab_size": words.vocab_size, "d_model": d_in, "context_length": len(ids)}
        x = Embedding(**sizes)(torch.tensor([ids]))
        imports.append("from clearhead.embedding import Embedding")
        lines.append(f"ids = torch.tensor([{ids}])")
        lines.append(f"x = Embedding({_named(sizes)})(ids)")
    module, line = _form(variant, d_in, d_out, len(tokens), heads)
    if line:
        imports.append(f"from clearhead.ladder import {type(module).__name__}")
        lines.append(line)
    return Example(
        text=BOOK_TEXT if text is None else text,
        variant=variant,
        tokenizer=None if text is None else tokenizer,
        seed=seed,
        ids=ids,
        trace=trace(module, x.detach(), tokens=tokens),
        setup="\n".join(["import torch", *imports, "", *lines]),
    )


def model_example(
    text: str,
    *,
    model: str | Path | None = None,
    layer: str | int | None = None,
    head: int | None = None,
) -> Example:
    """Run a trained model on a text, and trace the attention of one layer.

    Args:
        text: The text.
        model: See `clearhead.models.find_model`; None for the English model.
        layer: Which layer, as in `LoadedModel.layer_number`. If None, the last one of a grammar
            model, where its relations are, and otherwise that of the head whose pattern is
            clearest.
        head: The head to look at first, counted from 0; the clearest one of the layer if None.

    Raises:
        ValueError: The model, the layer or the head does not exist, or the text is empty or too
            long.
    """
    loaded, reading = _read(text, model)
    gpt2 = loaded.gpt2
    number = None if layer is None else loaded.layer_number(layer)
    if head is not None and not 0 <= head < (count := gpt2.config["num_heads"]):
        raise ValueError(f"--head: expected 0 to {count - 1}, got {head}.")
    if number is None and loaded.reader.kind == "word":
        number = gpt2.config["num_layers"] - 1
    seen = see(loaded.network, reading.tensor(), name=loaded.name)
    heads = summarise_heads(seen, reading.tensor())
    best = clearest(heads, number)
    own = [each for each in heads if each.layer == best.layer]
    shown = best if head is None else own[head]
    module = gpt2.blocks[best.layer].attention
    assert isinstance(module, MultiHeadAttention)
    x = _layer_input(loaded, reading.tensor(), best.layer)
    traced = trace(module, x, tokens=reading.labels)
    with torch.no_grad():
        logits = gpt2(reading.tensor())[0, -1]
    return Example(
        text=text,
        variant="multihead",
        tokenizer=loaded.reader.kind,
        seed=None,
        ids=reading.ids,
        trace=replace(traced, notes=(*reading.notes, *traced.notes)),
        setup=_model_setup(loaded, reading.ids, best.layer),
        model=loaded.path,
        name=loaded.name,
        layer=best.layer,
        head=shown.head,
        does=shown.does,
        chosen=head is None,
        others=tuple(each.does for each in own),
        next=tuple((loaded.reader.decode([i]), p) for i, p in next_tokens(logits)),
        maps=seen,
    )


def all_heads(
    text: str, *, model: str | Path | None = None
) -> tuple[str, Reading, list[HeadSummary]]:
    """What each head of a model does with a text.

    Returns:
        The name of the model, the text as it reads it, and its heads in order.
    """
    loaded, reading = _read(text, model)
    seen = see(loaded.network, reading.tensor(), name=loaded.name)
    return loaded.name, reading, summarise_heads(seen, reading.tensor())


def _read(text: str, model: str | Path | None) -> tuple[LoadedModel, Reading]:
    loaded = find_model(model)
    reading = loaded.read(text)
    _check_length(len(reading.ids), loaded)
    return loaded, reading


def _layer_input(loaded: LoadedModel, ids: Tensor, layer: int) -> Float[Tensor, "1 tokens d_model"]:
    """The input to one layer's attention: the residual stream before it, layer-normalised."""
    model = loaded.gpt2
    with torch.no_grad():
        x = model.embedding(ids)
        for block in model.blocks[:layer]:
            x = block(x)
        normed: Tensor = model.blocks[layer].norm1(x)  # type: ignore[operator]  # a module
    return normed


def _model_setup(loaded: LoadedModel, ids: list[int], layer: int) -> str:
    """Python lines that define `x` and `module` for one layer of a model."""
    return "\n".join(
        [
            "import torch",
            "import clearhead",
            "",
            "torch.set_grad_enabled(False)",
            f"model, tokenizer = clearhead.load({loaded.path!r})",
            f"x = model.embedding(torch.tensor([{ids}]))",
            f"for block in model.blocks[:{layer}]:",
            "    x = block(x)",
            f"x = model.blocks[{layer}].norm1(x)",
            f"module = model.blocks[{layer}].attention",
            "mask = None  # besides the module's own mask, which hides later keys",
        ]
    )


def _check_length(tokens: int, loaded: LoadedModel | None = None) -> None:
    if tokens == 0:
        raise ValueError(
            'TEXT is empty.\n  Try: clearhead explain "the cat sat on the mat", '
            "or leave TEXT out for the book's example."
        )
    if tokens > MAX_TOKENS:
        raise ValueError(
            f"TEXT has {tokens} tokens; explain keeps every tokens × tokens table and accepts "
            f"at most {MAX_TOKENS}.\n  Give it a sentence or a paragraph of the text."
        )
    if loaded is not None and tokens > (limit := loaded.gpt2.config["context_length"]):
        raise ValueError(
            f"TEXT has {tokens} tokens, and {loaded.name} accepts at most {limit}.\n"
            "  Shorten the text, or use another model: --model NAME_OR_DIR. "
            f"With random weights, up to {MAX_TOKENS} tokens: --untrained."
        )


def _book_d_out(variant: str, d_model: int | None) -> int:
    """The output width for the book's vectors; two forms keep the width of their input."""
    if variant not in ("simplified", "encoder"):
        return 8 if d_model is None else d_model
    if d_model not in (None, BOOK_WIDTH):
        raise ValueError(
            f"--d-model {d_model}: the book's vectors have {BOOK_WIDTH} numbers, and the variant "
            f"{variant} keeps that width.\n  Give a TEXT, or choose another --variant."
        )
    return BOOK_WIDTH


def _form(variant: str, d_in: int, d_out: int, tokens: int, heads: int) -> tuple[Attention, str]:
    """The form of attention, and the line of Python that builds it."""
    if variant == "simplified":
        return ladder.simplified_attention, ""
    named: dict[str, Any] = {"context_length": tokens, "dropout": 0.0}
    several = {**named, "num_heads": heads}
    # The wrapper's d_out is that of one head.
    one = check_heads(d_out, heads) if variant == "wrapper" else d_out
    forms: dict[str, tuple[Any, tuple[int, ...], dict[str, Any]]] = {
        "self": (ladder.SelfAttention, (d_in, d_out), {}),
        "causal": (ladder.CausalAttention, (d_in, d_out), named),
        "wrapper": (ladder.MultiHeadAttentionWrapper, (d_in, one), several),
        "multihead": (ladder.MultiHeadAttention, (d_in, d_out), several),
        "encoder": (ladder.EncoderAttention, (d_out,), {"num_heads": heads}),
    }
    make, sizes, named = forms[variant]
    arguments = ", ".join(filter(None, [*map(str, sizes), _named(named)]))
    return make(*sizes, **named), f"module = {make.__name__}({arguments})"


def _named(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in arguments.items())
