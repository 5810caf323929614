# expect: correct
import torch
import torch.nn as nn


class WindowAttentionWithBias(nn.Module):
    """Self-attention inside non-overlapping ws x ws windows, learned 2-D relative bias.

    Input  (num_windows * B, ws * ws, dim), rows in raster order.
    mask   optional (num_windows, ws*ws, ws*ws), additive (0 / -100), for shifted windows.
    """

    def __init__(self, dim, ws, heads, qkv_bias=True, drop=0.0):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop)

        side = 2 * ws - 1
        self.bias_table = nn.Parameter(torch.empty(side * side, heads))
        nn.init.trunc_normal_(self.bias_table, std=0.02)
        yy, xx = torch.meshgrid(torch.arange(ws), torch.arange(ws), indexing="ij")
        yy, xx = yy.reshape(-1), xx.reshape(-1)
        dy = yy[:, None] - yy[None, :]
        dx = xx[:, None] - xx[None, :]
        # row-major in (dy, dx); entries below zero simply count from the end of the
        # table, every offset still has its own slot so there is nothing to shift
        self.register_buffer("rel", dy * side + dx, persistent=False)

    def forward(self, x, mask=None):
        bw, n, c = x.shape
        q, k, v = self.qkv(x).view(bw, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        logits = (q * self.scale) @ k.transpose(-1, -2)
        logits = logits + self.bias_table[self.rel].permute(2, 0, 1)
        if mask is not None:
            nw = mask.size(0)
            logits = logits.view(-1, nw, self.heads, n, n) + mask[:, None]
            logits = logits.view(bw, self.heads, n, n)
        a = self.drop(logits.softmax(-1))
        y = (a @ v).transpose(1, 2).reshape(bw, n, c)
        return self.proj(y)
