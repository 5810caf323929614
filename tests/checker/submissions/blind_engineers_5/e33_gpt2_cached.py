# expect: cache-differs
# why: positions start at 0 in every call, so with a cache the new tokens get the position embeddings of the first ones; shows at line 78: `position_ids = torch.arange(0, L, device=inputs.device)`
import math
from dataclasses import dataclass
from typing import List, Optional, Tuple

import torch
import torch.nn as nn


@dataclass
class ModelArgs:
    n_ctx: int = 64
    n_embd: int = 32
    n_head: int = 4
    n_layer: int = 2
    vocab_size: int = 50
    layer_norm_epsilon: float = 1e-5


class Attention(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        assert args.n_embd % args.n_head == 0, "n_embd must be divisible by n_head"
        self.n_head = args.n_head
        self.head_dim = args.n_embd // args.n_head
        self.c_attn = nn.Linear(args.n_embd, 3 * args.n_embd)
        self.c_proj = nn.Linear(args.n_embd, args.n_embd)

    def forward(self, x, mask=None, cache: Optional[Tuple[torch.Tensor, torch.Tensor]] = None):
        B, L, D = x.shape
        q, k, v = self.c_attn(x).split(D, dim=-1)
        q = q.view(B, L, self.n_head, self.head_dim).transpose(1, 2)
        k = k.view(B, L, self.n_head, self.head_dim).transpose(1, 2)
        v = v.view(B, L, self.n_head, self.head_dim).transpose(1, 2)
        if cache is not None:
            k = torch.cat([cache[0], k], dim=2)
            v = torch.cat([cache[1], v], dim=2)
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)
        if mask is not None:
            scores = scores + mask
        out = scores.softmax(dim=-1) @ v
        return self.c_proj(out.transpose(1, 2).reshape(B, L, D)), (k, v)


class TransformerBlock(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.ln_1 = nn.LayerNorm(args.n_embd, eps=args.layer_norm_epsilon)
        self.attn = Attention(args)
        self.ln_2 = nn.LayerNorm(args.n_embd, eps=args.layer_norm_epsilon)
        self.mlp = nn.Sequential(nn.Linear(args.n_embd, 4 * args.n_embd), nn.GELU(approximate="tanh"),
                                 nn.Linear(4 * args.n_embd, args.n_embd))

    def forward(self, x, mask=None, cache=None):
        r, cache = self.attn(self.ln_1(x), mask, cache)
        h = x + r
        return h + self.mlp(self.ln_2(h)), cache


class GPT2(nn.Module):
    """Decoder with absolute positions. Pass the returned cache back in to continue a sequence."""

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.args = args
        self.wte = nn.Embedding(args.vocab_size, args.n_embd)
        self.wpe = nn.Embedding(args.n_ctx, args.n_embd)
        self.h = nn.ModuleList([TransformerBlock(args) for _ in range(args.n_layer)])
        self.ln_f = nn.LayerNorm(args.n_embd, eps=args.layer_norm_epsilon)

    def forward(self, inputs, cache: Optional[List] = None):
        _, L = inputs.shape
        past = 0 if cache is None else cache[0][0].shape[2]
        if cache is None:
            cache = [None] * len(self.h)

        position_ids = torch.arange(0, L, device=inputs.device)
        hidden = self.wte(inputs) + self.wpe(position_ids)

        mask = None
        if L > 1:
            mask = torch.full((L, past + L), float("-inf"), device=inputs.device).triu(past + 1)
        for i, block in enumerate(self.h):
            hidden, cache[i] = block(hidden, mask, cache[i])
        return self.ln_f(hidden) @ self.wte.weight.T, cache


@torch.no_grad()
def generate(model: GPT2, prompt: torch.Tensor, max_new_tokens: int) -> torch.Tensor:
    logits, cache = model(prompt)
    out = prompt
    for _ in range(max_new_tokens):
        token = logits[:, -1:].argmax(dim=-1)
        out = torch.cat([out, token], dim=1)
        logits, cache = model(token, cache)
    return out
