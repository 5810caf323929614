"""A file's own demonstration, `if __name__ == "__main__":`, run up to its first calls of a module.

Like worker.py, which imports it, this shares a process with code that may be hostile: see there.
"""

import copy
import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

CALLS = 4  # calls of the module to keep
_no_grad = torch.no_grad


class _Enough(BaseException):
    """Enough calls were recorded."""


class Demonstration:
    """The first module of the file that its demonstration calls, and what it was given.

    Args:
        body: The demonstration's source.
        space: The namespace of the file.
    """

    # Slots are not among the attributes that are described: they hold tensors and modules.
    __slots__ = ("__dict__", "_calls", "_fresh", "_inside", "_module", "_tensors")

    def __init__(self, body: str, space: dict[str, Any]) -> None:
        self._calls: list[tuple[dict[str, Any], Tensor]] = []
        self._module: Module | None = None
        self._fresh: Module | None = None
        self._inside = False
        self._tensors: dict[str, Tensor] = {}
        plain_call, ended = Module.__call__, ""

        def spied(module: Module, *args: Any, **keywords: Any) -> Any:
            if self._inside or type(module).__module__ != space["__name__"]:
                return plain_call(module, *args, **keywords)
            return self._kept(plain_call, module, args, keywords)

        Module.__call__ = spied  # type: ignore[method-assign]
        try:
            with _no_grad():
                exec(compile(body, "the demonstration", "exec"), space)
        except (_Enough, Exception, SystemExit) as error:
            ended = f": {type(error).__name__}: {error}"  # what it called before that is enough
        finally:
            Module.__call__ = plain_call  # type: ignore[method-assign]
        if self._module is None or not self._calls:
            raise RuntimeError(f"the demonstration calls no module of the file{ended}")
        given, _ = self._calls[0]
        self._tensors = {name: one for name, one in given.items() if isinstance(one, Tensor)}
        self.owner, self.names = type(self._module).__name__, ",".join(self._tensors)
        self.kinds = ",".join(sorted({type(one).__name__ for one in self._module.modules()}))

    def _kept(self, call: Any, module: Module, args: Any, keywords: Any) -> Any:
        """Make a call, and keep it if it is one of the first module."""
        if self._module is None:
            self._module, self._fresh = module, copy.deepcopy(module.eval())
        if module is not self._module:
            return call(module, *args, **keywords)
        bound = inspect.signature(module.forward).bind(*args, **keywords)
        given = {name: _copied(value) for name, value in bound.arguments.items()}
        self._inside = True
        try:
            out = call(module, *args, **keywords)
        finally:
            self._inside = False
        first = _first_tensor(out)
        if first is not None:
            self._calls.append((given, first))
        if len(self._calls) == CALLS:
            raise _Enough
        return out

    def forward(self, what: str, *values: Tensor) -> Any:
        """Answer a question about the calls.

        Args:
            what: "given": the tensors of the first call. "pieces": the first argument of each call,
                then their outputs. "again": what a new module returns for other tensors; "alone":
                the same without the first call's other arguments; "after": what it returns for the
                second half of the tensors, after a call with the first half.
            values: The other tensors.
        """
        if what == "given":
            return list(self._tensors.values())
        if what == "pieces":
            firsts = [next(iter(given.values())) for given, _ in self._calls]
            return [*firsts, *(out for _, out in self._calls)]
        module = copy.deepcopy(self._fresh)
        if what == "after":
            half = len(values) // 2
            self._run(module, values[:half])
            values = values[half:]
        return self._run(module, values, alone=what == "alone")

    def _run(self, module: Any, values: tuple[Tensor, ...], *, alone: bool = False) -> Any:
        """What a module returns for these tensors in place of the first call's."""
        given = {} if alone else {name: _copied(one) for name, one in self._calls[0][0].items()}
        given.update(zip(self._tensors, map(_copied, values), strict=False))
        torch.manual_seed(0)
        with _no_grad():
            return _first_tensor(module(**given))


def _copied(value: Any) -> Any:
    """A copy of an argument, since the call may change it."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    return copy.deepcopy(value)


def _first_tensor(value: Any) -> Tensor | None:
    """The first tensor in what a module returned."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    inside = value.values() if isinstance(value, dict) else value
    if not isinstance(inside, list | tuple) and not isinstance(value, dict):
        return None
    return next((one for one in map(_first_tensor, inside) if one is not None), None)
