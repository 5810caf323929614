# expect: kv-heads-in-other-order, window-off-by-one
# why: two: kv heads are tiled with repeat; the window test uses <= and sees one token more
"""Sliding-window grouped-query attention (dense prefill path used for training)."""
from dataclasses import dataclass, field
from typing import Optional

import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class WindowAttnArgs:
    dim: int = 128
    n_heads: int = 8
    n_kv_heads: int = 2
    head_dim: int = 16
    sliding_window: Optional[int] = 16
    rope_theta: float = 1e6
    norm_eps: float = field(default=1e-5)


def precompute_freqs_cis(dim: int, end: int, theta: float) -> torch.Tensor:
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: dim // 2].float() / dim))
    ang = torch.outer(torch.arange(end).float(), freqs)
    return torch.polar(torch.ones_like(ang), ang)


def apply_rotary_emb(xq, xk, freqs_cis):
    """xq, xk: (B, T, H, D), pairs are adjacent channels."""
    def rot(x):
        x_ = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(x_ * freqs_cis[None, :, None, :]).flatten(3).type_as(x)
    return rot(xq), rot(xk)


def repeat_kv(x: torch.Tensor, n_rep: int) -> torch.Tensor:
    """(B, H_kv, T, D) -> (B, H_kv * n_rep, T, D)"""
    if n_rep == 1:
        return x
    return x.repeat(1, n_rep, 1, 1)


class SlidingWindowAttention(nn.Module):
    """Causal attention over a window of the past.

    * a token sees itself and the ``sliding_window - 1`` tokens before it
      (``sliding_window=None``: the whole past);
    * query heads are grouped as in the released checkpoints: heads
      ``g * n_rep ... (g + 1) * n_rep - 1`` share key/value head ``g``;
    * ``doc_ids`` (B, T) int, optional: tokens of different packed documents do not see each other.
      Positions are not restarted, rotary embeddings are relative.
    """

    def __init__(self, args: WindowAttnArgs, max_len: int = 2048):
        super().__init__()
        self.args = args
        self.n_rep = args.n_heads // args.n_kv_heads
        self.wq = nn.Linear(args.dim, args.n_heads * args.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, args.n_kv_heads * args.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, args.n_kv_heads * args.head_dim, bias=False)
        self.wo = nn.Linear(args.n_heads * args.head_dim, args.dim, bias=False)
        self.register_buffer("freqs_cis", precompute_freqs_cis(args.head_dim, max_len, args.rope_theta),
                             persistent=False)

    def build_mask(self, t: int, doc_ids: Optional[torch.Tensor], device) -> torch.Tensor:
        i = torch.arange(t, device=device)[:, None]
        j = torch.arange(t, device=device)[None, :]
        mask = j <= i
        if self.args.sliding_window is not None:
            mask = mask & (i - j <= self.args.sliding_window)
        mask = mask[None, None]
        if doc_ids is not None:
            mask = mask & (doc_ids[:, None, :, None] == doc_ids[:, None, None, :])
        return mask

    def forward(self, x: torch.Tensor, doc_ids: Optional[torch.Tensor] = None) -> torch.Tensor:
        a = self.args
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, a.n_heads, a.head_dim)
        k = self.wk(x).view(b, t, a.n_kv_heads, a.head_dim)
        v = self.wv(x).view(b, t, a.n_kv_heads, a.head_dim)
        q, k = apply_rotary_emb(q, k, self.freqs_cis[:t])
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        k, v = repeat_kv(k, self.n_rep), repeat_kv(v, self.n_rep)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=self.build_mask(t, doc_ids, x.device))
        return self.wo(o.transpose(1, 2).reshape(b, t, -1))


class TransformerBlock(nn.Module):
    def __init__(self, args: WindowAttnArgs):
        super().__init__()
        self.attention_norm = nn.RMSNorm(args.dim, eps=args.norm_eps)
        self.attention = SlidingWindowAttention(args)
        self.ffn_norm = nn.RMSNorm(args.dim, eps=args.norm_eps)
        self.w1 = nn.Linear(args.dim, 3 * args.dim, bias=False)
        self.w2 = nn.Linear(3 * args.dim, args.dim, bias=False)
        self.w3 = nn.Linear(args.dim, 3 * args.dim, bias=False)

    def forward(self, x, doc_ids=None):
        x = x + self.attention(self.attention_norm(x), doc_ids)
        h = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))
