# expect: correct
"""Small decoder-only LM with grouped-query attention and a preallocated cache."""
import math
from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class LMConfig:
    vocab_size: int = 97
    dim: int = 64
    n_layers: int = 2
    n_heads: int = 8
    n_kv_heads: int = 2
    ffn_dim: int = 128
    rope_theta: float = 10_000.0
    max_seq_len: int = 64
    norm_eps: float = 1e-6

    @property
    def head_dim(self) -> int:
        return self.dim // self.n_heads


class StaticKVCache:
    """Keys and values live in one big buffer, written at absolute positions."""

    def __init__(self, cfg: LMConfig, batch: int, dtype=torch.float32, device="cpu"):
        shape = (cfg.n_layers, batch, cfg.max_seq_len, cfg.n_kv_heads, cfg.head_dim)
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)

    def update(self, layer: int, pos: Tensor, k: Tensor, v: Tensor):
        self.k[layer].index_copy_(1, pos, k)
        self.v[layer].index_copy_(1, pos, v)
        return self.k[layer], self.v[layer]


def precompute_freqs(head_dim: int, max_len: int, theta: float) -> Tensor:
    inv = 1.0 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.outer(torch.arange(max_len).float(), inv)
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x: Tensor, freqs: Tensor) -> Tensor:
    # x: (b, t, h, d); pairs are adjacent channels
    xc = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    out = torch.view_as_real(xc * freqs[None, :, None, :]).flatten(-2)
    return out.type_as(x)


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class GQAttention(nn.Module):
    def __init__(self, cfg: LMConfig, layer: int):
        super().__init__()
        self.layer = layer
        self.h, self.kvh, self.d = cfg.n_heads, cfg.n_kv_heads, cfg.head_dim
        self.wq = nn.Linear(cfg.dim, self.h * self.d, bias=False)
        self.wk = nn.Linear(cfg.dim, self.kvh * self.d, bias=False)
        self.wv = nn.Linear(cfg.dim, self.kvh * self.d, bias=False)
        self.wo = nn.Linear(self.h * self.d, cfg.dim, bias=False)

    def forward(self, x: Tensor, freqs: Tensor, pos: Tensor,
                cache: Optional[StaticKVCache] = None) -> Tensor:
        b, t, _ = x.shape
        q = rotate(self.wq(x).view(b, t, self.h, self.d), freqs)
        k = rotate(self.wk(x).view(b, t, self.kvh, self.d), freqs)
        v = self.wv(x).view(b, t, self.kvh, self.d)

        key_pos = pos
        if cache is not None:
            k, v = cache.update(self.layer, pos, k, v)
            # slots that have not been written yet lie in the future of every query
            key_pos = torch.arange(k.size(1), device=x.device)

        # (b, kvh, group, t, d) x (b, kvh, 1, s, d)
        q = q.view(b, t, self.kvh, self.h // self.kvh, self.d).permute(0, 2, 3, 1, 4)
        k = k.permute(0, 2, 1, 3).unsqueeze(2)
        v = v.permute(0, 2, 1, 3).unsqueeze(2)
        att = (q @ k.transpose(-1, -2)) / math.sqrt(self.d)
        att = att.masked_fill(key_pos[None, :] > pos[:, None], float("-inf"))
        att = F.softmax(att.float(), dim=-1).type_as(v)
        y = (att @ v).permute(0, 3, 1, 2, 4).reshape(b, t, self.h * self.d)
        return self.wo(y)


class SwiGLU(nn.Module):
    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, cfg: LMConfig, layer: int):
        super().__init__()
        self.attn = GQAttention(cfg, layer)
        self.mlp = SwiGLU(cfg.dim, cfg.ffn_dim)
        self.n1 = RMSNorm(cfg.dim, cfg.norm_eps)
        self.n2 = RMSNorm(cfg.dim, cfg.norm_eps)

    def forward(self, x, freqs, pos, cache=None):
        x = x + self.attn(self.n1(x), freqs, pos, cache)
        return x + self.mlp(self.n2(x))


class TinyLM(nn.Module):
    def __init__(self, cfg: LMConfig):
        super().__init__()
        self.cfg = cfg
        self.tok = nn.Embedding(cfg.vocab_size, cfg.dim)
        self.blocks = nn.ModuleList(Block(cfg, i) for i in range(cfg.n_layers))
        self.norm = RMSNorm(cfg.dim, cfg.norm_eps)
        self.head = nn.Linear(cfg.dim, cfg.vocab_size, bias=False)
        self.register_buffer(
            "freqs", precompute_freqs(cfg.head_dim, cfg.max_seq_len, cfg.rope_theta), persistent=False)

    def forward(self, ids: Tensor, pos: Optional[Tensor] = None, cache=None) -> Tensor:
        if pos is None:
            pos = torch.arange(ids.size(1), device=ids.device)
        x = self.tok(ids)
        freqs = self.freqs[pos]
        for blk in self.blocks:
            x = blk(x, freqs, pos, cache)
        return self.head(self.norm(x))


@torch.no_grad()
def greedy(model: TinyLM, prompt: Tensor, n_new: int) -> Tensor:
    cache = StaticKVCache(model.cfg, prompt.size(0))
    pos = torch.arange(prompt.size(1))
    logits = model(prompt, pos, cache)
    out = [prompt]
    for _ in range(n_new):
        nxt = logits[:, -1:].argmax(-1)
        out.append(nxt)
        pos = pos[-1:] + 1
        logits = model(nxt, pos, cache)
    return torch.cat(out, dim=1)


if __name__ == "__main__":
    torch.manual_seed(0)
    lm = TinyLM(LMConfig()).eval()
    print(greedy(lm, torch.randint(0, 97, (2, 5)), 8))
