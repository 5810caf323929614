"""Listening to torch's dispatcher: two operators are heard, all others run as ever.

Every operator of torch goes through its dispatcher, which looks at a set of keys and calls the
kernel of the highest one. One key is left over for experiments. Kernels for it are registered
for attention and softmax only; for every other operator the dispatcher skips the key before it
looks. The key is switched on for one thread, for the time of a block. A `TorchFunctionMode` sees
the same calls and is called for every function besides: on a GPU that made a watched GPT-2 1.7x
slower.

Our own `kernels.attend` is heard as a whole, with its mask by name, and what it calls is not.
"""

# torch.library carries no types of its own.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.library import Library, fallthrough_kernel

from clearhead.kernels import told
from clearhead.masks import Mask

_KEY = "TESTING_ONLY_GenericWrapper"


def _only(key: str) -> torch._C.DispatchKeySet:
    found = torch._C._parse_dispatch_key(key)
    assert found is not None
    return torch._C.DispatchKeySet(found)


_KEYS = _only(_KEY)


class Listener(Protocol):
    """Who wants to hear of attention."""

    def hear_attention(self, *args: Any, **kwargs: Any) -> None:
        """A call of `scaled_dot_product_attention` has been made, with these arguments."""

    def hear_ours(self, q: Tensor, k: Tensor, mask: Mask | None, scale: float | None) -> None:
        """A call of `clearhead.kernels.attend` has been made."""

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
    if not _kernels:
        _register()
    _switch(False)
    _here.listeners.append(listener)
    _switch(True)


def leave(listener: Listener) -> None:
    """It hears nothing more."""
    _switch(False)
    _here.listeners.remove(listener)
    _switch(True)


def _switch(on: bool) -> None:
    """Let this thread's listeners hear, or not."""
    if _here.listeners:
        told.listener = _ours if on else None
        torch._C._dispatch_tls_set_dispatch_key_included(_KEY, on)


def _register() -> None:
    with _lock:
        if _kernels:  # another thread has done it
            return
        others = Library("_", "IMPL", _KEY)
        others.fallback(fallthrough_kernel, _KEY)
        heard = Library("aten", "IMPL", _KEY)
        heard.impl("scaled_dot_product_attention", _attention)
        heard.impl("softmax.int", _softmax)
        _kernels.extend([others, heard])


def _unheard() -> Any:
    """Inside, torch's dispatcher does what it does when nobody listens."""
    return torch._C._ExcludeDispatchKeyGuard(_KEYS)


def _in_backward() -> bool:
    """Whether a checkpointed forward is being repeated, which is no call of the model's."""
    return torch._C._current_graph_task_id() != -1


def _attention(*args: Any, **kwargs: Any) -> Tensor:
    with _unheard(), torch._C.DisableTorchFunction():  # modes have seen the call already
        output: Tensor = torch._C._nn.scaled_dot_product_attention(*args, **kwargs)
    if not _in_backward():
        for listener in _here.listeners:
            listener.hear_attention(*args, **kwargs)
    return output


def _softmax(*args: Any, **kwargs: Any) -> Tensor:
    for listener in _here.listeners:
        listener.hear_softmax()
    with _unheard():
        output: Tensor = torch.ops.aten.softmax.int(*args, **kwargs)
    return output


def _ours(
    q: Tensor, k: Tensor, mask: Mask | None, scale: float | None, run: Callable[[], Tensor]
) -> Tensor:
    with _unheard():
        output = run()
    if not _in_backward():
        for listener in _here.listeners:
            listener.hear_ours(q, k, mask, scale)
    return output
