"""trace(): the six steps of one forward pass, with names, formulas, shapes and numbers.

The numbers are computed a second time, in plain PyTorch (see `steps`, which lists the names).
`Trace.gap` is their largest difference from the output of the module itself.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from rich.console import Group, RenderableType
from rich.text import Text
from torch import Tensor, nn

from clearhead import attention, drawing, ladder
from clearhead.drawing import Axis
from clearhead.drawing.file_formats import save
from clearhead.drawing.heatmap import Heatmap, blocks
from clearhead.drawing.html_page import Page, Walk
from clearhead.explainer.steps import (
    USUAL_STEPS,
    Attention,
    Step,
    compute_steps,
    hidden_keys,
    operands,
)
from clearhead.foreign_names import explained
from clearhead.maps import page_layers
from clearhead.maps.axis_labels import check_labels
from clearhead.masks import Mask
from clearhead.validation import describe

# These have one number per query and key: a page computes them from queries and keys.
_SQUARE = ("attn_scores", "masked_scores", "scaled_scores", "attn_weights")

MaskTensor = Bool[Tensor, "..."] | Int[Tensor, "..."] | Float[Tensor, "..."]

_FORMS = (
    "simplified_attention, SelfAttention, CausalAttention, MultiHeadAttentionWrapper, "
    "MultiHeadAttention and EncoderAttention of clearhead.ladder, and clearhead.MultiHeadAttention"
)


@dataclass(frozen=True, repr=False)
class Trace:
    """One forward pass, step by step.

    Attributes:
        form: The name of the class or function that was traced.
        x: The input.
        steps: The steps in order; iterating over a trace yields them too.
        tokens: A label for each query, such as the words of the text.
        context_tokens: A label for each key.
        hidden: True where a query may not attend to a key, (.., queries, keys); None without a
            mask.
        gap: The largest difference between the last step and the module's own forward pass.
        notes: What the reader should know, for instance that dropout is off.
    """

    form: str
    x: Tensor
    steps: tuple[Step, ...]
    tokens: tuple[str, ...]
    context_tokens: tuple[str, ...]
    hidden: Tensor | None
    gap: float
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The names of all tensors, in the order in which they are computed."""
        return ["x", *(name for step in self.steps for name in step.tensors)]

    @property
    def output(self) -> Tensor:
        """The output of the last step, whatever its name."""
        return list(self.steps[-1].tensors.values())[-1]

    def __getitem__(self, name: str) -> Tensor:
        """The tensor of this name; "output" always means the last one."""
        tensors = {"x": self.x, "output": self.output}
        for step in self.steps:
            tensors |= step.tensors
        if name not in tensors:
            raise KeyError(f"no tensor is called {name!r}; the names are {', '.join(self.names)}")
        return tensors[name]

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    @property
    def skipped(self) -> list[str]:
        """The usual steps that this form does not have, such as "2 SPLIT"."""
        own = {step.number for step in self.steps}
        return [f"{number} {title}" for number, title in USUAL_STEPS.items() if number not in own]

    def step(self, number: str) -> Step:
        """The step with this number."""
        for step in self.steps:
            if step.number == number:
                return step
        numbers = ", ".join(step.number for step in self.steps)
        raise KeyError(f"{self.form} has no step {number!r}; its steps are {numbers}")

    def _weights(self) -> tuple[Tensor, Tensor | None]:
        """Weights and hidden entries as (batch, heads, queries, keys), whatever the form."""
        weights, hidden = self["attn_weights"], self.hidden
        if hidden is not None:
            hidden = hidden.expand_as(weights)
        while weights.ndim < 4:  # (tokens, keys) or (batch, tokens, keys): one head
            weights = weights[None] if weights.ndim == 2 else weights[:, None]
            if hidden is not None:
                hidden = hidden[None] if hidden.ndim == 2 else hidden[:, None]
        return weights, hidden

    def draw_weights(self, *, limit: int = 16, heads: Sequence[int] | None = None) -> drawing.Stack:
        """One table per head for the first sequence: each row a query, each column a key.

        Args:
            limit: The largest number of rows and columns.
            heads: The heads to show; all by default.
        """
        weights, hidden = self._weights()
        sequences = weights.shape[0]
        parts: list[RenderableType] = []
        every = range(weights.shape[1] if weights.numel() else 0)
        for head in every if heads is None else heads:
            title = f"head {head}" if weights.shape[1] > 1 else "attn_weights"
            title += f", sequence 0 of {sequences}" if sequences > 1 else ""
            parts += [Text()] * bool(parts)
            if weights.shape[0] * weights.shape[1] > 1:
                parts.append(Text(title, style="bold"))
            parts.append(
                drawing.Matrix(
                    weights[0, head],
                    self.tokens,
                    self.context_tokens,
                    hidden=None if hidden is None else hidden[0, head],
                    corner="query",
                    limit=limit,
                )
            )
        return drawing.Stack(*parts)

    def draw_maps(self, *, heads: Sequence[int] | None = None) -> drawing.Stack:
        """One map per head for the first sequence, fitted to the width of the terminal."""
        weights, hidden = self._weights()
        rows = Axis("query", len(self.tokens), self.tokens)
        columns = Axis("key", len(self.context_tokens), self.context_tokens)
        every = range(weights.shape[1] if weights.numel() else 0)
        return drawing.Stack(
            *(
                Heatmap(
                    blocks(weights[0, head], None if hidden is None else hidden[0, head]),
                    rows,
                    columns,
                    title=f"head {head}" if weights.shape[1] > 1 else "attn_weights",
                )
                for head in (every if heads is None else heads)
            )
        )

    def draw_output(self, *, limit: int = 16) -> drawing.Matrix:
        """The context vectors of the first sequence, one row per token."""
        output = self.output if self.output.ndim == 2 else self.output[:1].flatten(0, 1)
        columns = [str(i) for i in range(output.shape[-1])]
        return drawing.Matrix(output, self.tokens, columns, decimals=4, heat=False, limit=limit)

    def page(self, *, title: str | None = None, notes: Sequence[str] = ()) -> Page:
        """The steps and the weights of the first sequence, as shown by a page or a figure.

        Args:
            title: The title of the page; the name of the form by default.
            notes: Notes to show in addition to those of the trace.
        """
        weights, hidden = self._weights()
        layer = page_layers.layer(
            "",
            weights[0],
            None if hidden is None else hidden[0],
            self.tokens,
            self.context_tokens,
        )
        return Page(
            self.form if title is None else title,
            (layer,),
            (*notes, *self.notes),
            self._walk(),
        )

    def _walk(self) -> Walk:
        """The steps of the first sequence, as data for a page.

        Tables of queries × keys are left out: the page computes them from queries and keys, term
        by term, and shows the terms.
        """
        tensors = {name: self[name] for name in self.names if name not in _SQUARE}
        roles = operands(tensors)
        scaled = "scaled_scores" in self.names
        about: dict[str, Any] = {
            **roles,
            "form": self.form,
            "gap": self.gap if math.isfinite(self.gap) else None,
            "width": tensors[roles["keys"]].shape[-1] if scaled else None,
            "masked": "masked_scores" in self.names,
        }
        arrays = {}
        for name, tensor in tensors.items():
            first = tensor[0] if tensor.ndim > 2 else tensor
            arrays[name] = first.detach().float().cpu().numpy()
        return Walk([step.to_json() for step in self.steps], arrays, about)

    def save(
        self, path: str | os.PathLike[str], *, title: str | None = None, notes: Sequence[str] = ()
    ) -> None:
        """Write the first sequence as an interactive page or as a figure.

        Args:
            path: The file; the suffix decides the format: `.html`, `.svg`, `.png` or `.pdf`.
            title: See `page`; a figure has none by default.
            notes: See `page`.
        """
        save(path, lambda: self.page(title=title, notes=notes), title=title)

    def __rich__(self) -> RenderableType:
        """Everything: the steps, the weights of each head, the context vectors."""
        parts: list[RenderableType] = [
            Text(f"{self.form}: x {describe(self.x)}, gap to its own forward {self.gap:.1e}"),
            *(Text(f"Note: {note}") for note in self.notes),
            Text(),
        ]
        for step in self.steps:
            parts += [step, Text()]
        parts += [Text("Who attends to whom", style="bold"), self.draw_weights(), Text()]
        parts += [Text("Context vectors", style="bold"), self.draw_output()]
        return Group(*parts)

    def __str__(self) -> str:
        return drawing.plain(self.__rich__())

    def __repr__(self) -> str:
        numbers = ", ".join(step.number for step in self.steps)
        return f"Trace({self.form}, x {describe(self.x)}, steps {numbers}, gap {self.gap:.1e})"

    def _repr_html_(self) -> str:
        return self.page().frame()


@explained
def trace(
    module: nn.Module | Callable[[Tensor], Tensor],
    x: Float[Tensor, "..."],
    *,
    tokens: Sequence[str] | None = None,
    mask: Mask | MaskTensor | None = None,
    context: Float[Tensor, "batch seen d_in"] | None = None,
    context_tokens: Sequence[str] | None = None,
) -> Trace:
    """Follow one forward pass of a module in eval mode.

    Unlike a forward pass, a trace inspects values: NaN in the input raises, and queries that may
    attend to nothing are noted.

    Args:
        module: A form of the ladder, the fast module, or the function `simplified_attention`.
        x: The input of the module, (batch, tokens, d_in).
        tokens: A label for each token of x.
        mask: A mask as the module's own forward takes it.
        context: The source of keys and values instead of x (fast module with `causal=False`).
        context_tokens: A label for each token of context.

    Returns:
        The steps with their numbers; `print` it, save it as a page, or take its tensors by name.

    Raises:
        TypeError: The module is not one of these forms.
        ValueError: A shape does not fit, or the input contains NaN.

    Examples:
        >>> from clearhead.ladder import simplified_attention
        >>> seen = trace(simplified_attention, torch.eye(2), tokens=["to", "be"])
        >>> seen["attn_weights"].round(decimals=4)
        tensor([[0.7311, 0.2689],
                [0.2689, 0.7311]])
    """
    form = getattr(module, "__name__", type(module).__name__)
    _check_arguments(module, form, mask, context)
    _check_finite("x", x, tokens)
    if context is not None:
        _check_finite("context", context, context_tokens)

    with torch.no_grad():
        own = _own_forward(module, x, mask, context)  # raises for shapes that do not fit
        labels = key_labels = _labels("tokens", tokens, x)
        if context is not None:
            key_labels = _labels("context_tokens", context_tokens, context)
        elif context_tokens is not None:
            raise ValueError("context_tokens: there is no context for these labels.")
        source = x if context is None else context
        hidden = hidden_keys(module, x, source, mask)
        steps = compute_steps(module, x, source, hidden)
        result = list(steps[-1].tensors.values())[-1]
        gap = (result - own).abs().max().item() if own.numel() else 0.0
    notes = [] if hidden.note is None else [hidden.note]
    rates = {part.p for part in _modules(module) if isinstance(part, nn.Dropout) and part.p > 0}
    notes += [
        f"dropout ({p:g}) is off: this is a forward pass in eval mode." for p in sorted(rates)
    ]
    return Trace(
        form, x.detach(), tuple(steps), labels, key_labels, hidden.where, gap, tuple(notes)
    )


def _check_arguments(
    module: Attention, form: str, mask: Mask | Tensor | None, context: Tensor | None
) -> None:
    fast = isinstance(module, attention.MultiHeadAttention)
    known = (
        ladder.SelfAttention
        | ladder.CausalAttention
        | ladder.MultiHeadAttentionWrapper
        | ladder.MultiHeadAttention
        | ladder.EncoderAttention
    )
    if not fast and module is not ladder.simplified_attention and not isinstance(module, known):
        raise TypeError(f"module: {form} cannot be traced.\n  Supported: {_FORMS}.")
    if context is not None and not fast:
        raise ValueError(
            f"context: {form} of the ladder attends to x only.\n"
            "  Use clearhead.MultiHeadAttention(.., causal=False) for keys from another source."
        )
    if mask is not None and not fast and not isinstance(module, ladder.EncoderAttention):
        raise ValueError(
            f"mask: {form} of the ladder takes no mask.\n"
            "  EncoderAttention and clearhead.MultiHeadAttention do."
        )


def _check_finite(name: str, x: Tensor, tokens: Sequence[str] | None) -> None:
    if not x.is_floating_point() or x.ndim < 2 or bool(x.isfinite().all()):
        return
    where = (~x.isfinite()).nonzero()[0].tolist()
    token = where[-2]
    label = ""
    if tokens is not None and not isinstance(tokens, str) and token < len(tokens):
        label = f" ({drawing.visible(tokens[token])!r})"
    value = x[tuple(where)].item()
    raise ValueError(
        f"{name}: {value} at {name}[{', '.join(map(str, where))}], in token {token}{label}.\n"
        "  Softmax spreads it to every token that attends to this one. "
        f"Look for a division by zero, log(0) or an overflow where {name} is computed."
    )


def _labels(name: str, labels: Sequence[str] | None, x: Tensor) -> tuple[str, ...]:
    count = x.shape[-2]
    if labels is None:
        return tuple(f"t{i}" for i in range(count))
    check_labels(name, labels, {count})
    return tuple(map(str, labels))


def _modules(module: object) -> Iterator[nn.Module]:
    return module.modules() if isinstance(module, nn.Module) else iter(())


def _own_forward(
    module: Attention, x: Tensor, mask: Mask | Tensor | None, context: Tensor | None
) -> Tensor:
    """The output of the module itself in eval mode; its training flags are restored."""
    modes = [(part, part.training) for part in _modules(module)]
    try:
        for part, _ in modes:
            part.training = False
        result: Tensor
        if isinstance(module, ladder.EncoderAttention):
            visible = mask
            if isinstance(mask, Mask):
                visible = mask.dense(x.shape[1], x.shape[1], x.device) if x.ndim == 3 else None
            result, _ = module(x, visible)
        elif isinstance(module, attention.MultiHeadAttention):
            result = module(x, context, mask=mask)
        else:
            result = module(x)
        return result
    finally:
        for part, training in modes:
            part.training = training
