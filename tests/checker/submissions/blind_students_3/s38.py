# expect: correct
"""Multi-query attention, functional style (no nn.Module), params in a dict."""
import torch
from torch import Tensor
from typing import Dict

Params = Dict[str, Tensor]


def init_mqa(d_model: int, n_heads: int, d_head: int, seed: int = 0) -> Params:
    g = torch.Generator().manual_seed(seed)
    def r(*s, fan):
        return (torch.randn(*s, generator=g) / fan ** 0.5).requires_grad_()
    return {
        "P_q": r(n_heads, d_model, d_head, fan=d_model),
        "P_k": r(d_model, d_head, fan=d_model),          # only one key head!
        "P_v": r(d_model, d_head, fan=d_model),
        "P_o": r(n_heads, d_head, d_model, fan=n_heads * d_head),
    }


def mqa(params: Params, X: Tensor, M: Tensor, mask: Tensor = None) -> Tensor:
    """
    X: [b, n, d]    query side
    M: [b, m, d]    memory side
    mask: additive, broadcastable to [b, h, n, m]
    """
    Q = torch.einsum("bnd,hdk->bhnk", X, params["P_q"])
    K = torch.einsum("bmd,dk->bmk", M, params["P_k"])
    V = torch.einsum("bmd,dv->bmv", M, params["P_v"])
    logits = torch.einsum("bhnk,bmk->bhnm", Q, K) * K.shape[-1] ** -0.5
    if mask is not None:
        logits = logits + mask
    logits = logits - logits.amax(dim=-1, keepdim=True)
    e = logits.exp()
    weights = e / e.sum(dim=-1, keepdim=True)
    O = torch.einsum("bhnm,bmv->bhnv", weights, V)
    return torch.einsum("bhnv,hvd->bnd", O, params["P_o"])


def causal_bias(n: int) -> Tensor:
    return torch.zeros(n, n).masked_fill(torch.ones(n, n).triu(1) == 1, -1e30)


def mqa_step(params: Params, x: Tensor, K: Tensor, V: Tensor):
    """one decoding step. x: [b, d], K: [b, m, k], V: [b, m, v] without the new token"""
    q = torch.einsum("bd,hdk->bhk", x, params["P_q"])
    K = torch.cat([K, (x @ params["P_k"]).unsqueeze(1)], dim=1)
    V = torch.cat([V, (x @ params["P_v"]).unsqueeze(1)], dim=1)
    w = (torch.einsum("bhk,bmk->bhm", q, K) / K.shape[-1] ** 0.5).softmax(-1)
    o = torch.einsum("bhm,bmv->bhv", w, V)
    return torch.einsum("bhv,hvd->bd", o, params["P_o"]), K, V


if __name__ == "__main__":
    P = init_mqa(24, 4, 8)
    x = torch.randn(2, 5, 24)
    full = mqa(P, x, x, causal_bias(5))
    K = torch.zeros(2, 0, 8)
    V = torch.zeros(2, 0, 8)
    steps = []
    for t in range(5):
        y, K, V = mqa_step(P, x[:, t], K, V)
        steps.append(y)
    print("same result:", torch.allclose(full, torch.stack(steps, 1), atol=1e-5))
