"""watch(): the attention maps of any PyTorch model, while it runs as it always does.

    with watch(model) as seen:
        model(ids)
    seen["transformer.h.3.attn"][0, 2]      # head 2 of layer 3, exact

Enters: a model. Leaves: a `Seen`, with one `AttentionMap` per attention call. `ablate` and
`knockout` change what the model computes, by the same means. Start reading at `watch`.

    layer_names       what a layer may be called
    snapshots         what is kept of a call
    interception      calls and handlers; the routes on which calls arrive:
    interface_route   Hugging Face models
    mode_route        PyTorch's functions
    own_route         Clearhead's own module
    model_routes      which of them a model needs
    recorder          the handler of `watch`
    interventions     the handlers of `ablate` and `knockout`
    seen              what is returned: maps by layer, files, pages
    head_table        what every head attends to; `calls` and `padding` for several calls
    one_text          the maps of a model that reads or writes one text

Only the thread that opens a block is watched. A compiled model runs uncompiled while it is watched
(in all threads: PyTorch compiles for all of them), and its compiled form is kept. With dropout, a
map has the weights before dropout. Under autocast, queries and keys are kept in the dtype that
attention computes in.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import NoReturn

from torch import nn

from clearhead import torch_internals
from clearhead.foreign_names import explained
from clearhead.watcher.interventions import ablate, knockout
from clearhead.watcher.layer_names import LayerChoice, Selector
from clearhead.watcher.model_routes import Routes
from clearhead.watcher.recorder import NothingSeen, Recorder
from clearhead.watcher.seen import Call, Seen, Unseen
from clearhead.watcher.snapshots import CannotShow, Keeper

__all__ = [
    "Call",
    "CannotShow",
    "NothingSeen",
    "Seen",
    "Unseen",
    "Watch",
    "ablate",
    "knockout",
    "watch",
]


@explained
def watch(
    model: nn.Module,
    *,
    layers: Selector | Sequence[Selector] | None = None,
    detach: bool = True,
    offload: str | None = None,
    copy: bool = False,
    values: bool = False,
    grad: bool = False,
) -> Watch:
    """Record the attention maps of a model while it runs, without changing what it computes.

    The output does not change by a bit, with one exception: `nn.MultiheadAttention` (and with it
    `nn.TransformerEncoder`) leaves its fast path for inference. Its output then differs by about
    1e-6, and an encoder's output at padding, zero on the fast path, is what is computed there.

    Only the thread that opens the block is watched, not those that it starts.

    Args:
        model: A Hugging Face model with any `attn_implementation`, a Clearhead model, or any model
            that uses `scaled_dot_product_attention` or `nn.MultiheadAttention`.
        layers: Which attention layers to keep; all by default. Names or unambiguous parts of them
            ("h.3"), patterns ("h.*.attn"), numbers (0 = the layer that is called first), functions
            of a name, or a list of these.
        detach: Whether gradients end at the maps.
        offload: "cpu" moves what is kept to the CPU as it comes; None leaves it where it is.
        copy: Whether to copy queries and keys. By default they are copied only where their memory
            is known to be reused, as in a cache of fixed size; a map whose queries were
            overwritten raises an error when it is read.
        values: Whether to keep the values too, for statistics that use them.
        grad: Whether to keep the gradients of the context vectors; implies `values`. Call
            `loss.backward()` inside the block or after it.

    Returns:
        A context manager, for one `with` block; it gives a `Seen`.

    Examples:
        >>> import torch
        >>> encoder = nn.TransformerEncoderLayer(8, nhead=2, batch_first=True).eval()
        >>> with watch(encoder) as seen:
        ...     _ = encoder(torch.rand(1, 5, 8))
        >>> seen.layers
        ['self_attn']
        >>> seen["self_attn"].shape
        torch.Size([1, 2, 5, 5])
    """
    if not isinstance(model, nn.Module):
        hint = ""
        if isinstance(model, str):
            hint = f"\n  Load it first: model, tokenizer = clearhead.load({model!r})."
        if isinstance(model, type):
            hint = f"\n  That is a class: watch an object of it, {model.__name__}(...)."
        if isinstance(inner := getattr(model, "model", None), nn.Module):
            hint = f"\n  It has one inside ({type(inner).__name__}): watch(it.model)."
        raise TypeError(f"model: expected a torch.nn.Module, got {type(model).__name__}.{hint}")
    if offload not in (None, "cpu"):
        raise ValueError(f'offload: expected "cpu" or None, got {offload!r}.')
    routes = Routes.of(model)
    model = torch_internals.uncompiled_module(model)
    keeper = Keeper(detach, offload, copy or routes.is_replaced, values or grad)
    seen = Seen(type(model).__name__)
    recorder = Recorder(routes, LayerChoice("layers", layers), keeper, seen, grad=grad)
    return Watch(model, routes, recorder)


class Watch:
    """A `with` block in which a model is watched; see `watch`."""

    def __init__(self, model: nn.Module, routes: Routes, recorder: Recorder) -> None:
        self._model, self._routes, self._recorder = model, routes, recorder
        self._stack = ExitStack()
        self._used = False

    def __enter__(self) -> Seen:
        if self._used:
            raise RuntimeError(
                "A watch is for one block. Make a new one: with clearhead.watch(model) as seen: ..."
            )
        self._used = True
        self._thread = threading.get_ident()
        self._mode = self._stack.enter_context(self._routes.open(self._recorder))
        return self._recorder.seen

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        """Not supported: the model is called inside the block."""
        raise TypeError(
            "watch(model) is a block, not a model. Call the model inside it:\n"
            "  with clearhead.watch(model) as seen: output = model(ids)"
        )

    def __repr__(self) -> str:
        state = "used" if self._used else "not entered"
        return f"Watch({type(self._model).__name__}, {state}): a `with` block"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._thread != threading.get_ident():
            raise RuntimeError(
                "A watch ends in the thread that opened it: only that thread is watched."
            )
        self._stack.__exit__(kind, error, trace)
        if kind is None:
            self._recorder.finish(self._model, () if self._mode is None else self._mode.softmax_in)
