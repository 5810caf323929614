"""Expand fused calls into plain steps, so that the code that reads a program sees only those.

`scaled_dot_product_attention`, `multi_head_attention_forward` and `baddbmm` have known semantics.
Each is run here in plain PyTorch under a recorder, and the recorded calls replace it.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.checker.diagnosis.program import NotRunnable, Values, registers_in, revived
from clearhead.checker.sandbox.answers import Call, Recording, read_call
from clearhead.checker.sandbox.pass_recorder import Recorder

_MULTI_HEAD = inspect.signature(F.multi_head_attention_forward)


def plain_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """What `scaled_dot_product_attention` computes without dropout."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scores = query @ key.transpose(-2, -1)
    scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        else:
            scores = scores + attn_mask
    weights = scores.softmax(-1)
    if attn_mask is not None and bool(weights.isnan().any()):
        weights = weights.nan_to_num(0.0)  # a fully masked row gives zeros
    return weights @ value


def plain_multi_head(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    """What `multi_head_attention_forward` computes on (tokens, batch, width)."""
    bound = _MULTI_HEAD.bind(*args, **kwargs)
    bound.apply_defaults()
    given = SimpleNamespace(**bound.arguments)
    extra = (given.bias_k, given.bias_v, given.static_k)
    if any(one is not None for one in extra) or given.add_zero_attn or given.query.ndim != 3:
        raise NotRunnable("nn.MultiheadAttention with extra keys, or without a batch axis")
    if given.use_separate_proj_weight:
        layers = [given.q_proj_weight, given.k_proj_weight, given.v_proj_weight]
    else:
        layers = list(given.in_proj_weight.chunk(3))
    biases = [None] * 3 if given.in_proj_bias is None else list(given.in_proj_bias.chunk(3))

    def split(x: Tensor, weight: Any, bias: Any) -> Tensor:
        y = F.linear(x, weight, bias)
        return y.reshape(*y.shape[:2], given.num_heads, -1).permute(1, 2, 0, 3)

    inputs = (given.query, given.key, given.value)
    q, k, v = (
        split(x, w, b) for x, w, b in zip(inputs, layers, biases, strict=True)
    )  # (batch, heads, tokens, head_dim)
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    mask, padding = given.attn_mask, given.key_padding_mask
    if mask is not None and mask.ndim == 3:
        mask = mask.reshape(q.shape[0], -1, *mask.shape[1:])
    if padding is not None:
        padding = padding.reshape(q.shape[0], 1, 1, -1)
    for hidden in (mask, padding):
        if hidden is not None and hidden.dtype == torch.bool:
            scores = scores.masked_fill(hidden, -torch.inf)
        elif hidden is not None:
            scores = scores + hidden
    weights = scores.softmax(-1)
    merged = (weights @ v).permute(2, 0, 1, 3).flatten(2)
    out = F.linear(merged, given.out_proj_weight, given.out_proj_bias)
    if not given.need_weights:
        return out, None
    return out, weights.mean(1) if given.average_attn_weights else weights


def plain_baddbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """What `baddbmm` computes."""
    product = torch.bmm(batch1, batch2)
    if alpha != 1:
        product = product * alpha
    return product if beta == 0 else product + (input if beta == 1 else input * beta)


PLAIN: dict[str, Callable[..., Any]] = {
    "scaled_dot_product_attention": plain_sdpa,
    "multi_head_attention_forward": plain_multi_head,
    "baddbmm": plain_baddbmm,
}


def inlined(recording: Recording, values: Values) -> Recording:
    """The same recording, with each fused call expanded.

    Args:
        recording: The recording.
        values: The values of every register, for one run of it.
    """
    if not any(call.name in PLAIN for call in recording.calls):
        return recording
    calls: list[Call] = []
    highest = max(values, default=0) + 1
    for call in recording.calls:
        if call.name not in PLAIN:
            calls.append(call)
            continue
        sources = [n for v in (*call.args, *call.kwargs.values()) for n in registers_in(v)]
        # A fresh view of each, because two registers may hold the same tensor.
        local = {n: values[n].view_as(values[n]) for n in dict.fromkeys(sources)}
        named = {("register", str(n)): tensor for n, tensor in local.items()}
        recorder = Recorder(named, lambda _: False)
        arguments = [revived(value, local) for value in call.args]
        keywords = {name: revived(value, local) for name, value in call.kwargs.items()}
        with torch.no_grad(), recorder:
            got = PLAIN[call.name](*arguments, **keywords)
        results = list(got) if isinstance(got, tuple) else [got]
        own = {leaf["register"]: leaf for leaf in recorder.leaves}
        number: dict[int, int] = {}
        for register, leaf in own.items():
            if leaf["kind"] == "register":
                number[register] = int(leaf["name"])
        for place, result in zip(call.out, results, strict=True):
            if isinstance(result, Tensor) and place >= 0:
                number[recorder.register(result)] = place
        for written in recorder.calls:
            one = read_call(written | {"line": call.line})
            for out in one.out:
                if out >= 0 and out not in number:
                    number[out] = highest = highest + 1
            calls.append(
                replace(
                    one,
                    args=tuple(_renumbered(v, number) for v in one.args),
                    kwargs={n: _renumbered(v, number) for n, v in one.kwargs.items()},
                    out=tuple(number.get(out, -1) for out in one.out),
                )
            )
    return replace(recording, calls=tuple(calls))


def _renumbered(value: Any, number: dict[int, int]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "register":
        return {kind: number[inner]}
    if isinstance(inner, list):
        return {kind: [_renumbered(item, number) for item in inner]}
    return value
