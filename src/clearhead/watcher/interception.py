"""Interception: every attention call of this context is shown to its handlers.

A handler is a recorder (`watch`) or an intervention (`ablate`, `knockout`). Calls arrive on three
routes, and all of them end in `intercept`:

    interface_route   Hugging Face models that use `AttentionInterface`; no mode, no hooks
    mode_route        everything else that calls PyTorch's functions
    kernels.listener  Clearhead's own module, which calls `kernels.attend`

Which routes a model needs is decided from the classes of its modules. Handlers are kept in a
ContextVar, so only the thread that opened a block is affected.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from clearhead import torch_internals
from clearhead.watcher.snapshots import Inputs


@dataclass(kw_only=True)
class AttentionCall(ABC):
    """One attention call, before and while it runs.

    Attributes:
        modules: The running modules, innermost last.
        edits: Functions from context vectors (batch, queries, heads, value_dim) to others, applied
            before the output projection.
        blocked: Edges that a knockout removed; bool, broadcasts to (batch, heads, queries, keys).
    """

    modules: Sequence[nn.Module]
    edits: list[Callable[[Tensor], Tensor]] = field(default_factory=list)
    blocked: Tensor | None = None

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys)."""

    @abstractmethod
    def inputs(self) -> Inputs:
        """What the weights are computed from, without `blocked`."""

    @abstractmethod
    def run(self) -> Any:
        """Run the call, with its edits and without its blocked edges."""

    def first_positions(self) -> list[int] | None:
        """The key position of each sequence's first query; None for cross-attention.

        With a cache of fixed size, the keys after the last query are empty slots.
        """
        _, _, queries, keys = self.shape
        if queries == keys:
            return [0]
        if queries > keys or self.is_cross_attention():
            return None
        weights = self.inputs().map()
        return None if weights.is_causal() is False else weights.first_positions

    def is_cross_attention(self) -> bool:
        """Whether the module says that its keys belong to another text than its queries."""
        return False

    def name_in(self, names: dict[nn.Module, str]) -> str | None:
        """The name of the innermost running module of a model; None if none of them runs."""
        for module in reversed(self.modules):
            if module in names:
                return names[module]
        return None

    def block(self, edges: Tensor) -> None:
        """Remove edges from the call."""
        self.blocked = edges if self.blocked is None else self.blocked | edges

    def edited(self, context: Tensor) -> Tensor:
        """The context vectors (batch, queries, heads, value_dim) after all edits."""
        for edit in self.edits:
            context = edit(context)
        return context


class Handler(Protocol):
    """What a block does with the calls made in it."""

    def prepare(self, call: AttentionCall) -> None:
        """Edit the call before it runs."""

    def record(self, call: AttentionCall) -> None:
        """Take note of the call after it ran."""


_handlers: ContextVar[tuple[Handler, ...]] = ContextVar("clearhead_handlers", default=())
_is_inside: ContextVar[bool] = ContextVar("clearhead_inside_attention", default=False)
_running: ContextVar[tuple[nn.Module, ...]] = ContextVar("clearhead_running", default=())


def is_active() -> bool:
    """Whether an attention call made here is to be intercepted.

    It is not if it belongs to another call that is intercepted already, nor in the backward pass,
    where checkpointing repeats calls.
    """
    return bool(_handlers.get()) and not _is_inside.get() and not torch_internals.in_backward()


def running() -> tuple[nn.Module, ...]:
    """The modules that run in this context, as far as `following` was told to follow them."""
    return _running.get()


def intercept(call: AttentionCall) -> Any:
    """Run a call and show it to the handlers of this context."""
    handlers = _handlers.get()
    for handler in handlers:
        handler.prepare(call)
    token = _is_inside.set(True)
    try:
        result = call.run()
    finally:
        _is_inside.reset(token)
    for handler in handlers:
        handler.record(call)
    return result


@contextmanager
def handling(handler: Handler) -> Iterator[None]:
    """Show every attention call of this context to a handler."""
    token = _handlers.set((*_handlers.get(), handler))
    try:
        yield
    finally:
        _handlers.reset(token)


@contextmanager
def following(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Keep track of which of these modules run, by forward hooks that are removed at the end."""

    def enter(module: nn.Module, _: object) -> None:
        if _handlers.get():
            _running.set((*_running.get(), module))

    def leave(module: nn.Module, *_: object) -> None:
        stack = _running.get()
        if stack and stack[-1] is module:
            _running.set(stack[:-1])

    handles = []
    try:
        for module in modules:
            if isinstance(module, torch.jit.ScriptModule):  # they take no hooks
                continue
            handles.append(module.register_forward_pre_hook(enter))
            # The hook also runs after an exception, otherwise the module would stay on the stack.
            handles.append(module.register_forward_hook(leave, always_call=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


class Uncompiled:
    """A context in which compiled models run uncompiled: a graph hides its calls.

    It affects the whole process, because PyTorch compiles for all threads. Contexts may overlap.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._stance: Any = None

    def __enter__(self) -> None:
        with self._lock:
            self._open += 1
            # Importing the compiler takes a second, and without it nothing is compiled.
            if self._stance is None and torch_internals.is_compiler_loaded():
                self._stance = torch.compiler.set_stance("force_eager")

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._open -= 1
            if not self._open and self._stance is not None:
                self._stance.__exit__(*error)
                self._stance = None


uncompiled = Uncompiled()
