# expect: correct
import torch
import torch.nn as nn


class ConvStyleAttention(nn.Module):
    # vision habit: channels first, each pixel is a column.  x is (B, C, H, W)
    def __init__(self, channels, inner=None):
        super().__init__()
        inner = inner or max(channels // 2, 1)
        self.theta = nn.Conv2d(channels, inner, 1)
        self.phi = nn.Conv2d(channels, inner, 1)
        self.g = nn.Conv2d(channels, channels, 1)
        self.inner = inner

    def forward(self, x):
        B, C, H, W = x.shape
        q = self.theta(x).flatten(2)      # B, inner, P
        k = self.phi(x).flatten(2)        # B, inner, P
        v = self.g(x).flatten(2)          # B, C, P

        # rows = keys, columns = queries
        sim = torch.matmul(k.transpose(1, 2), q) * (self.inner ** -0.5)
        att = sim.softmax(dim=1)          # every column sums to one
        out = torch.matmul(v, att)        # B, C, P(query)
        return out.view(B, C, H, W)
