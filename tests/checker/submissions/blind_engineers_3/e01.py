# expect: correct
"""Causal self-attention with ALiBi (Press et al., "Train Short, Test Long")."""
import math
from types import SimpleNamespace

import torch
from torch import nn


def alibi_slopes(n_heads):
    def power_of_two(n):
        start = 2.0 ** (-(2.0 ** -(math.log2(n) - 3)))
        return [start ** (i + 1) for i in range(n)]

    if math.log2(n_heads).is_integer():
        return power_of_two(n_heads)
    closest = 2 ** math.floor(math.log2(n_heads))
    extra = alibi_slopes(2 * closest)[0::2][: n_heads - closest]
    return power_of_two(closest) + extra


def build_alibi_bias(n_heads, max_seq_len):
    # One row per head is enough: softmax does not care about a per-row constant, so
    # slope * (j - (S-1)) gives the same weights as slope * (j - i).
    positions = torch.arange(1 - max_seq_len, 1, dtype=torch.float32)
    slopes = torch.tensor(alibi_slopes(n_heads))
    return (slopes[:, None] * positions[None, :]).view(1, n_heads, 1, max_seq_len)


class MPTAttention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        assert cfg.d_model % cfg.n_heads == 0
        self.n_heads = cfg.n_heads
        self.d_head = cfg.d_model // cfg.n_heads
        self.softmax_scale = cfg.softmax_scale or 1 / math.sqrt(self.d_head)
        self.clip_qkv = cfg.clip_qkv
        self.Wqkv = nn.Linear(cfg.d_model, 3 * cfg.d_model, bias=not cfg.no_bias)
        self.out_proj = nn.Linear(cfg.d_model, cfg.d_model, bias=not cfg.no_bias)
        self.attn_pdrop = cfg.attn_pdrop
        self.register_buffer("alibi", build_alibi_bias(cfg.n_heads, cfg.max_seq_len), persistent=False)

    def forward(self, hidden, past_key_value=None):
        b, s, d = hidden.shape
        qkv = self.Wqkv(hidden)
        if self.clip_qkv:
            qkv = qkv.clamp(min=-self.clip_qkv, max=self.clip_qkv)
        query, key, value = qkv.chunk(3, dim=2)
        query = query.view(b, s, self.n_heads, self.d_head).transpose(1, 2)
        key = key.view(b, s, self.n_heads, self.d_head).transpose(1, 2)
        value = value.view(b, s, self.n_heads, self.d_head).transpose(1, 2)

        if past_key_value is not None:
            key = torch.cat([past_key_value[0], key], dim=2)
            value = torch.cat([past_key_value[1], value], dim=2)
        present = (key, value)

        s_k = key.size(2)
        scores = query @ key.transpose(-1, -2) * self.softmax_scale
        scores = scores + self.alibi[..., -s_k:]

        visible = torch.ones(s, s_k, dtype=torch.bool, device=hidden.device).tril(s_k - s)
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        probs = torch.softmax(scores.float(), dim=-1).to(value.dtype)
        probs = nn.functional.dropout(probs, p=self.attn_pdrop, training=self.training)

        out = (probs @ value).transpose(1, 2).reshape(b, s, d)
        return self.out_proj(out), present


if __name__ == "__main__":
    cfg = SimpleNamespace(d_model=96, n_heads=6, max_seq_len=64, softmax_scale=None,
                          clip_qkv=6.0, no_bias=True, attn_pdrop=0.0)
    attn = MPTAttention(cfg).eval()
    x = torch.randn(2, 10, 96)
    full, _ = attn(x)
    first, cache = attn(x[:, :7])
    rest, _ = attn(x[:, 7:], past_key_value=cache)
    print(torch.allclose(full, torch.cat([first, rest], 1), atol=1e-5))
