# expect: correct
import torch
import torch.nn as nn


def window_partition(x, ws):
    """(B, H, W, C) -> (B*nW, ws*ws, C)"""
    B, H, W, C = x.shape
    x = x.view(B, H // ws, ws, W // ws, ws, C)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, ws * ws, C)


def window_reverse(w, ws, H, W):
    B = w.shape[0] // ((H // ws) * (W // ws))
    x = w.view(B, H // ws, W // ws, ws, ws, -1)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(B, H, W, -1)


class WindowAttention(nn.Module):
    def __init__(self, dim, ws, heads):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)
        # relative position bias
        self.table = nn.Parameter(torch.randn((2 * ws - 1) ** 2, heads) * 0.02)
        yy, xx = torch.meshgrid(torch.arange(ws), torch.arange(ws), indexing="ij")
        c = torch.stack([yy.flatten(), xx.flatten()])           # 2, N
        rel = c[:, :, None] - c[:, None, :] + ws - 1            # 2, N, N  (>= 0)
        self.register_buffer("index", rel[0] * (2 * ws - 1) + rel[1])

    def forward(self, x, mask=None):
        Bw, N, C = x.shape
        q, k, v = self.qkv(x).reshape(Bw, N, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = (q * self.scale) @ k.transpose(-2, -1)
        a = a + self.table[self.index].permute(2, 0, 1)
        if mask is not None:                                    # nW, N, N
            nW = mask.shape[0]
            a = a.view(Bw // nW, nW, self.heads, N, N) + mask[None, :, None]
            a = a.view(Bw, self.heads, N, N)
        y = a.softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(Bw, N, C))


class SwinLayer(nn.Module):
    def __init__(self, dim, size, heads=4, ws=4, shift=0):
        super().__init__()
        assert size % ws == 0 and 0 <= shift < ws
        self.size, self.ws, self.shift = size, ws, shift
        self.norm = nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, ws, heads)
        mask = None
        if shift > 0:
            region = torch.zeros(1, size, size, 1)
            cuts = (slice(0, -ws), slice(-ws, -shift), slice(-shift, None))
            n = 0
            for h in cuts:
                for w in cuts:
                    region[:, h, w] = n
                    n += 1
            r = window_partition(region, ws).squeeze(-1)         # nW, N
            mask = torch.zeros(r.shape[0], ws * ws, ws * ws)
            mask[r[:, :, None] != r[:, None, :]] = -100.0
        self.register_buffer("mask", mask)

    def forward(self, x):
        # x: (B, H, W, C)
        s = self.norm(x)
        if self.shift:
            s = torch.roll(s, (-self.shift, -self.shift), dims=(1, 2))
        s = self.attn(window_partition(s, self.ws), self.mask)
        s = window_reverse(s, self.ws, self.size, self.size)
        if self.shift:
            s = torch.roll(s, (self.shift, self.shift), dims=(1, 2))
        return x + s


if __name__ == "__main__":
    net = nn.Sequential(SwinLayer(32, 8), SwinLayer(32, 8, shift=2))
    print(net(torch.randn(2, 8, 8, 32)).shape)
