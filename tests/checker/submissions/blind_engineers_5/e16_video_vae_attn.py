# expect: wrong
# why: (b, c, t, h, w) is reshaped to (b*t, c, h*w) without moving t in front of c, so channels and frames are mixed up; shows at line 64: `q = q.reshape(b * t, c, h * w)` (likewise k, v and the way back)
import torch
import torch.nn as nn
import torch.nn.functional as F


def nonlinearity(x):
    return x * torch.sigmoid(x)


def Normalize(in_channels, num_groups=8):
    return nn.GroupNorm(num_groups=num_groups, num_channels=in_channels, eps=1e-6, affine=True)


class CausalConv3d(nn.Module):
    def __init__(self, chan_in, chan_out, kernel_size=3):
        super().__init__()
        self.time_kernel = kernel_size
        pad = kernel_size // 2
        self.conv = nn.Conv3d(chan_in, chan_out, kernel_size, padding=(0, pad, pad))

    def forward(self, x):
        first = x[:, :, :1].repeat(1, 1, self.time_kernel - 1, 1, 1)
        return self.conv(torch.cat((first, x), dim=2))


class ResnetBlock3D(nn.Module):
    def __init__(self, in_channels, out_channels, dropout=0.0):
        super().__init__()
        self.norm1 = Normalize(in_channels)
        self.conv1 = CausalConv3d(in_channels, out_channels)
        self.norm2 = Normalize(out_channels)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = CausalConv3d(out_channels, out_channels)
        self.nin_shortcut = nn.Conv3d(in_channels, out_channels, 1) if in_channels != out_channels else nn.Identity()

    def forward(self, x):
        h = self.conv1(nonlinearity(self.norm1(x)))
        h = self.conv2(self.dropout(nonlinearity(self.norm2(h))))
        return self.nin_shortcut(x) + h


class AttnBlock3D(nn.Module):
    """Spatial attention inside a video autoencoder: the pixels of a frame attend to the pixels of that frame."""

    def __init__(self, in_channels):
        super().__init__()
        self.in_channels = in_channels
        self.norm = Normalize(in_channels)
        self.q = nn.Conv3d(in_channels, in_channels, kernel_size=1)
        self.k = nn.Conv3d(in_channels, in_channels, kernel_size=1)
        self.v = nn.Conv3d(in_channels, in_channels, kernel_size=1)
        self.proj_out = nn.Conv3d(in_channels, in_channels, kernel_size=1)

    def forward(self, x):
        h_ = self.norm(x)
        q = self.q(h_)
        k = self.k(h_)
        v = self.v(h_)

        # compute attention, frame by frame
        b, c, t, h, w = q.shape
        q = q.reshape(b * t, c, h * w)
        q = q.permute(0, 2, 1)  # (b t) hw c
        k = k.reshape(b * t, c, h * w)
        w_ = torch.bmm(q, k) * (int(c) ** (-0.5))
        w_ = F.softmax(w_, dim=2)

        # attend to values
        v = v.reshape(b * t, c, h * w)
        w_ = w_.permute(0, 2, 1)
        h_ = torch.bmm(v, w_)
        h_ = h_.reshape(b, c, t, h, w)
        return x + self.proj_out(h_)


class Mid(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.block_1 = ResnetBlock3D(channels, channels)
        self.attn_1 = AttnBlock3D(channels)
        self.block_2 = ResnetBlock3D(channels, channels)

    def forward(self, x):
        return self.block_2(self.attn_1(self.block_1(x)))
