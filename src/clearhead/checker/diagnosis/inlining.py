"""Fused calls written out in plain steps, so that a reader of a program sees only plain steps.

`scaled_dot_product_attention`, `multi_head_attention_forward` and `baddbmm` have a known meaning.
Each is run here in plain torch under a recorder, and those calls take its place in the program.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from clearhead.checker.diagnosis.program import NotRunnable, Values, registers_in, revived
from clearhead.checker.sandbox.answers import Call, Recording, read_call
from clearhead.checker.sandbox.pass_recorder import Recorder


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
        weights = weights.nan_to_num(0.0)  # a row that sees nothing gives zeros
    return weights @ value


def plain_multi_head(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """What `multi_head_attention_forward` computes on (tokens, batch, width)."""
    if bias_k is not None or bias_v is not None or add_zero_attn or static_k is not None:
        raise NotRunnable("nn.MultiheadAttention with extra keys")
    single = query.ndim == 2
    if single:
        query, key, value = query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
    if use_separate_proj_weight:
        layers = [q_proj_weight, k_proj_weight, v_proj_weight]
    else:
        assert in_proj_weight is not None
        layers = list(in_proj_weight.chunk(3))
    biases = [None] * 3 if in_proj_bias is None else list(in_proj_bias.chunk(3))

    def split(x: Tensor, weight: Any, bias: Any) -> Tensor:
        y = torch.nn.functional.linear(x, weight, bias)
        return y.reshape(*y.shape[:2], num_heads, -1).permute(1, 2, 0, 3)

    q, k, v = (
        split(x, w, b) for x, w, b in zip((query, key, value), layers, biases, strict=True)
    )  # (batch, heads, tokens, head_dim)
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if attn_mask is not None:
        if attn_mask.ndim == 3:
            attn_mask = attn_mask.reshape(q.shape[0], -1, *attn_mask.shape[1:])
        if attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(attn_mask, -torch.inf)
        else:
            scores = scores + attn_mask
    if key_padding_mask is not None:
        padding = key_padding_mask.reshape(q.shape[0], 1, 1, -1)
        if padding.dtype == torch.bool:
            scores = scores.masked_fill(padding, -torch.inf)
        else:
            scores = scores + padding
    weights = scores.softmax(-1)
    merged = (weights @ v).permute(2, 0, 1, 3).flatten(2)
    out = torch.nn.functional.linear(merged, out_proj_weight, out_proj_bias)
    if single:
        out = out.squeeze(1)
    if not need_weights:
        return out, None
    return out, weights.mean(1) if average_attn_weights else weights


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
    """The same recording, with each fused call written out.

    Args:
        recording: What was recorded.
        values: Every register of a run of it.
    """
    if not any(call.name in PLAIN for call in recording.calls):
        return recording
    calls: list[Call] = []
    leaves, constants = list(recording.leaves), dict(recording.constants)
    highest = max(values, default=0) + 1
    for call in recording.calls:
        if call.name not in PLAIN:
            calls.append(call)
            continue
        sources = [n for v in (*call.args, *call.kwargs.values()) for n in registers_in(v)]
        # A fresh view of each: one tensor may stand in two registers.
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
    return replace(recording, calls=tuple(calls), leaves=tuple(leaves), constants=constants)


def _renumbered(value: Any, number: dict[int, int]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "register":
        return {kind: number[inner]}
    if isinstance(inner, list):
        return {kind: [_renumbered(item, number) for item in inner]}
    return value
