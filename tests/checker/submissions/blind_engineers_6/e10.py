# expect: weights-transposed
# why: attention is not transposed before bmm(values, attention): sums over the queries
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import spectral_norm


def sn_conv1x1(cin, cout):
    return spectral_norm(nn.Conv2d(cin, cout, kernel_size=1, bias=False))


class SelfAttn(nn.Module):
    """Self attention layer of the generator and the discriminator.

    inputs :
        x : input feature maps (B X C X W X H)
    returns :
        out : gamma * self attention value + input feature
        attention : B X N X N (N is Width*Height), row i are the weights (sum 1) with which
            pixel i collects the values of all pixels

    ``gamma`` starts at a small value so that the network first relies on local cues.
    """

    def __init__(self, in_dim, reduction=8, gamma_init=0.1):
        super().__init__()
        self.in_dim = in_dim
        inner = max(in_dim // reduction, 1)
        self.query_conv = sn_conv1x1(in_dim, inner)
        self.key_conv = sn_conv1x1(in_dim, inner)
        self.value_conv = sn_conv1x1(in_dim, in_dim)
        self.gamma = nn.Parameter(torch.full((1,), float(gamma_init)))

    def forward(self, x):
        B, C, W, H = x.size()
        N = W * H
        proj_query = self.query_conv(x).view(B, -1, N).permute(0, 2, 1)  # B X N X C'
        proj_key = self.key_conv(x).view(B, -1, N)  # B X C' X N
        energy = torch.bmm(proj_query, proj_key)  # B X N X N
        attention = F.softmax(energy, dim=-1)
        proj_value = self.value_conv(x).view(B, -1, N)  # B X C X N

        out = torch.bmm(proj_value, attention)
        out = out.view(B, C, W, H)

        out = self.gamma * out + x
        return out, attention


class GBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(cin)
        self.conv1 = spectral_norm(nn.Conv2d(cin, cout, 3, padding=1))
        self.bn2 = nn.BatchNorm2d(cout)
        self.conv2 = spectral_norm(nn.Conv2d(cout, cout, 3, padding=1))
        self.skip = sn_conv1x1(cin, cout)

    def forward(self, x):
        h = F.interpolate(F.relu(self.bn1(x)), scale_factor=2)
        h = self.conv2(F.relu(self.bn2(self.conv1(h))))
        return h + self.skip(F.interpolate(x, scale_factor=2))


class Generator(nn.Module):
    """z (B, z_dim) -> image (B, 3, 32, 32), attention at 16x16."""

    def __init__(self, z_dim=64, ch=16):
        super().__init__()
        self.ch = ch
        self.fc = spectral_norm(nn.Linear(z_dim, 4 * ch * 4 * 4))
        self.b1 = GBlock(4 * ch, 2 * ch)
        self.b2 = GBlock(2 * ch, 2 * ch)
        self.attn = SelfAttn(2 * ch)
        self.b3 = GBlock(2 * ch, ch)
        self.bn = nn.BatchNorm2d(ch)
        self.out = spectral_norm(nn.Conv2d(ch, 3, 3, padding=1))

    def forward(self, z):
        x = self.fc(z).view(-1, 4 * self.ch, 4, 4)
        x = self.b2(self.b1(x))
        x, attn = self.attn(x)
        x = self.b3(x)
        return torch.tanh(self.out(F.relu(self.bn(x)))), attn
