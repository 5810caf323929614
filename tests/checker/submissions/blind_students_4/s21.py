# expect: correct
import torch
import torch.nn as nn
import torch.nn.functional as F


def build_rope_table(head_dim, max_len, theta=10000.0):
    """complex table of shape (max_len, head_dim / 2)"""
    inv_freq = theta ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.outer(torch.arange(max_len).float(), inv_freq)
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x, table):
    # x: (B, T, H, D), neighbouring entries form one complex number
    z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    z = z * table[: x.size(1)].unsqueeze(1)
    return torch.view_as_real(z).flatten(-2).type_as(x)


class RotaryAttention(nn.Module):
    def __init__(self, dim, n_heads, max_len=128):
        super().__init__()
        assert dim % n_heads == 0 and (dim // n_heads) % 2 == 0
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.register_buffer("rope", build_rope_table(self.head_dim, max_len), persistent=False)

    def forward(self, x):
        B, T, _ = x.shape
        heads = (B, T, self.n_heads, self.head_dim)
        q = rotate(self.wq(x).view(heads), self.rope)
        k = rotate(self.wk(x).view(heads), self.rope)
        v = self.wv(x).view(heads)

        q, k, v = (u.transpose(1, 2) for u in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(B, T, -1))


if __name__ == "__main__":
    torch.manual_seed(0)
    m = RotaryAttention(48, 4)
    print(m(torch.randn(2, 17, 48)).shape)
