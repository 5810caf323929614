# expect: correct
from dataclasses import dataclass, field
from math import sqrt

import torch
from torch import nn


@dataclass(frozen=True)
class ModelArgs:
    vocab: int = 50
    ctx: int = 24
    width: int = 36
    heads: int = 3
    layers: int = 2
    drop: float = 0.0
    device: str = field(default="cpu")


class Attn(nn.Module):
    def __init__(self, a: ModelArgs):
        super().__init__()
        self.h = a.heads
        self.qkv = nn.ModuleDict({n: nn.Linear(a.width, a.width, bias=False) for n in "qkv"})
        self.merge = nn.Linear(a.width, a.width)
        self.drop = nn.Dropout(a.drop)
        # additive mask, zero where allowed
        self.register_buffer("wall", torch.full((a.ctx, a.ctx), -torch.inf).triu(1))

    def forward(self, x):
        n = x.size(1)
        q, k, v = (self.qkv[c](x).unflatten(2, (self.h, -1)).transpose(1, 2) for c in "qkv")
        w = (q @ k.mT).div(sqrt(q.size(-1))).add(self.wall[:n, :n]).softmax(-1)
        return self.merge((self.drop(w) @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, a: ModelArgs):
        super().__init__()
        self.pre_a, self.pre_f = nn.LayerNorm(a.width), nn.LayerNorm(a.width)
        self.attn = Attn(a)
        self.ffn = nn.Sequential(
            nn.Linear(a.width, 4 * a.width), nn.GELU(), nn.Linear(4 * a.width, a.width))

    def forward(self, x):
        x = x + self.attn(self.pre_a(x))
        return x + self.ffn(self.pre_f(x))


class TinyGPT(nn.Module):
    def __init__(self, a: ModelArgs):
        super().__init__()
        self.tok = nn.Embedding(a.vocab, a.width)
        self.pos = nn.Embedding(a.ctx, a.width)
        self.body = nn.Sequential(*[Layer(a) for _ in range(a.layers)], nn.LayerNorm(a.width))
        self.head = nn.Linear(a.width, a.vocab, bias=False)

    def forward(self, ids):
        p = torch.arange(ids.size(1), device=ids.device)
        return self.head(self.body(self.tok(ids) + self.pos(p)))


if __name__ == "__main__":
    gpt = TinyGPT(ModelArgs())
    print(gpt(torch.randint(0, 50, (2, 15))).shape)
