# expect: merge-without-transpose
import torch
from torch import nn


class SpatialMHSA(nn.Module):
    """Selbstaufmerksamkeit ueber alle Positionen einer Feature-Map (B, C, H, W)."""

    def __init__(self, channels, heads=4):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Conv2d(channels, channels * 3, kernel_size=1, bias=False)
        self.to_out = nn.Conv2d(channels, channels, kernel_size=1)

    def forward(self, x):
        B, C, H, W = x.shape
        n = H * W
        dh = C // self.heads
        # Kanaele aufteilen: (3, B, Koepfe, dh, n)
        q, k, v = self.to_qkv(x).view(B, 3, self.heads, dh, n).unbind(1)
        q = q * dh ** -0.5

        sim = torch.einsum('bhdi,bhdj->bhij', q, k)
        attn = sim.softmax(dim=-1)
        out = torch.einsum('bhij,bhdj->bhid', attn, v)

        # wieder als Bild
        out = out.reshape(B, C, H, W)
        return self.to_out(out)
