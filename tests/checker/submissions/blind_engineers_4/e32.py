# expect: correct
"""Functional attention: parameters are a plain dict, single-example functions are vmapped."""
from functools import partial
from typing import Dict, Optional

import torch
from torch import Tensor
from torch.func import vmap

Params = Dict[str, Tensor]


def init_params(key: torch.Generator, d_model: int, d_ctx: int, n_heads: int, d_head: int) -> Params:
    def normal(*shape, fan_in):
        return torch.randn(*shape, generator=key) * fan_in ** -0.5

    return {
        "wq": normal(n_heads, d_model, d_head, fan_in=d_model),
        "wk": normal(n_heads, d_ctx, d_head, fan_in=d_ctx),
        "wv": normal(n_heads, d_ctx, d_head, fan_in=d_ctx),
        "wo": normal(n_heads, d_head, d_model, fan_in=n_heads * d_head),
        "ln": torch.ones(d_model),
    }


def rms_norm(x: Tensor, g: Tensor, eps: float = 1e-6) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * g


def one_head(wq: Tensor, wk: Tensor, wv: Tensor, wo: Tensor, x: Tensor, ctx: Tensor, bias: Tensor) -> Tensor:
    """x (T, D), ctx (S, C), bias (T, S) -> this head's share of the output, (T, D)."""
    q, k, v = x @ wq, ctx @ wk, ctx @ wv
    logits = q @ k.T / wq.shape[-1] ** 0.5 + bias
    z = logits - torch.logsumexp(logits, dim=-1, keepdim=True)
    return (z.exp() @ v) @ wo


def attend_example(params: Params, x: Tensor, ctx: Tensor, bias: Tensor) -> Tensor:
    heads = vmap(one_head, in_dims=(0, 0, 0, 0, None, None, None))
    # summing the per-head projections is concatenation followed by one big projection
    return heads(params["wq"], params["wk"], params["wv"], params["wo"], x, ctx, bias).sum(0)


def make_bias(t: int, s: int, key_len: Optional[Tensor], causal: bool, batch: int) -> Tensor:
    """(B, T, S) additive. With causal and s > t the queries are the last t positions."""
    bias = torch.zeros(batch, t, s)
    if causal:
        rows = torch.arange(s - t, s)[:, None]
        bias = bias.masked_fill(torch.arange(s)[None, :] > rows, float("-inf"))
    if key_len is not None:
        bias = bias.masked_fill(torch.arange(s)[None, None, :] >= key_len[:, None, None], float("-inf"))
    return bias


def attention(params: Params, x: Tensor, ctx: Optional[Tensor] = None, *,
              key_len: Optional[Tensor] = None, causal: bool = False) -> Tensor:
    h = rms_norm(x, params["ln"])
    ctx = h if ctx is None else ctx
    bias = make_bias(h.shape[1], ctx.shape[1], key_len, causal, h.shape[0]).to(x.device, x.dtype)
    return x + vmap(partial(attend_example, params))(h, ctx, bias)


if __name__ == "__main__":
    g = torch.Generator().manual_seed(0)
    p = init_params(g, 32, 32, 4, 8)
    x = torch.randn(2, 5, 32, generator=g)
    print(attention(p, x, causal=True).shape, attention(p, x, key_len=torch.tensor([3, 5])).shape)
