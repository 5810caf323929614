# expect: correct
"""Paged key/value storage with block tables, and the attention layer that reads it."""
from __future__ import annotations

import torch
from torch import Tensor, nn


class BlockPool:
    """Physical pages of ``page`` slots each, shared by all running sequences."""

    def __init__(self, n_pages: int, page: int, kv_heads: int, head_dim: int):
        self.page = page
        self.k = torch.zeros(n_pages, page, kv_heads, head_dim)
        self.v = torch.zeros(n_pages, page, kv_heads, head_dim)
        # hand out pages in a scattered order: nothing may rely on them being adjacent
        self.free = sorted(range(n_pages), key=lambda i: (i * 7919) % n_pages)

    def take(self) -> int:
        if not self.free:
            raise RuntimeError("out of kv pages")
        return self.free.pop()


class Sequence:
    def __init__(self, pool: BlockPool):
        self.pool = pool
        self.table: list[int] = []
        self.length = 0

    def write(self, k: Tensor, v: Tensor) -> None:
        """k, v: (n, kv_heads, head_dim), appended token by token."""
        for i in range(k.shape[0]):
            slot = self.length % self.pool.page
            if slot == 0:
                self.table.append(self.pool.take())
            self.pool.k[self.table[-1], slot] = k[i]
            self.pool.v[self.table[-1], slot] = v[i]
            self.length += 1

    def read(self) -> tuple[Tensor, Tensor]:
        idx = torch.tensor(self.table)
        k = self.pool.k[idx].flatten(0, 1)[: self.length]
        v = self.pool.v[idx].flatten(0, 1)[: self.length]
        return k, v

    def release(self) -> None:
        self.pool.free.extend(self.table)
        self.table, self.length = [], 0


def rope_(x: Tensor, pos: Tensor, base: float = 10000.0) -> Tensor:
    d = x.shape[-1] // 2
    ang = pos[:, None, None] * base ** (-torch.arange(d) / d)
    a, b = x[..., :d], x[..., d:]
    return torch.cat((a * ang.cos() - b * ang.sin(), a * ang.sin() + b * ang.cos()), dim=-1)


class PagedAttention(nn.Module):
    """Tokens of several sequences arrive packed in one (n_tokens, dim) tensor."""

    def __init__(self, dim: int = 64, heads: int = 8, kv_heads: int = 2):
        super().__init__()
        self.heads, self.kv_heads, self.hd = heads, kv_heads, dim // heads
        self.wq = nn.Linear(dim, heads * self.hd, bias=False)
        self.wkv = nn.Linear(dim, 2 * kv_heads * self.hd, bias=False)
        self.wo = nn.Linear(heads * self.hd, dim, bias=False)

    @torch.no_grad()
    def forward(self, x: Tensor, seqs: list[Sequence], lens: list[int]) -> Tensor:
        """lens[i] new tokens belong to seqs[i]; prompts and single decode steps may be mixed."""
        pos = torch.cat([torch.arange(s.length, s.length + n) for s, n in zip(seqs, lens)]).float()
        q = rope_(self.wq(x).view(-1, self.heads, self.hd), pos)
        k, v = self.wkv(x).view(-1, 2, self.kv_heads, self.hd).unbind(1)
        k = rope_(k, pos)

        outs = []
        for seq, qi, ki, vi in zip(seqs, q.split(lens), k.split(lens), v.split(lens)):
            seq.write(ki, vi)
            keys, vals = seq.read()
            n, total = qi.shape[0], seq.length
            qg = qi.view(n, self.kv_heads, -1, self.hd)
            s = torch.einsum("nkgd,tkd->kgnt", qg, keys) * self.hd ** -0.5
            ahead = torch.arange(total)[None, :] > torch.arange(total - n, total)[:, None]
            p = s.masked_fill(ahead, float("-inf")).softmax(-1)
            outs.append(torch.einsum("kgnt,tkd->nkgd", p, vals).reshape(n, -1))
        return self.wo(torch.cat(outs))


if __name__ == "__main__":
    torch.manual_seed(0)
    layer, pool = PagedAttention(), BlockPool(16, 4, 2, 8)
    a, b = Sequence(pool), Sequence(pool)
    layer(torch.randn(9, 64), [a, b], [6, 3])
    layer(torch.randn(2, 64), [a, b], [1, 1])
    print(a.table, a.length, b.table, b.length)
