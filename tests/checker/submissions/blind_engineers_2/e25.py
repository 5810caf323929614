# expect: weights-transposed
# why: line 38: bmm(g, attention) without transposing attention mixes with columns of the softmaxed matrix, i.e. sums over queries instead of over keys (weights do not sum to one). Always.
import torch
import torch.nn as nn
from torch.nn.utils import spectral_norm


def snconv1x1(in_channels, out_channels, use_sn=True):
    conv = nn.Conv2d(in_channels, out_channels, kernel_size=1, bias=False)
    return spectral_norm(conv) if use_sn else conv


class SelfAttention2d(nn.Module):
    """Non-local block for generator and discriminator feature maps.

    query at each position, keys and values at all positions:
        o_i = sum_j softmax_j(<theta_i, phi_j>) g_j
    """

    def __init__(self, in_channels, reduction=8, use_sn=False):
        super().__init__()
        self.in_channels = in_channels
        self.inner = max(in_channels // reduction, 1)
        self.theta = snconv1x1(in_channels, self.inner, use_sn)
        self.phi = snconv1x1(in_channels, self.inner, use_sn)
        self.g = snconv1x1(in_channels, in_channels // 2, use_sn)
        self.o = snconv1x1(in_channels // 2, in_channels, use_sn)
        self.softmax = nn.Softmax(dim=-1)
        self.gamma = nn.Parameter(torch.full((1,), 0.5))

    def forward(self, x, return_attention=False):
        B, C, H, W = x.size()
        N = H * W
        theta = self.theta(x).view(B, self.inner, N)
        phi = self.phi(x).view(B, self.inner, N)
        g = self.g(x).view(B, C // 2, N)

        energy = torch.bmm(theta.permute(0, 2, 1), phi)
        attention = self.softmax(energy)
        out = torch.bmm(g, attention)
        out = self.o(out.view(B, C // 2, H, W))

        y = self.gamma * out + x
        if return_attention:
            return y, attention
        return y


class ResBlock(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.net = nn.Sequential(
            nn.BatchNorm2d(ch), nn.ReLU(), nn.Conv2d(ch, ch, 3, padding=1),
            nn.BatchNorm2d(ch), nn.ReLU(), nn.Conv2d(ch, ch, 3, padding=1),
        )

    def forward(self, x):
        return x + self.net(x)


class Generator(nn.Module):
    def __init__(self, z_dim=16, ch=16, base=4, use_sn=True):
        super().__init__()
        self.base, self.ch = base, ch
        self.fc = nn.Linear(z_dim, ch * base * base)
        self.block1 = ResBlock(ch)
        self.attn = SelfAttention2d(ch, reduction=4, use_sn=use_sn)
        self.block2 = ResBlock(ch)
        self.to_rgb = nn.Conv2d(ch, 3, 3, padding=1)

    def forward(self, z):
        h = self.fc(z).view(-1, self.ch, self.base, self.base)
        h = nn.functional.interpolate(self.block1(h), scale_factor=2)
        h = self.block2(self.attn(h))
        return torch.tanh(self.to_rgb(h))
