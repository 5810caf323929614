"""Recorder: stands between a model and torch, and copies what attention is given."""

from __future__ import annotations

import fnmatch
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import FrameType, FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from clearhead import kernels
from clearhead.masks import Mask
from clearhead.watcher import dispatcher
from clearhead.watcher.copies import Keeper
from clearhead.watcher.seen import Seen

Selector = str | int | Callable[[str], bool]

_CALL = nn.Module._call_impl.__code__


class NothingSeen(RuntimeError):
    """The block ended and no attention call was seen in it."""


class Recorder(TorchFunctionMode):
    """Copies what attention gets, and lets every call through.

    It hears of `scaled_dot_product_attention` from torch's dispatcher, and of our own module from
    itself. A model with `nn.MultiheadAttention`, whose attention does not always end there, is seen
    through the function mode, which is called for every torch function of its thread.
    """

    def __init__(
        self, model: nn.Module, selectors: Sequence[Selector] | None, keeper: Keeper
    ) -> None:
        super().__init__()
        self.seen = Seen(type(model).__name__)
        self.keeper = keeper
        self._model = model
        self._selectors = selectors
        self._unused = set(range(len(selectors or ())))
        self._grouping: dict[str, tuple[int, Any]] = {}  # groups and heads of a layer
        self._chosen: dict[str, bool] = {}  # every attention layer in order: is it kept?
        self._elsewhere = 0
        self._softmax: list[str] = []  # where a model without fused attention has its softmax
        self._through_mode = False
        self._names, kinds, replaced = _look_over(model)
        # A forward put into one module may be a CUDA graph, which writes behind torch's back.
        keeper.may_share &= not replaced
        self._through_mode = any(issubclass(kind, nn.MultiheadAttention) for kind in kinds)

    def start(self) -> None:
        """Begin to see what this thread does."""
        if self._through_mode:
            self.__enter__()  # type: ignore[no-untyped-call]  # torch's own
        else:
            dispatcher.listen(self)

    def stop(self) -> None:
        """See nothing more."""
        if self._through_mode:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # torch's own
        else:
            dispatcher.leave(self)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        see = _SEEN_BY.get(func)
        if see is None:
            return func(*args, **kwargs)
        return see(self, func, args, kwargs)

    # What is heard from the dispatcher.

    def hear_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None = None,
        attn_mask: Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """A call of `scaled_dot_product_attention`."""
        if (name := self._layer()) is not None:
            query, attn_mask = self._unpacked(name, query, attn_mask)
            kept = self.keeper.keep(query, key, value, attn_mask, *args, **kwargs)
            self.seen.add(name, kept)

    def _unpacked(
        self, name: str, query: Tensor, attn_mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Undo the packing of grouped queries: one token per head as one row per group.

        transformers 5.23 passes a single token's queries (batch, heads, 1, head_dim) as
        (batch, kv_heads, groups, head_dim) where a mask is given.
        """
        if name not in self._grouping:
            module = next(module for module, other in self._names.items() if other == name)
            config = getattr(module, "config", None)
            heads = getattr(config, "num_attention_heads", None)
            self._grouping[name] = getattr(module, "num_key_value_groups", 1), heads
        groups, heads = self._grouping[name]
        if groups == 1 or query.shape[1:3] != (heads // groups, groups):
            return query, attn_mask
        if attn_mask is not None and attn_mask.shape[1] > 1:
            attn_mask = attn_mask.reshape(attn_mask.shape[0], heads, 1, attn_mask.shape[-1])
        return query.reshape(query.shape[0], heads, 1, query.shape[-1]), attn_mask

    def hear_ours(self, q: Tensor, k: Tensor, mask: Mask | None, scale: float | None) -> None:
        """A call of `clearhead.kernels.attend`, which knows its mask by name."""
        if (name := self._layer()) is not None:
            self.seen.add(name, self.keeper.keep_ours(q, k, mask, scale))

    def hear_softmax(self) -> None:
        """A softmax: where no attention is seen, it tells where the model hides it."""
        if not self._chosen and len(self._softmax) < 3:
            name = self._running()
            if name is not None and name not in self._softmax:
                self._softmax.append(name)

    # What is seen through the mode, by function.

    def fused(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of `scaled_dot_product_attention`."""
        output = func(*args, **kwargs)
        if (outer := _multihead.innermost()) is not None:
            outer.recorded.add(id(self))
            kwargs = {**kwargs, "sources": outer.masks}
        self.hear_attention(*args, **kwargs)
        return output

    def ours(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of `clearhead.kernels.attend`, which knows its mask by name."""
        output = func(*args, **kwargs)
        q, k, _, mask = args
        self.hear_ours(q, k, mask, kwargs["scale"])
        return output

    def multihead(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A call of `multi_head_attention_forward`: run it so that its inside is seen."""
        names = ("attn_mask", "key_padding_mask")
        masks = tuple(kwargs[name] for name in names if kwargs.get(name) is not None)
        heads = args[4] if len(args) > 4 else kwargs["num_heads"]
        with _multihead.inside(heads, masks), self:
            return undispatched(func)(*args, **kwargs)

    def product(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A batched product: inside a multi-head call the first one is queries × keys."""
        output = func(*args, **kwargs)
        outer = _multihead.innermost()
        if outer is not None and id(self) not in outer.recorded:
            outer.recorded.add(id(self))
            q, k = args[-2], args[-1].transpose(-2, -1)  # (batch × heads, tokens, head_dim)
            q, k = (x.unflatten(0, (-1, outer.heads)) for x in (q, k))
            bias = args[0] if len(args) == 3 else None
            if bias is not None:
                batch = (-1, outer.heads) if bias.shape[0] > 1 else (1, 1)
                bias = bias.unflatten(0, batch)
            self.hear_attention(q, k, None, bias, scale=1.0, sources=outer.masks)
        return output

    def softmax(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A softmax that is not a part of multi-head attention."""
        if _multihead.innermost() is None:
            self.hear_softmax()
        return func(*args, **kwargs)

    # Keeping it.

    def _layer(self) -> str | None:
        """The name of the layer that is running, if it is one to keep."""
        name = self._running()
        if name is None:
            self._elsewhere += 1
            return None
        if name not in self._chosen:
            self._chosen[name] = self._choose(name, len(self._chosen))
        return name if self._chosen[name] else None

    def _running(self) -> str | None:
        """The name of the innermost module of the model that is running now."""
        here: FrameType | None = sys._getframe(3)  # whoever hears, and who tells it, are known
        frame = here
        while frame is not None:
            if frame.f_code is _CALL and (name := self._names.get(frame.f_locals["self"])):
                return name
            frame = frame.f_back
        frame = here  # model.forward(x), not model(x): no module was called
        while frame is not None:
            if frame.f_code.co_name == "forward":
                module = frame.f_locals.get("self")
                if isinstance(module, nn.Module) and (name := self._names.get(module)):
                    return name
            frame = frame.f_back
        return None

    def _choose(self, name: str, place: int) -> bool:
        if self._selectors is None:
            return True
        matching = {i for i, s in enumerate(self._selectors) if _matches(s, name, place)}
        self._unused -= matching
        return bool(matching)

    # At the end of the block.

    def check(self) -> None:
        """Raise if nothing was seen, or if `layers` asks for what was not there."""
        if not self._chosen:
            raise NothingSeen(self._nothing())
        if self._unused:
            assert self._selectors is not None
            missing = [self._selectors[i] for i in sorted(self._unused)]
            names = "".join(f"\n    {i}  {name}" for i, name in enumerate(self._chosen))
            raise ValueError(
                f"layers: nothing matched {', '.join(map(repr, missing))}.\n"
                f"  These attention layers ran:{names}"
            )

    def _nothing(self) -> str:
        kind = type(self._model).__name__
        lines = [
            f"No attention was seen: {kind} did not run inside the block, or in another thread "
            "(only the one that opened the block is watched), or it called no function that "
            "watch() knows."
        ]
        if self._elsewhere:
            lines.append(
                f"{self._elsewhere} attention calls came from outside it. "
                "Is this the model that ran, or a copy of it?"
            )
        if self._softmax:
            lines.append(
                f"It called softmax in {', '.join(self._softmax)}: attention written out "
                "as matrix products."
            )
        named = [name for name in self._names.values() if "att" in name.rpartition(".")[2].lower()]
        if named and not self._softmax:
            rest = f" and {len(named) - 3} more" if len(named) > 3 else ""
            lines.append(f"Its modules with attention in the name: {', '.join(named[:3])}{rest}.")
        how = getattr(getattr(self._model, "config", None), "_attn_implementation", "sdpa")
        if type(self._model).__module__ == "clearhead.ladder":
            lines.append(
                "The ladder is written out to be read: clearhead.trace(module, x) shows its "
                "weights. The fast form can be watched: MultiHeadAttention.from_ladder(module)."
            )
        elif how != "sdpa":
            lines.append(
                f'It was loaded with attn_implementation="{how}". Load it with '
                'attn_implementation="sdpa".'
            )
        else:
            lines.append(
                "Use torch.nn.functional.scaled_dot_product_attention in it; a Hugging Face model "
                'does with attn_implementation="sdpa". '
                "flash-attn and flex attention cannot be watched."
            )
        return "\n  ".join(lines)


def _look_over(model: nn.Module) -> tuple[dict[nn.Module, str], set[type], bool]:
    """A model's modules with their names, their classes, and whether a forward was put into one.

    The names are those of `named_modules`, which takes three times as long.
    """
    names = {model: type(model).__name__}  # "" would be a strange name for a layer
    replaced = "forward" in model.__dict__

    def walk(module: nn.Module, prefix: str) -> None:
        nonlocal replaced
        for name, child in module._modules.items():
            if child is not None and child not in names:
                names[child] = prefix + name
                if "forward" in child.__dict__:
                    replaced = True
                if child._modules:
                    walk(child, f"{prefix}{name}.")

    walk(model, "")
    return names, set(map(type, names)), replaced


# nn.MultiheadAttention.


@dataclass
class _InsideMultihead(AbstractContextManager["_InsideMultihead"]):
    """A running call of `multi_head_attention_forward`: what its inside does not say."""

    heads: int
    masks: tuple[Tensor, ...]
    recorded: set[int] = field(default_factory=set)  # the recorders that have its queries and keys

    def __enter__(self) -> _InsideMultihead:
        _multihead.stack.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _multihead.stack.pop()


class _Multihead(threading.local):
    """The running multi-head calls of this thread, innermost last; all recorders share them."""

    def __init__(self) -> None:
        self.stack: list[_InsideMultihead] = []

    def inside(self, heads: int, masks: tuple[Tensor, ...]) -> _InsideMultihead:
        return _InsideMultihead(heads, masks)

    def innermost(self) -> _InsideMultihead | None:
        return self.stack[-1] if self.stack else None


_multihead = _Multihead()


def undispatched(func: Callable[..., Any]) -> Callable[..., Any]:
    """The same Python function, except that it does not hand itself to a mode.

    It would do so first thing, and its inside would run out of the mode's sight.
    """
    assert isinstance(func, FunctionType)
    names = {**func.__globals__, "has_torch_function": lambda _: False}
    copy = FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy


# torch.compile.


class _Uncompiled:
    """While anybody watches, compiled code runs uncompiled: a graph hides its calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watching = 0
        self._stance: Any = None

    def enter(self) -> None:
        with self._lock:
            self._watching += 1
            # Without it nothing is compiled, and importing it takes a second.
            dynamo = sys.modules.get("torch._dynamo")
            if self._stance is None and dynamo is not None:
                self._stance = dynamo.set_stance("force_eager")

    def leave(self) -> None:
        with self._lock:
            self._watching -= 1
            if not self._watching and self._stance is not None:
                self._stance.__exit__(None, None, None)
                self._stance = None


uncompiled = _Uncompiled()


_SEEN_BY: dict[Callable[..., Any], Callable[..., Any]] = {
    torch._C._nn.scaled_dot_product_attention: Recorder.fused,
    torch.ops.aten.scaled_dot_product_attention: Recorder.fused,
    torch.ops.aten.scaled_dot_product_attention.default: Recorder.fused,
    kernels.attend: Recorder.ours,
    F.multi_head_attention_forward: Recorder.multihead,
    torch.bmm: Recorder.product,
    torch.baddbmm: Recorder.product,
    torch.softmax: Recorder.softmax,
    F.softmax: Recorder.softmax,
    Tensor.softmax: Recorder.softmax,
}


# Choosing layers.


def check_selectors(layers: Selector | Sequence[Selector] | None) -> Sequence[Selector] | None:
    """The selectors as a list; raise for what cannot select anything."""
    if layers is None:
        return None
    several = [layers] if isinstance(layers, (str, int)) or callable(layers) else list(layers)
    if not several:
        raise ValueError("layers: an empty list keeps nothing. Leave it out to keep all layers.")
    for one in several:
        if isinstance(one, bool) or not (isinstance(one, (str, int)) or callable(one)):
            raise TypeError(f"layers: expected names, patterns, numbers or functions, got {one!r}.")
        if isinstance(one, int) and one < 0:
            raise ValueError(
                f"layers: {one}: while the model runs nobody knows which layer is the last.\n"
                "  Count from 0, the layer that is called first."
            )
    return several


def _matches(selector: Selector, name: str, place: int) -> bool:
    if isinstance(selector, str):
        return fnmatch.fnmatchcase(name, selector)
    return selector == place if isinstance(selector, int) else bool(selector(name))
