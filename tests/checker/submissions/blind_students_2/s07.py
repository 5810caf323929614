# expect: correct
# what: complex-number interleaved RoPE, causal additive mask, F.dropout with training flag
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

# Assignment 5: rotary embeddings, complex number version


def precompute_freqs_cis(dim, end, theta=10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)].float() / dim))
    t = torch.arange(end).float()
    freqs = torch.outer(t, freqs)
    return torch.polar(torch.ones_like(freqs), freqs)  # (end, dim/2) complex64


def apply_rotary_emb(x, freqs_cis):
    # x: (B, T, H, D)
    x_ = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    f = freqs_cis.view(1, x_.shape[1], 1, x_.shape[-1])
    return torch.view_as_real(x_ * f).flatten(3).type_as(x)


class RotaryAttention(nn.Module):
    def __init__(self, dim, n_heads, max_len=128, dropout=0.0):
        super().__init__()
        assert dim % n_heads == 0 and (dim // n_heads) % 2 == 0
        self.n_heads = n_heads
        self.hd = dim // n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.dropout = dropout
        self.register_buffer('freqs_cis', precompute_freqs_cis(self.hd, max_len), persistent=False)

    def forward(self, x):
        B, T, _ = x.shape
        q = self.wq(x).view(B, T, self.n_heads, self.hd)
        k = self.wk(x).view(B, T, self.n_heads, self.hd)
        v = self.wv(x).view(B, T, self.n_heads, self.hd)

        f = self.freqs_cis[:T]
        q = apply_rotary_emb(q, f).transpose(1, 2)
        k = apply_rotary_emb(k, f).transpose(1, 2)
        v = v.transpose(1, 2)   # values are not rotated

        scores = q @ k.transpose(2, 3) / math.sqrt(self.hd)
        causal = torch.full((T, T), float('-inf'), device=x.device).triu(1)
        scores = scores + causal
        p = F.softmax(scores.float(), dim=-1).type_as(q)
        p = F.dropout(p, self.dropout, training=self.training)
        out = (p @ v).transpose(1, 2).contiguous().view(B, T, -1)
        return self.wo(out)


if __name__ == '__main__':
    net = RotaryAttention(32, 4)
    out = net(torch.randn(2, 9, 32))
    print(out.shape, out.mean().item())
