# expect: weights-transposed
# why: Values are combined with bmm(v, w_) (line 58) without transposing w_: w_[i,j] is normalised over keys j, but the product sums over the queries i; needs w_.permute(0, 2, 1).
import torch
from torch import nn


def nonlinearity(x):
    return x * torch.sigmoid(x)


def Normalize(in_channels, num_groups=32):
    return nn.GroupNorm(num_groups=num_groups, num_channels=in_channels, eps=1e-6, affine=True)


class ResnetBlock(nn.Module):
    def __init__(self, in_channels, out_channels=None, dropout=0.0):
        super().__init__()
        out_channels = out_channels or in_channels
        self.norm1 = Normalize(in_channels)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.norm2 = Normalize(out_channels)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.shortcut = nn.Conv2d(in_channels, out_channels, 1) if in_channels != out_channels else nn.Identity()

    def forward(self, x):
        h = self.conv1(nonlinearity(self.norm1(x)))
        h = self.conv2(self.dropout(nonlinearity(self.norm2(h))))
        return self.shortcut(x) + h


class AttnBlock(nn.Module):
    """Single-head self-attention over the h*w positions of a feature map."""

    def __init__(self, in_channels):
        super().__init__()
        self.in_channels = in_channels
        self.norm = Normalize(in_channels)
        self.q = nn.Conv2d(in_channels, in_channels, kernel_size=1)
        self.k = nn.Conv2d(in_channels, in_channels, kernel_size=1)
        self.v = nn.Conv2d(in_channels, in_channels, kernel_size=1)
        self.proj_out = nn.Conv2d(in_channels, in_channels, kernel_size=1)

    def forward(self, x):
        h_ = self.norm(x)
        q = self.q(h_)
        k = self.k(h_)
        v = self.v(h_)

        # compute attention
        b, c, h, w = q.shape
        q = q.reshape(b, c, h * w).permute(0, 2, 1)     # b,hw,c
        k = k.reshape(b, c, h * w)                      # b,c,hw
        w_ = torch.bmm(q, k)                            # b,hw,hw    w[b,i,j]=sum_c q[b,i,c]k[b,c,j]
        w_ = w_ * (int(c) ** (-0.5))
        w_ = torch.softmax(w_, dim=2)

        # attend to values
        v = v.reshape(b, c, h * w)
        h_ = torch.bmm(v, w_)                           # b,c,hw
        h_ = h_.reshape(b, c, h, w)
        return x + self.proj_out(h_)


class MidBlock(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.block_1 = ResnetBlock(ch)
        self.attn_1 = AttnBlock(ch)
        self.block_2 = ResnetBlock(ch)

    def forward(self, x):
        return self.block_2(self.attn_1(self.block_1(x)))


if __name__ == "__main__":
    print(MidBlock(64)(torch.randn(2, 64, 8, 8)).shape)
