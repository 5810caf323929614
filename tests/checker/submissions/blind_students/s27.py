# expect: wrong
# why: the angles are laid out as (first half, second half) but the rotation pairs neighbouring columns, so it is not a rotation and the scores no longer depend on relative position only.
import torch
import torch.nn as nn
import torch.nn.functional as F


def build_cos_sin(dim, seq_len, base=10000.0):
    freqs = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
    t = torch.arange(seq_len).float()
    angles = t[:, None] * freqs[None, :]
    emb = torch.cat((angles, angles), dim=-1)
    return emb.cos(), emb.sin()


def rotate_pairs(x):
    # (x0, x1, x2, x3) -> (-x1, x0, -x3, x2)
    even = x[..., 0::2]
    odd = x[..., 1::2]
    return torch.stack((-odd, even), dim=-1).flatten(-2)


class RotaryCausalAttention(nn.Module):
    def __init__(self, dim, heads, max_seq=64):
        super().__init__()
        self.heads = heads
        self.hd = dim // heads
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        c, s = build_cos_sin(self.hd, max_seq)
        self.register_buffer("c", c)
        self.register_buffer("s", s)

    def rope(self, x):
        n = x.size(2)
        return x * self.c[:n] + rotate_pairs(x) * self.s[:n]

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.wqkv(x).chunk(3, -1)
        q = self.rope(q.view(b, n, self.heads, self.hd).transpose(1, 2))
        k = self.rope(k.view(b, n, self.heads, self.hd).transpose(1, 2))
        v = v.view(b, n, self.heads, self.hd).transpose(1, 2)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(o.transpose(1, 2).reshape(b, n, d))


if __name__ == "__main__":
    m = RotaryCausalAttention(32, 4)
    print(m(torch.randn(1, 10, 32)).shape)
