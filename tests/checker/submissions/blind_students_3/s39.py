# expect: wrong
# why: Line 15: the image (B,C,H,W) is cut by a plain reshape to (B, n, C*P*P), without permute; a 'patch' is a run of rows of a single colour channel and not a PxP square.
# why: Line 36: heads are merged by reshape(N, L, D) from (N, heads, L, dh) without transposing back, so tokens and heads are mixed.
# ViT from scratch on CIFAR-10 (Kaggle notebook export)
import torch
import torch.nn as nn
import torch.nn.functional as F
import os, sys, json

IMG, P, C = 32, 8, 3
DIM, HEADS, DEPTH = 96, 6, 2


def make_patches(imgs):
    """(B, C, H, W) -> (B, number of patches, C*P*P)"""
    B = imgs.shape[0]
    n = (IMG // P) ** 2
    return imgs.reshape(B, n, C * P * P)


class MSA(nn.Module):
    def __init__(self, d, n_heads):
        super(MSA, self).__init__()
        self.d = d
        self.n_heads = n_heads
        self.q_map = nn.Linear(d, d)
        self.k_map = nn.Linear(d, d)
        self.v_map = nn.Linear(d, d)
        self.out_map = nn.Linear(d, d)

    def forward(self, seq):
        N, L, D = seq.shape
        dh = D // self.n_heads
        q = self.q_map(seq).reshape(N, L, self.n_heads, dh).permute(0, 2, 1, 3)
        k = self.k_map(seq).reshape(N, L, self.n_heads, dh).permute(0, 2, 1, 3)
        v = self.v_map(seq).reshape(N, L, self.n_heads, dh).permute(0, 2, 1, 3)
        att = torch.softmax(q @ k.permute(0, 1, 3, 2) / dh ** 0.5, dim=-1)
        res = att @ v                       # (N, heads, L, dh)
        res = res.reshape(N, L, D)          # concat the heads
        return self.out_map(res)


class ViTBlock(nn.Module):
    def __init__(self, d, n_heads, ratio=4):
        super().__init__()
        self.norm1 = nn.LayerNorm(d)
        self.mhsa = MSA(d, n_heads)
        self.norm2 = nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, ratio * d), nn.GELU(), nn.Linear(ratio * d, d))

    def forward(self, x):
        out = x + self.mhsa(self.norm1(x))
        return out + self.mlp(self.norm2(out))


class MyViT(nn.Module):
    def __init__(self, n_classes=10):
        super().__init__()
        self.embed = nn.Linear(C * P * P, DIM)
        self.cls_token = nn.Parameter(torch.rand(1, 1, DIM))
        self.pos_embed = nn.Parameter(torch.randn(1, (IMG // P) ** 2 + 1, DIM) * 0.02)
        self.blocks = nn.ModuleList([ViTBlock(DIM, HEADS) for _ in range(DEPTH)])
        self.ln = nn.LayerNorm(DIM)
        self.mlp_head = nn.Linear(DIM, n_classes)

    def forward(self, images):
        tokens = self.embed(make_patches(images))
        cls = self.cls_token.repeat(images.size(0), 1, 1)
        x = torch.cat((cls, tokens), dim=1) + self.pos_embed
        for b in self.blocks:
            x = b(x)
        return self.mlp_head(self.ln(x[:, 0]))


model = MyViT()
dummy = torch.randn(4, C, IMG, IMG)
print(model(dummy).shape)      # [4, 10]
