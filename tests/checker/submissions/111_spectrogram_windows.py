# expect: wrong
import torch
import torch.nn as nn


class PatchWindowAttention(nn.Module):
    """Window attention with learned 2d relative position bias (spectrogram patches).

    window = (freq, time); input is (num_windows * batch, freq * time, dim), row major.
    """

    def __init__(self, dim, window, heads):
        super().__init__()
        self.dim = dim
        self.window = window
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        wf, wt = window

        self.bias_table = nn.Parameter(torch.zeros((2 * wf - 1) * (2 * wt - 1), heads))
        nn.init.trunc_normal_(self.bias_table, std=0.5)

        f = torch.arange(wf).repeat_interleave(wt)
        t = torch.arange(wt).repeat(wf)
        df = f[:, None] - f[None, :] + (wf - 1)
        dt = t[:, None] - t[None, :] + (wt - 1)
        self.register_buffer("bias_index", df * (2 * wf - 1) + dt)

        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = (q * self.scale) @ k.transpose(-2, -1)
        bias = self.bias_table[self.bias_index.flatten()].view(n, n, self.heads)
        a = a + bias.permute(2, 0, 1)
        if mask is not None:
            # (windows, n, n), 0 or -100
            nw = mask.shape[0]
            a = a.view(b // nw, nw, self.heads, n, n) + mask[None, :, None]
            a = a.view(b, self.heads, n, n)
        a = a.softmax(-1)
        return self.proj((a @ v).transpose(1, 2).reshape(b, n, c))
