"""Routes: which ways of intercepting attention calls a model needs, and opening them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from torch import nn

from clearhead import torch_internals
from clearhead.attention import MultiHeadAttention
from clearhead.watcher.interception import Handler, following, handling, uncompiled
from clearhead.watcher.interface_route import uses_interface, wrapped_interface
from clearhead.watcher.mode_route import AttentionMode
from clearhead.watcher.own_route import listening


@dataclass(frozen=True)
class Routes:
    """The modules of a model, and the routes on which it makes attention calls.

    Attributes:
        names: The name of each module; the model itself has the name of its class.
        interface: Whether it has modules of transformers that use `AttentionInterface`.
        own: Whether it has modules of Clearhead.
        mode: Whether it has other modules, which may call any function of PyTorch.
        is_compiled: Whether it, or a part of it, is compiled.
        is_replaced: Whether a module's `forward` was replaced, as CUDA graphs do.
    """

    names: dict[nn.Module, str]
    interface: bool
    own: bool
    mode: bool
    is_compiled: bool
    is_replaced: bool

    @classmethod
    def of(cls, model: nn.Module) -> Routes:
        """The routes of a model."""
        given, model = model, torch_internals.uncompiled_module(model)
        names = {module: name for name, module in model.named_modules()}
        names[model] = type(model).__name__
        kinds = set(map(type, names))
        interface = {kind for kind in kinds if uses_interface(kind)}
        return cls(
            names,
            interface=bool(interface),
            own=any(issubclass(kind, MultiHeadAttention) for kind in kinds),
            mode=any(_may_call_anything(kind) for kind in kinds - interface),
            is_compiled=any(map(torch_internals.is_compiled, (given, *names))),
            is_replaced=any("forward" in vars(module) for module in names),
        )

    @contextmanager
    def open(self, handler: Handler) -> Iterator[AttentionMode | None]:
        """Show the attention calls of the model to a handler; gives the mode, if there is one."""
        with ExitStack() as stack:
            if self.is_compiled or self.mode or self.own:
                stack.enter_context(uncompiled)
            stack.enter_context(handling(handler))
            if self.interface:
                stack.enter_context(wrapped_interface())
            if self.own:
                stack.enter_context(listening())
            if not self.mode:
                own = [module for module in self.names if isinstance(module, MultiHeadAttention)]
                stack.enter_context(following(own))
                yield None
            else:
                stack.enter_context(following(self.names))
                mode = AttentionMode()
                stack.enter_context(mode)
                yield mode


def _may_call_anything(kind: type[nn.Module]) -> bool:
    """Whether a class that does not use `AttentionInterface` may call PyTorch's attention."""
    if issubclass(kind, nn.MultiheadAttention):
        return True
    return not kind.__module__.startswith(("torch.nn.", "clearhead."))
