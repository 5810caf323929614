# expect: never-learns
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class CosineWindowAttention(nn.Module):
    """Window attention in the style of Swin V2: cosine similarity with a learned per-head
    temperature (the multiplier is kept at 100 or below) and a continuous relative position
    bias from a small MLP over log-spaced offsets.

    x:    (num_windows * B, Wh * Ww, dim), windows of one image are contiguous
    mask: (num_windows, Wh * Ww, Wh * Ww) additive, for shifted windows, or None
    """

    def __init__(self, dim, window_size, num_heads, attn_drop=0.0, proj_drop=0.0, hidden=64):
        super().__init__()
        self.dim = dim
        self.window_size = window_size  # (Wh, Ww)
        self.num_heads = num_heads

        self.logit_scale = nn.Parameter(torch.full((num_heads, 1, 1), math.log(10.0)))
        self.cpb = nn.Sequential(
            nn.Linear(2, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, num_heads, bias=False)
        )

        wh, ww = window_size
        dy = torch.arange(-(wh - 1), wh, dtype=torch.float32) / max(wh - 1, 1)
        dx = torch.arange(-(ww - 1), ww, dtype=torch.float32) / max(ww - 1, 1)
        coords = torch.stack(torch.meshgrid(dy, dx, indexing="ij"), dim=-1) * 8
        coords = torch.sign(coords) * torch.log2(coords.abs() + 1.0) / 3.0
        self.register_buffer("coords_table", coords.view(-1, 2), persistent=False)

        yy, xx = torch.meshgrid(torch.arange(wh), torch.arange(ww), indexing="ij")
        p = torch.stack((yy.flatten(), xx.flatten()))
        rel = p[:, :, None] - p[:, None, :]
        index = (rel[0] + wh - 1) * (2 * ww - 1) + rel[1] + ww - 1
        self.register_buffer("rel_index", index, persistent=False)

        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(dim))
        self.v_bias = nn.Parameter(torch.zeros(dim))
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x, mask=None):
        Bn, N, C = x.shape
        bias = torch.cat((self.q_bias, torch.zeros_like(self.v_bias), self.v_bias))
        qkv = F.linear(x, self.qkv.weight, bias)
        q, k, v = qkv.reshape(Bn, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)

        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        scale = self.logit_scale.exp().clamp(max=math.log(1.0 / 0.01))
        attn = attn * scale

        rpb = self.cpb(self.coords_table)[self.rel_index.view(-1)].view(N, N, self.num_heads)
        attn = attn + 16 * torch.sigmoid(rpb.permute(2, 0, 1)).unsqueeze(0)

        if mask is not None:
            nW = mask.shape[0]
            attn = attn.view(Bn // nW, nW, self.num_heads, N, N) + mask[None, :, None]
            attn = attn.view(-1, self.num_heads, N, N)
        attn = self.attn_drop(attn.softmax(dim=-1))
        x = (attn @ v).transpose(1, 2).reshape(Bn, N, C)
        return self.proj_drop(self.proj(x))
