# expect: correct
"""Joint text-image attention for a diffusion transformer (two streams, one softmax)."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def modulate(x, shift, scale):
    return x * (1 + scale[:, None]) + shift[:, None]


class Stream(nn.Module):
    """The parameters one modality owns."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.q_norm = nn.RMSNorm(dim // heads, eps=1e-6)
        self.k_norm = nn.RMSNorm(dim // heads, eps=1e-6)
        self.proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim))
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))

    def pre(self, x, c):
        shift, scale, *rest = self.ada(c).chunk(6, dim=-1)
        h = modulate(self.norm1(x), shift, scale)
        q, k, v = self.qkv(h).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.q_norm(q), self.k_norm(k), v, rest

    def post(self, x, attn, rest):
        gate1, shift, scale, gate2 = rest
        x = x + gate1[:, None] * self.proj(attn)
        return x + gate2[:, None] * self.mlp(modulate(self.norm2(x), shift, scale))


class JointBlock(nn.Module):
    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.txt = Stream(dim, heads)
        self.img = Stream(dim, heads)

    def forward(self, img, txt, c, txt_keep=None):
        """img: (B, N, D), txt: (B, M, D), c: (B, D) time + pooled text, txt_keep: (B, M) bool."""
        qt, kt, vt, rt = self.txt.pre(txt, c)
        qi, ki, vi, ri = self.img.pre(img, c)
        q = torch.cat([qt, qi], dim=2)
        k = torch.cat([kt, ki], dim=2)
        v = torch.cat([vt, vi], dim=2)

        mask = None
        if txt_keep is not None:
            img_keep = txt_keep.new_ones(img.shape[0], img.shape[1])
            mask = torch.cat([txt_keep, img_keep], dim=1)[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        y = y.transpose(1, 2).flatten(2)
        yt, yi = y.split([txt.shape[1], img.shape[1]], dim=1)
        return self.img.post(img, yi, ri), self.txt.post(txt, yt, rt)


if __name__ == "__main__":
    blk = JointBlock()
    keep = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    a, b = blk(torch.randn(2, 9, 64), torch.randn(2, 5, 64), torch.randn(2, 64), keep)
    print(a.shape, b.shape)
