"""Listening to torch's dispatcher: two operators are heard, all others run as ever.

Every operator of torch goes through its dispatcher, which looks at a set of keys and calls the
kernel of the highest one. One key is left over for experiments. Kernels for it are registered for
attention and softmax only; for every other operator the dispatcher skips the key before it looks.
The key is switched on for one thread, for the time of a block. A `TorchFunctionMode` sees the same
calls and is called for every function besides: on a GPU that made a watched GPT-2 1.7x slower.
"""

# torch.library carries no types of its own.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import threading
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.library import Library, fallthrough_kernel

from clearhead.watching.copies import Arguments, arguments

_KEY = "TESTING_ONLY_GenericMode"


class Listener(Protocol):
    """Who wants to hear of attention."""

    def hear_attention(self, call: Arguments) -> None:
        """A call of `scaled_dot_product_attention` has been made."""

    def hear_softmax(self) -> None:
        """A softmax is about to be made."""


class _Here(threading.local):
    """The listeners of this thread, innermost last."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []


_here = _Here()
_lock = threading.Lock()
_kernels: list[Library] = []  # a registration lives as long as its library


def listen(listener: Listener) -> None:
    """From now on `listener` hears what this thread does."""
    with _lock:
        if not _kernels:
            _register()
    _here.listeners.append(listener)
    _switch(True)


def leave(listener: Listener) -> None:
    """It hears nothing more."""
    _here.listeners.remove(listener)
    _switch(bool(_here.listeners))


def _switch(on: bool) -> None:
    torch._C._dispatch_tls_set_dispatch_key_included(_KEY, on)


def _register() -> None:
    others = Library("_", "IMPL", _KEY)
    others.fallback(fallthrough_kernel, _KEY)
    heard = Library("aten", "IMPL", _KEY)
    heard.impl("scaled_dot_product_attention", _attention)
    heard.impl("softmax.int", _softmax)
    _kernels.extend([others, heard])


def _attention(*args: Any, **kwargs: Any) -> Tensor:
    output: Tensor = _below(torch.ops.aten.scaled_dot_product_attention.default, args, kwargs)
    call = arguments(*args, **kwargs)
    for listener in _here.listeners:
        listener.hear_attention(call)
    return output


def _softmax(*args: Any, **kwargs: Any) -> Tensor:
    for listener in _here.listeners:
        listener.hear_softmax()
    output: Tensor = _below(torch.ops.aten.softmax.int, args, kwargs)
    return output


def _below(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What torch does with the call when nobody listens."""
    _switch(False)
    try:
        return operator(*args, **kwargs)
    finally:
        _switch(True)
