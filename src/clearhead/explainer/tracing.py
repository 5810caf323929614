"""trace(): the six steps of one forward pass: names, formulas, shapes, numbers.

The numbers are computed a second time, in plain PyTorch (`steps.py`, which lists the names);
`Trace.gap` says how far they are from what the module itself gives.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from rich.console import Group, RenderableType
from rich.text import Text
from torch import Tensor, nn

from clearhead import attention, drawing, ladder
from clearhead.drawing import Axis
from clearhead.drawing.file_formats import save
from clearhead.drawing.heatmap import Heatmap, blocks
from clearhead.drawing.html_page import Page
from clearhead.explainer import page_walk
from clearhead.explainer.steps import LINEARS, PAPER_LINEARS, Computation, Step
from clearhead.maps import page_layers
from clearhead.maps.axis_labels import check_labels
from clearhead.masks import Mask
from clearhead.validation import describe

MaskTensor = Bool[Tensor, "..."] | Int[Tensor, "..."] | Float[Tensor, "..."]

_FORMS = (
    "simplified_attention, SelfAttention, CausalAttention, MultiHeadAttentionWrapper, "
    "MultiHeadAttention and EncoderAttention of clearhead.ladder, and clearhead.MultiHeadAttention"
)


@dataclass(frozen=True, repr=False)
class Trace:
    """What happened in one forward pass, step by step.

    Attributes:
        form: The name of the class or function that was traced.
        x: The input.
        steps: The steps, in order; going through a trace gives them too.
        tokens: A label for each query, such as the words of the text.
        context_tokens: A label for each key.
        hidden: True where a query may not look at a key, (.., queries, keys); None without a mask.
        gap: The largest difference between the last step and the module's own forward pass.
        notes: What a reader should know: dropout that is off, queries that see nothing.
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
        """The names of all tensors, in the order in which they are made."""
        return ["x", *(name for step in self.steps for name in step.tensors)]

    @property
    def output(self) -> Tensor:
        """What the last step gives, whatever it is called."""
        return list(self.steps[-1].tensors.values())[-1]

    def __getitem__(self, name: str) -> Tensor:
        """The tensor of this name; "output" is always the last one."""
        tensors = {"x": self.x, "output": self.output}
        for step in self.steps:
            tensors |= step.tensors
        if name not in tensors:
            raise KeyError(f"no tensor is called {name!r}; the names are {', '.join(self.names)}")
        return tensors[name]

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def step(self, number: str) -> Step:
        """The step of this number."""
        for step in self.steps:
            if step.number == number:
                return step
        numbers = ", ".join(step.number for step in self.steps)
        raise KeyError(f"{self.form} has no step {number!r}; its steps are {numbers}")

    def _weights(self) -> tuple[Tensor, Tensor | None]:
        """The weights and what is hidden of them, (batch, heads, queries, keys) in every form."""
        weights, hidden = self["attn_weights"], self.hidden
        if hidden is not None:
            hidden = hidden.expand_as(weights)
        while weights.ndim < 4:  # (tokens, keys) or (batch, tokens, keys): one head
            weights = weights[None] if weights.ndim == 2 else weights[:, None]
            if hidden is not None:
                hidden = hidden[None] if hidden.ndim == 2 else hidden[:, None]
        return weights, hidden

    def draw_weights(self, *, limit: int = 16) -> RenderableType:
        """One table per head: each row a query, each column a key, the first sequence only."""
        weights, hidden = self._weights()
        sequences = weights.shape[0]
        parts: list[RenderableType] = []
        for head in range(weights.shape[1] if weights.numel() else 0):
            title = f"head {head}" if weights.shape[1] > 1 else "attn_weights"
            title += f", sequence 0 of {sequences}" if sequences > 1 else ""
            parts += [Text()] * bool(parts)
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
        return Group(*parts)

    def draw_maps(self) -> RenderableType:
        """One map per head, as large as the window; the first sequence only."""
        weights, hidden = self._weights()
        rows = Axis("query", len(self.tokens), self.tokens)
        columns = Axis("key", len(self.context_tokens), self.context_tokens)
        return Group(
            *(
                Heatmap(
                    blocks(weights[0, head], None if hidden is None else hidden[0, head]),
                    rows,
                    columns,
                    title=f"head {head}" if weights.shape[1] > 1 else "attn_weights",
                )
                for head in range(weights.shape[1] if weights.numel() else 0)
            )
        )

    def draw_output(self, *, limit: int = 16) -> RenderableType:
        """The context vectors, one row per token, the first sequence only."""
        output = self.output if self.output.ndim == 2 else self.output[:1].flatten(0, 1)
        columns = [str(i) for i in range(output.shape[-1])]
        return drawing.Matrix(output, self.tokens, columns, decimals=4, heat=False, limit=limit)

    def page(self, *, title: str | None = None, notes: Sequence[str] = ()) -> Page:
        """The steps and the weights of the first sequence, as a page or a figure shows them.

        Args:
            title: What stands at the head of the page; the name of the form by default.
            notes: Sentences that a reader should know, besides those of the trace.
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
            page_walk.walk(self.x, self.steps, self.form, self.gap),
            {"view": "steps", "query": (len(self.tokens) - 1) // 2},
        )

    def save(
        self, path: str | os.PathLike[str], *, title: str | None = None, notes: Sequence[str] = ()
    ) -> None:
        """Write the first sequence as a page to look at and walk through, or as a figure.

        Args:
            path: The file; its end decides: `.html`, `.svg`, `.png` or `.pdf`.
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


def trace(
    module: nn.Module | Callable[[Tensor], Tensor],
    x: Float[Tensor, "..."],
    *,
    tokens: Sequence[str] | None = None,
    mask: Mask | MaskTensor | None = None,
    context: Float[Tensor, "batch seen d_in"] | None = None,
    context_tokens: Sequence[str] | None = None,
) -> Trace:
    """Follow one forward pass, as the module does it in eval mode.

    Unlike a forward pass it looks at values too: NaN in the input raises, and queries that may
    attend to nothing are noted.

    Args:
        module: A form of the ladder, the fast module, or the function `simplified_attention`.
        x: What the module takes, (batch, tokens, d_in).
        tokens: A label for each token of x.
        mask: As the module's own forward takes it.
        context: Where keys and values come from instead of x (fast module, `causal=False`).
        context_tokens: A label for each token of context.

    >>> from clearhead.ladder import simplified_attention
    >>> seen = trace(simplified_attention, torch.eye(2), tokens=["to", "be"])
    >>> seen["attn_weights"].round(decimals=4)
    tensor([[0.7311, 0.2689],
            [0.2689, 0.7311]])
    """
    if module is not ladder.simplified_attention and not isinstance(
        module,
        ladder.SelfAttention
        | ladder.CausalAttention
        | ladder.MultiHeadAttentionWrapper
        | ladder.MultiHeadAttention
        | ladder.EncoderAttention
        | attention.MultiHeadAttention,
    ):
        given = getattr(module, "__name__", type(module).__name__)
        raise TypeError(f"module: {given} cannot be traced.\n  These can: {_FORMS}.")
    form = getattr(module, "__name__", type(module).__name__)
    _check_arguments(module, form, mask, context)
    _check_finite("x", x, tokens)
    if context is not None:
        _check_finite("context", context, context_tokens)

    with torch.no_grad():
        own = _own_forward(module, x, mask, context)  # raises for shapes that do not fit
        labels = _labels("tokens", tokens, x)
        key_labels = labels
        if context is not None:
            key_labels = _labels("context_tokens", context_tokens, context)
        elif context_tokens is not None:
            raise ValueError("context_tokens: there is no context for them to name.")
        made = Computation(x if context is None else context)
        if module is ladder.simplified_attention:
            made.simplified(x)
        elif isinstance(module, ladder.SelfAttention):
            made.one_head(module, x)
        elif isinstance(module, ladder.CausalAttention):
            made.hide_future(x)
            made.one_head(module, x)
        elif isinstance(module, ladder.MultiHeadAttentionWrapper):
            made.hide_future(x)
            made.wrapper(module, x)
        elif isinstance(module, ladder.MultiHeadAttention):
            made.hide_future(x)
            made.multi_head(module, x, LINEARS)
        elif isinstance(module, ladder.EncoderAttention):
            made.hide_encoder(module, x, mask)
            made.multi_head(module, x, PAPER_LINEARS)
        else:
            assert isinstance(module, attention.MultiHeadAttention)
            assert not isinstance(mask, Tensor)
            made.hide(module.mask_for(mask), x)
            made.multi_head(module, x, LINEARS)
        result = list(made.steps[-1].tensors.values())[-1]
        gap = (result - own).abs().max().item() if own.numel() else 0.0
    notes = list(made.notes)
    rates = {part.p for part in _modules(module) if isinstance(part, nn.Dropout) and part.p > 0}
    for rate in sorted(rates):
        notes.append(f"dropout ({rate:g}) is off: this is the forward pass of eval mode.")
    return Trace(
        form, x.detach(), tuple(made.steps), labels, key_labels, made.hidden, gap, tuple(notes)
    )


def _check_arguments(
    module: nn.Module | Callable[[Tensor], Tensor],
    form: str,
    mask: Mask | Tensor | None,
    context: Tensor | None,
) -> None:
    fast = isinstance(module, attention.MultiHeadAttention)
    if context is not None and not fast:
        raise ValueError(
            f"context: {form} of the ladder attends to x only.\n"
            "  clearhead.MultiHeadAttention(.., causal=False) takes keys from elsewhere."
        )
    if mask is not None and not fast and not isinstance(module, ladder.EncoderAttention):
        raise ValueError(
            f"mask: {form} of the ladder takes no mask from outside.\n"
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
        "Look for a division by zero, a log of zero or an overflow in what made it."
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
    module: nn.Module | Callable[[Tensor], Tensor],
    x: Tensor,
    mask: Mask | Tensor | None,
    context: Tensor | None,
) -> Tensor:
    """What the module itself gives in eval mode; its training flags stay as they were."""
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
