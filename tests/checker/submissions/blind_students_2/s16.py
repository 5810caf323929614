# expect: correct
# what: Llama style: GQA, rotate-half RoPE, preallocated KV cache with start_pos
"""
Llama-style attention: RoPE + grouped queries + KV cache.
Final project, part B.
"""
import math
from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class ModelArgs:
    dim: int = 64
    n_heads: int = 8
    n_kv_heads: Optional[int] = 2
    max_batch_size: int = 4
    max_seq_len: int = 32
    rope_theta: float = 10000.0


def build_rope(args: ModelArgs):
    hd = args.dim // args.n_heads
    inv = 1.0 / args.rope_theta ** (torch.arange(0, hd, 2).float() / hd)
    ang = torch.arange(args.max_seq_len).float()[:, None] * inv[None, :]
    ang = torch.cat([ang, ang], dim=-1)
    return ang.cos(), ang.sin()


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def apply_rope(x, cos, sin):
    # x (B, T, H, D), cos/sin (T, D)
    cos = cos[None, :, None, :]
    sin = sin[None, :, None, :]
    return x * cos + rotate_half(x) * sin


def repeat_kv(x: torch.Tensor, n_rep: int) -> torch.Tensor:
    bs, slen, n_kv_heads, head_dim = x.shape
    if n_rep == 1:
        return x
    return (
        x[:, :, :, None, :]
        .expand(bs, slen, n_kv_heads, n_rep, head_dim)
        .reshape(bs, slen, n_kv_heads * n_rep, head_dim)
    )


class Attention(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.n_heads = args.n_heads
        self.n_kv = args.n_heads if args.n_kv_heads is None else args.n_kv_heads
        self.n_rep = self.n_heads // self.n_kv
        self.hd = args.dim // args.n_heads

        self.wq = nn.Linear(args.dim, self.n_heads * self.hd, bias=False)
        self.wk = nn.Linear(args.dim, self.n_kv * self.hd, bias=False)
        self.wv = nn.Linear(args.dim, self.n_kv * self.hd, bias=False)
        self.wo = nn.Linear(self.n_heads * self.hd, args.dim, bias=False)

        cos, sin = build_rope(args)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        shape = (args.max_batch_size, args.max_seq_len, self.n_kv, self.hd)
        self.register_buffer("cache_k", torch.zeros(shape), persistent=False)
        self.register_buffer("cache_v", torch.zeros(shape), persistent=False)

    def forward(self, x, start_pos: int = 0, use_cache: bool = False):
        B, T, _ = x.shape
        xq = self.wq(x).view(B, T, self.n_heads, self.hd)
        xk = self.wk(x).view(B, T, self.n_kv, self.hd)
        xv = self.wv(x).view(B, T, self.n_kv, self.hd)

        cos, sin = self.cos[start_pos:start_pos + T], self.sin[start_pos:start_pos + T]
        xq, xk = apply_rope(xq, cos, sin), apply_rope(xk, cos, sin)

        if use_cache:
            self.cache_k[:B, start_pos:start_pos + T] = xk.detach()
            self.cache_v[:B, start_pos:start_pos + T] = xv.detach()
            keys = self.cache_k[:B, :start_pos + T]
            values = self.cache_v[:B, :start_pos + T]
        else:
            assert start_pos == 0
            keys, values = xk, xv

        keys = repeat_kv(keys, self.n_rep)
        values = repeat_kv(values, self.n_rep)

        xq, keys, values = (t.transpose(1, 2) for t in (xq, keys, values))
        scores = torch.matmul(xq, keys.transpose(2, 3)) / math.sqrt(self.hd)
        if T > 1:
            m = torch.full((T, T), float("-inf"), device=x.device).triu(1)
            m = torch.hstack([torch.zeros((T, start_pos), device=x.device), m])
            scores = scores + m
        scores = F.softmax(scores.float(), dim=-1).type_as(xq)
        out = torch.matmul(scores, values)
        out = out.transpose(1, 2).contiguous().view(B, T, -1)
        return self.wo(out)


if __name__ == "__main__":
    args = ModelArgs()
    att = Attention(args).eval()
    x = torch.randn(2, 10, args.dim)
    with torch.no_grad():
        full = att(x)
        steps = [att(x[:, :6], 0, True)] + [att(x[:, i:i + 1], i, True) for i in range(6, 10)]
    print("max diff cache / no cache:", (full - torch.cat(steps, 1)).abs().max().item())
