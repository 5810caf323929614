# expect: correct
"""Self-attention in a functional style.

The parameters live in a plain dict, attention is written for ONE sequence and
ONE head, and vmap lifts it over heads and batch.
"""
import torch
from torch import Tensor
from torch.func import vmap


def init_params(key: int, d_model: int, heads: int, d_head: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(key)

    def normal(*shape: int) -> Tensor:
        w = torch.randn(*shape, generator=g) / shape[-2] ** 0.5
        return w.requires_grad_()

    return {
        "q": normal(heads, d_model, d_head),
        "k": normal(heads, d_model, d_head),
        "v": normal(heads, d_model, d_head),
        "o": normal(heads * d_head, d_model),
    }


def single_head(wq: Tensor, wk: Tensor, wv: Tensor, x: Tensor) -> Tensor:
    q, k, v = x @ wq, x @ wk, x @ wv
    logits = (q * q.shape[-1] ** -0.5) @ k.T
    n = x.shape[0]
    idx = torch.arange(n)
    logits = torch.where(idx[:, None] >= idx[None, :], logits, -torch.inf)
    return torch.softmax(logits, dim=-1) @ v


def sequence_attention(params: dict[str, Tensor], x: Tensor) -> Tensor:
    per_head = vmap(single_head, in_dims=(0, 0, 0, None), out_dims=1)
    z = per_head(params["q"], params["k"], params["v"], x)   # (n, heads, d_head)
    return z.flatten(1) @ params["o"]


def self_attention(params: dict[str, Tensor], x: Tensor) -> Tensor:
    return vmap(sequence_attention, in_dims=(None, 0))(params, x)


if __name__ == "__main__":
    p = init_params(0, 16, 4, 5)
    xs = torch.randn(3, 7, 16)
    out = self_attention(p, xs)
    out.square().mean().backward()
    print(out.shape, {name: w.grad.norm().item() for name, w in p.items()})
