"""The usual form of attention, computed from a class's own weights, for code that cannot be read.

Loops over tokens or over single values hide their steps. But if the names of the weights reveal
their roles, the output can be compared with what the usual form computes from them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from clearhead.checker.diagnosis.intent import is_causal
from clearhead.checker.diagnosis.judgement import Judgement
from clearhead.checker.diagnosis.reading import Unreadable
from clearhead.checker.diagnosis.whole_attention import right_context
from clearhead.checker.harness.building import head_counts
from clearhead.checker.harness.case import Case
from clearhead.checker.harness.comparison import difference
from clearhead.checker.harness.subject import Inputs, Subject, call, each
from clearhead.checker.harness.weight_roles import role_of, takes_last

Layer = tuple[Tensor, Tensor | None]  # weights (in, out) and bias

SAME = {torch.float64: 1e-7, torch.float32: 1e-4}


@dataclass(frozen=True, eq=False)
class PlainForm:
    """softmax(q k^T / sqrt(head_dim)) v, with a class's own projections.

    Args:
        layers: The projections of queries, keys and values, and of the output if there is one.
        heads: The number of heads.
        mask: "none" or "causal".
        mask_given: Whether a causal mask is passed in, so that it is not part of the form.
    """

    layers: tuple[Layer, ...]
    heads: int
    mask: str
    mask_given: bool = False

    @property
    def steps(self) -> Judgement:
        """The judgement of this form, in place of steps that were read."""
        width = self.layers[0][0].shape[1] // self.heads
        return Judgement(heads=self.heads, head_dim=width, mask=self.mask)

    def with_mask(self, mask: str) -> Self:
        """The same form with another mask."""
        return replace(self, mask=mask)

    def output(
        self, inputs: Inputs, visible: Tensor | None = None, *, own_mask: bool = True
    ) -> Tensor | None:
        """The output (batch, tokens, d) in float64; None if it cannot be computed.

        Args:
            inputs: The inputs of queries, keys and values, each (batch, tokens, d_in).
            visible: Further keys are hidden where this is False: (batch, 1, tokens, tokens) or
                (tokens, tokens).
            own_mask: Whether the form's own mask applies too.
        """
        if self.mask_given and not own_mask:
            return None
        mask = self.mask if own_mask else "none"
        rows = [_projected(x, layer) for x, layer in zip(inputs, self.layers, strict=False)]
        scale = (rows[0].shape[-1] // self.heads) ** -0.5
        try:
            context = right_context(rows, self.heads, scale, mask, visible)
        except (Unreadable, RuntimeError):
            return None
        return _projected(context, self.layers[3]) if len(self.layers) == 4 else context


def plain_form(case: Case, subject: Subject, inputs: Inputs, out: Tensor) -> PlainForm | None:
    """The usual form that gives the same outputs as the class on two inputs; None if none does."""
    causal = is_causal(case, subject)
    given = bool(subject.polarity)
    masks = ("causal",) if given or causal == "yes" else ("none", "causal")
    others = each(inputs, lambda x: x.flip(-1))
    for layers in _layers(subject):
        width = layers[0][0].shape[1]
        counts = [count for count in head_counts(subject) if count and width % count == 0]
        for heads, mask in itertools.product(counts, masks):
            form = PlainForm(layers, heads, mask, given)
            if _same(form, inputs, out, subject):
                again = call(case.session, subject, others)
                same = isinstance(again, Tensor) and _same(form, others, again, subject)
                return form if same else None
    return None


def _same(form: PlainForm, inputs: Inputs, out: Tensor, subject: Subject) -> bool:
    try:
        right = form.output(inputs)
    except RuntimeError:  # the widths do not match
        return False
    if right is None or right.shape != out.shape:
        return False
    return difference(out, right) < SAME.get(subject.dtype, 1e-4)


def _projected(x: Tensor, layer: Layer) -> Tensor:
    weight, bias = layer
    y = x.to(torch.float64) @ weight
    return y if bias is None else y + bias


def _layers(subject: Subject) -> Iterator[tuple[Layer, ...]]:
    """The projections by the names of the weights, stored as (in, out) or as (out, in)."""
    found: dict[str, list[tuple[str, Tensor]]] = {}
    for name, weight in subject.weights.items():
        found.setdefault(role_of(name) or name, []).append((name, weight.to(torch.float64)))
    if found.keys() - {"q", "k", "v", "qkv", "o"} or not (
        {"q", "k", "v"} <= found.keys() or "qkv" in found
    ):
        return
    for turned in (False, True):
        joined = {role: _joined(subject, weights, turned) for role, weights in found.items()}
        layers = {role: layer for role, layer in joined.items() if layer is not None}
        if layers.keys() < joined.keys():
            continue  # other layers have such a name
        if "qkv" in layers:
            weight, bias = layers.pop("qkv")
            thirds = weight.chunk(3, 1)
            biases = (None,) * 3 if bias is None else bias.chunk(3)
            layers |= dict(zip("qkv", zip(thirds, biases, strict=True), strict=True))
        yield tuple(layers[role] for role in "qkvo" if role in layers)


def _joined(subject: Subject, weights: list[tuple[str, Tensor]], turned: bool) -> Layer | None:
    """One projection for all heads, from joint or per-head weights; None if that is impossible."""
    matrices, biases = [], []
    for name, weight in weights:
        kind = subject.built.modules.get(name.rpartition(".")[0], "")
        if weight.ndim == 1:
            biases.append(weight)
        elif weight.ndim == 2:
            matrices.append(weight.T if takes_last(kind) or turned else weight)
        else:  # (heads, in, head_dim)
            matrices.append(weight.movedim(-2, 0).flatten(1))
    if len({len(matrix) for matrix in matrices}) != 1:
        return None
    return torch.cat(matrices, 1), torch.cat(biases) if biases else None
