# expect: correct
import torch
import torch.nn as nn
from einops import rearrange


def window_partition(x, ws):
    # (B, H, W, C) -> (B * nW, ws * ws, C)
    return rearrange(x, "b (nh wh) (nw ww) c -> (b nh nw) (wh ww) c", wh=ws, ww=ws)


def window_merge(win, ws, H, W):
    return rearrange(win, "(b nh nw) (wh ww) c -> b (nh wh) (nw ww) c",
                     nh=H // ws, nw=W // ws, wh=ws, ww=ws)


class WindowAttention(nn.Module):
    """Window based multi-head self attention with relative position bias.

    Args:
        dim: number of input channels.
        window_size: side of the (square) window.
        num_heads: number of heads.
        qkv_bias: learnable bias for q, k, v.
        attn_drop / proj_drop: dropout ratios.

    ``forward(x, mask)``: x is (num_windows * B, N, C), windows of one image contiguous;
    mask is an additive (num_windows, N, N) float mask of 0 / -100, or None.
    """

    def __init__(self, dim, window_size, num_heads, qkv_bias=True, attn_drop=0.0, proj_drop=0.0):
        super().__init__()
        self.dim = dim
        self.window_size = window_size
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5

        self.relative_position_bias_table = nn.Parameter(
            torch.zeros((2 * window_size - 1) ** 2, num_heads))
        coords = torch.stack(torch.meshgrid(
            torch.arange(window_size), torch.arange(window_size), indexing="ij")).flatten(1)
        rel = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0) + window_size - 1
        self.register_buffer("relative_position_index",
                             rel[..., 0] * (2 * window_size - 1) + rel[..., 1])

        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)

    def forward(self, x, mask=None):
        B_, N, C = x.shape
        q, k, v = rearrange(self.qkv(x), "b n (three h d) -> three b h n d",
                            three=3, h=self.num_heads).unbind(0)
        attn = (q * self.scale) @ k.transpose(-2, -1)

        bias = self.relative_position_bias_table[self.relative_position_index.view(-1)]
        attn = attn + bias.view(N, N, -1).permute(2, 0, 1).unsqueeze(0)

        if mask is not None:
            nW = mask.shape[0]
            attn = attn.view(B_ // nW, nW, self.num_heads, N, N) + mask[None, :, None].to(attn.dtype)
            attn = attn.view(-1, self.num_heads, N, N)
        attn = self.attn_drop(attn.softmax(dim=-1))

        x = (attn @ v).transpose(1, 2).reshape(B_, N, C)
        return self.proj_drop(self.proj(x))


class ShiftedWindowBlock(nn.Module):
    """Norm -> (shifted) window attention -> residual -> MLP. Input (B, H, W, C).

    H and W must be multiples of the window. A map no larger than the window along a side is not shifted.
    """

    def __init__(self, dim, num_heads, window_size=7, shift=True, mlp_ratio=4.0):
        super().__init__()
        self.ws = window_size
        self.shift = window_size // 2 if shift else 0
        self.norm1 = nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, window_size, num_heads)
        self.norm2 = nn.LayerNorm(dim)
        hidden = int(dim * mlp_ratio)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

    def build_mask(self, H, W, shift, device):
        img = torch.zeros(1, H, W, 1, device=device)
        cuts = (slice(0, -self.ws), slice(-self.ws, -shift), slice(-shift, None))
        n = 0
        for hs in cuts:
            for wsl in cuts:
                img[:, hs, wsl] = n
                n += 1
        region = window_partition(img, self.ws).squeeze(-1)
        diff = region[:, None, :] != region[:, :, None]
        return torch.zeros_like(diff, dtype=torch.float32).masked_fill(diff, -100.0)

    def forward(self, x):
        _, H, W, _ = x.shape
        if H % self.ws or W % self.ws:
            raise ValueError(f"feature map {H}x{W} is not a multiple of the window {self.ws}")
        shift = 0 if min(H, W) <= self.ws else self.shift

        y = self.norm1(x)
        mask = None
        if shift:
            y = torch.roll(y, (-shift, -shift), dims=(1, 2))
            mask = self.build_mask(H, W, shift, x.device)
        y = window_merge(self.attn(window_partition(y, self.ws), mask), self.ws, H, W)
        if shift:
            y = torch.roll(y, (shift, shift), dims=(1, 2))
        x = x + y
        return x + self.mlp(self.norm2(x))
