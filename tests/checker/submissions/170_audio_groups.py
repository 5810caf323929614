# expect: correct
import torch
import torch.nn as nn


class AudioAttnBlock(nn.Module):
    """Residual self attention over time for (B, C, T) feature maps.

    lengths (optional): number of valid frames per item. Padded frames are never
    attended to, and come out as zeros.
    """

    def __init__(self, channels, head_channels=32, groups=8, zero_init=False):
        super().__init__()
        assert channels % head_channels == 0
        self.n_heads = channels // head_channels
        self.norm = nn.GroupNorm(groups, channels)
        self.qkv = nn.Conv1d(channels, channels * 3, 1)
        self.proj = nn.Conv1d(channels, channels, 1)
        if zero_init:
            nn.init.zeros_(self.proj.weight)
            nn.init.zeros_(self.proj.bias)

    def forward(self, x, lengths=None):
        b, c, t = x.shape
        qkv = self.qkv(self.norm(x))
        # heads live on the channel axis: per head [q | k | v]
        q, k, v = qkv.reshape(b * self.n_heads, 3 * (c // self.n_heads), t).chunk(3, dim=1)
        # split the scale over both sides, nicer in fp16
        s = (c // self.n_heads) ** -0.25
        w = torch.einsum("nct,ncs->nts", q * s, k * s)
        valid = None
        if lengths is not None:
            valid = torch.arange(t, device=x.device)[None, :] < lengths[:, None]       # (b, t)
            per_head = valid.repeat_interleave(self.n_heads, dim=0)[:, None, :]
            w = w.masked_fill(~per_head, -1e4 if w.dtype == torch.float16 else -1e9)
        w = torch.softmax(w.float(), dim=-1).type(w.dtype)
        h = torch.einsum("nts,ncs->nct", w, v).reshape(b, c, t)
        y = x + self.proj(h)
        if valid is not None:
            y = y * valid[:, None, :].to(y.dtype)
        return y
