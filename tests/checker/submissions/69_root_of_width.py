# expect: scale-by-d-out
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class AttnArgs:
    d_model: int = 64
    n_heads: int = 8
    dropout: float = 0.0
    max_len: int = 128


class Attn(nn.Module):
    def __init__(self, args: AttnArgs):
        super().__init__()
        self.args = args
        self.wq = nn.Linear(args.d_model, args.d_model, bias=False)
        self.wk = nn.Linear(args.d_model, args.d_model, bias=False)
        self.wv = nn.Linear(args.d_model, args.d_model, bias=False)
        self.wo = nn.Linear(args.d_model, args.d_model, bias=False)
        self.dropout = nn.Dropout(args.dropout)
        future = torch.ones(args.max_len, args.max_len, dtype=torch.bool).triu(1)
        self.register_buffer("future", future, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bs, sl, dim = x.shape
        nh = self.args.n_heads
        xq = self.wq(x).unflatten(-1, (nh, -1))
        xk = self.wk(x).unflatten(-1, (nh, -1))
        xv = self.wv(x).unflatten(-1, (nh, -1))

        scores = torch.einsum("bqhd,bkhd->bhqk", xq, xk) / dim ** 0.5
        scores = scores.masked_fill(self.future[:sl, :sl], float("-inf"))
        probs = self.dropout(scores.softmax(-1))

        out = torch.einsum("bhqk,bkhd->bqhd", probs, xv)
        return self.wo(out.flatten(2))
