"""watch(): the attention maps of any PyTorch model, while it runs as it always does.

    with watch(model) as seen:
        model(ids)
    seen["transformer.h.3.attn"][0, 2]      # head 2 of layer 3, exact

While the block runs, we listen to torch's dispatcher. Every call goes through unchanged, and of
each attention call the queries, the keys and the mask are kept: all that an `AttentionMap` needs.
They share the model's memory until somebody writes to it. The map is made when it is looked at.
Which module is running is read from Python's own call stack, so no hook is ever put into the model.
What counts as attention:

- `torch.nn.functional.scaled_dot_product_attention`, called by whomever, scripted code too;
- our own `MultiHeadAttention`, whichever kernel runs;
- `nn.MultiheadAttention`, also inside `nn.TransformerEncoder`. They leave their native fast path
  while watched: the output is equal to 1e-6, not bit for bit, and an encoder's output at filled-up
  places is no longer zero.

A model with the last one is seen through a `TorchFunctionMode`, which costs more and does not see
scripted code.

The backward pass is not listened to: a checkpointed forward that it repeats is no call.

A compiled model runs uncompiled while watched (anywhere in the process: compiling is not a matter
of threads), and its compiled form is untouched afterwards. Only the thread that opened the block is
watched. With dropout, a map has the weights before dropout. Under autocast, queries and keys are
kept in the dtype that attention computes in.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType

from torch import nn

from clearhead.watcher.copies import Keeper
from clearhead.watcher.recorder import NothingSeen, Recorder, Selector, check_selectors, uncompiled
from clearhead.watcher.seen import Call, Seen

__all__ = ["Call", "NothingSeen", "Seen", "Watch", "watch"]


def watch(
    model: nn.Module,
    *,
    layers: Selector | Sequence[Selector] | None = None,
    detach: bool = True,
    offload: str | None = None,
) -> Watch:
    """Record the attention maps of a model while it runs, without changing what it computes.

    The output does not change by a bit, with one exception: `nn.MultiheadAttention` (and with it
    `nn.TransformerEncoder`) leaves its fast path for inference. Its output then differs by about
    1e-6, and an encoder's at filled-up places, zero on the fast path, is what is computed there.

    Only the thread that opens the block is watched, not those that it starts.

    Args:
        model: Any model whose attention goes through `scaled_dot_product_attention`,
            `nn.MultiheadAttention` or Clearhead's own module. A Hugging Face model is built with
            `attn_implementation="sdpa"`, its default.
        layers: Which attention layers to keep; all by default. Names ("h.3.attn"), patterns
            ("h.*.attn"), numbers (0 = the layer that is called first), functions of a name, or a
            list of these.
        detach: Whether gradients end at the maps.
        offload: "cpu" moves what is kept to the CPU as it comes; None leaves it where it is.

    Returns:
        A context manager, for one `with` block; it gives a `Seen`.

    >>> import torch
    >>> encoder = nn.TransformerEncoderLayer(8, nhead=2, batch_first=True).eval()
    >>> with watch(encoder) as seen:
    ...     _ = encoder(torch.rand(1, 5, 8))
    >>> seen.layers
    ['self_attn']
    >>> seen["self_attn"].shape
    torch.Size([1, 2, 5, 5])
    """
    return Watch(model, layers=layers, detach=detach, offload=offload)


class Watch:
    """A `with` block in which a model is watched; see `watch`."""

    def __init__(
        self,
        model: nn.Module,
        *,
        layers: Selector | Sequence[Selector] | None = None,
        detach: bool = True,
        offload: str | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            hint = ""
            if isinstance(inner := getattr(model, "model", None), nn.Module):
                hint = f"\n  It has one inside ({type(inner).__name__}): watch(it.model)."
            raise TypeError(f"model: expected a torch.nn.Module, got {type(model).__name__}.{hint}")
        if offload not in (None, "cpu"):
            raise ValueError(f'offload: expected "cpu" or None, got {offload!r}.')
        self._model = getattr(model, "_orig_mod", model)  # torch.compile's wrapper has no names
        self._recorder = Recorder(self._model, check_selectors(layers), Keeper(detach, offload))
        self._used = False

    def __enter__(self) -> Seen:
        if self._used:
            raise RuntimeError(
                "A watch is for one block. Make a new one: with clearhead.watch(model) as seen: ..."
            )
        self._used = True
        self._thread = threading.get_ident()
        uncompiled.enter()
        self._recorder.start()
        return self._recorder.seen

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
        self._recorder.stop()
        uncompiled.leave()
        self._recorder.keeper.forget()
        if kind is None:
            self._recorder.check()
