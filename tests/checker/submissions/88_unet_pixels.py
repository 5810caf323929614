# expect: correct
import torch
import torch.nn as nn


class AttnBlock2d(nn.Module):
    # attention over all pixels of a feature map, used at the 16x16 level of the unet
    def __init__(self, ch, head_ch=16, groups=8):
        super().__init__()
        self.h = ch // head_ch
        self.norm = nn.GroupNorm(groups, ch, eps=1e-6)
        self.q = nn.Conv2d(ch, ch, 1)
        self.k = nn.Conv2d(ch, ch, 1)
        self.v = nn.Conv2d(ch, ch, 1)
        self.out = nn.Conv2d(ch, ch, 1)

    def forward(self, x):
        b, c, hh, ww = x.shape
        y = self.norm(x)
        d = c // self.h
        q = self.q(y).reshape(b * self.h, d, hh * ww)
        k = self.k(y).reshape(b * self.h, d, hh * ww)
        v = self.v(y).reshape(b * self.h, d, hh * ww)
        # split the scale between q and k, safer in half precision
        s = d ** -0.25
        w = torch.bmm((q * s).transpose(1, 2), k * s)      # (bh, query pixel, key pixel)
        w = torch.softmax(w.float(), dim=2).to(v.dtype)
        o = torch.bmm(v, w.transpose(1, 2))                # (bh, d, query pixel)
        return x + self.out(o.reshape(b, c, hh, ww))
