"""Recorder: takes a snapshot of every attention call of a model, and says what it could not see."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from clearhead import torch_internals
from clearhead.watcher.interception import AttentionCall
from clearhead.watcher.interface_route import uses_interface
from clearhead.watcher.layer_names import LayerChoice
from clearhead.watcher.model_routes import Routes
from clearhead.watcher.seen import Seen, Unseen
from clearhead.watcher.snapshots import Keeper

_ATTENTION = re.compile(r"Attention|Attn|MultiHead")
_WITHOUT_SOFTMAX = re.compile(
    r"Mixer$|DeltaNet$|DeltaAttention|LinearAttention|LightningAttention|Retention$|^Rwkv\w*Attention"
    r"|SSM|Hyena|ShortConv$|RecurrentBlock$|LSTM(Layer|Cell|Block)"
)
_SHOWN = 3


class NothingSeen(RuntimeError):
    """The block ended and no attention call was seen in it.

    Attributes:
        unseen: The modules that look like attention, and why they were not recorded.
    """

    def __init__(self, message: str, unseen: Sequence[Unseen] = ()) -> None:
        super().__init__(message)
        self.unseen = list(unseen)


class Recorder:
    """A handler that records.

    Args:
        routes: The modules of the model.
        choice: The layers to keep.
        keeper: Takes the snapshots.
        seen: Where they go.
        grad: Whether to keep the gradients of the context vectors.
    """

    def __init__(
        self, routes: Routes, choice: LayerChoice, keeper: Keeper, seen: Seen, *, grad: bool
    ) -> None:
        self.seen = seen
        self._names, self._choice, self._keeper, self._grad = routes.names, choice, keeper, grad
        self._gradients: dict[int, list[Tensor]] = {}  # by the id of a running call
        self._elsewhere = 0

    def prepare(self, call: AttentionCall) -> None:
        """Ask for the gradient of the context vectors, before an intervention edits them."""
        if self._grad and call.name_in(self._names) is not None:
            found: list[Tensor] = []
            self._gradients[id(call)] = found
            call.edits.insert(0, partial(_tapped, found))

    def record(self, call: AttentionCall) -> None:
        """Keep what the call's weights are computed from."""
        found = self._gradients.pop(id(call), None)
        name = call.name_in(self._names)
        if name is None:
            self._elsewhere += 1
            return
        if not self._choice.may_be(name):
            return
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self._keeper.detach):
            inputs = call.inputs()
            snapshot = self._keeper.keep(inputs, call.blocked)
        snapshot.gradients = found
        if self._keeper.values and inputs.v is not None:
            width = call.shape[1] * inputs.v.shape[-1]
            snapshot.output = output_weight(call.modules[-1], width)
            if snapshot.output is not None:
                snapshot.output_version = torch_internals.version(snapshot.output)
        self.seen.add(name, snapshot)

    def finish(self, model: nn.Module, softmax_in: Iterable[nn.Module]) -> None:
        """Drop what was not chosen; raise if nothing was seen."""
        self._keeper.forget()
        self.seen.keep_layers(self._choice.chosen() if self._choice.names else [])
        handmade = [self._names[module] for module in softmax_in if module in self._names]
        self.seen.unseen = unseen(self._names, self._choice.names, handmade)
        if not self._choice.names:
            raise NothingSeen(self._nothing(model, handmade), self.seen.unseen)

    def _nothing(self, model: nn.Module, handmade: Sequence[str]) -> str:
        kind = type(model).__name__
        lines = [
            f"No attention was seen: {kind} did not run inside the block, or in another thread "
            "(only the one that opened the block is watched), or it called no function that "
            "watch() records."
        ]
        if self._elsewhere:
            lines.append(
                f"{self._elsewhere} attention calls came from outside it. Is this the model that "
                "ran, or a copy of it? Was it called as model(x), not as model.forward(x)?"
            )
        if handmade:
            names = ", ".join(handmade[:_SHOWN])
            lines.append(f"It called softmax in {names}: attention written out by hand.")
        if type(model).__module__ == "clearhead.ladder":
            lines.append(
                "The ladder is written out to be read: clearhead.trace(module, x) shows its "
                "weights. The fast form can be watched: MultiHeadAttention.from_ladder(module)."
            )
        elif self.seen.unseen:
            lines += [str(one) for one in self.seen.unseen[:_SHOWN]]
            if len(self.seen.unseen) > _SHOWN:
                lines.append(f"and {len(self.seen.unseen) - _SHOWN} more.")
        if handmade or self.seen.unseen:
            lines.append(
                "Use torch.nn.functional.scaled_dot_product_attention in the model, or an "
                "architecture of transformers that uses AttentionInterface."
            )
        return "\n  ".join(lines)


def _tapped(found: list[Tensor], context: Tensor) -> Tensor:
    """The context vectors, whose gradient is put into `found` by the backward pass."""
    if context.requires_grad:

        def keep(gradient: Tensor) -> None:
            found.append(gradient.transpose(1, 2).detach())

        context.register_hook(keep)  # type: ignore[no-untyped-call]  # untyped in torch
    return context


_OUTPUT_NAMES = ("out_proj", "o_proj", "c_proj", "dense", "o", "wo", "out_lin", "proj")


def output_weight(module: nn.Module, width: int) -> Tensor | None:
    """The weight (d_model, width) of the output projection; None if none is found.

    It is looked for among the children of the attention module. Models with another structure
    (BERT has it in a sibling) have none.
    """
    for name in _OUTPUT_NAMES:
        projection = getattr(module, name, None)
        weight = getattr(projection, "weight", None)
        if isinstance(weight, Tensor) and weight.ndim == 2:
            is_transposed = type(projection).__name__ == "Conv1D"  # GPT-2's in transformers
            weight = weight.detach().T if is_transposed else weight.detach()
            if weight.shape[1] == width:
                return weight
    return None


def unseen(
    names: Mapping[nn.Module, str], seen: Sequence[str], handmade: Sequence[str]
) -> list[Unseen]:
    """The modules whose class names say attention, and which no recorded call belongs to.

    Args:
        names: The name of each module.
        seen: The layers that were recorded.
        handmade: The modules that called a softmax outside the functions that are recorded.
    """
    found: list[Unseen] = []
    kinds = {type(module) for module in names}
    without = {kind for kind in kinds if _WITHOUT_SOFTMAX.search(kind.__name__)}
    attention = {kind for kind in kinds if _ATTENTION.search(kind.__name__)}
    for module, name in names.items():
        kind = type(module)
        if (kind not in without and kind not in attention) or name in seen:
            continue
        related = (*seen, *(one.name for one in found))
        if any(_is_inside(name, other) or _is_inside(other, name) for other in related):
            continue
        by_hand = any(_is_inside(other, name) for other in handmade)
        no_weights = kind in without and not by_hand
        reason = _NO_WEIGHTS if no_weights else _reason(module, name, handmade)
        found.append(Unseen(name, kind.__name__, reason))
    return found


_NO_WEIGHTS = "no attention weights here: this kind of layer has no softmax over tokens"


def _reason(module: nn.Module, name: str, handmade: Sequence[str]) -> str:
    kind = type(module)
    file = sys.modules.get(kind.__module__)
    if isinstance(module, torch.jit.ScriptModule):
        return "scripted code cannot be observed; watch the original module"
    if getattr(module, "reorder_and_upcast_attn", False):
        return "written out by hand; set config.reorder_and_upcast_attn = False"
    if any(_is_inside(other, name) for other in handmade):
        return "its attention is written out by hand, which cannot be recorded"
    if kind.__module__.startswith("transformers.models.") and not uses_interface(kind):
        return "transformers writes this attention out by hand, which cannot be recorded"
    if hasattr(file, "flex_attention"):
        return "flex_attention called directly cannot be observed; through transformers it can"
    return "it did not run, or computes attention by hand, which cannot be recorded"


def _is_inside(name: str, other: str) -> bool:
    return name == other or name.startswith(f"{other}.")
