# expect: wrong
# why: Line 28: the sign of the ALiBi bias is wrong (+slope*(i-j)), far tokens are favoured instead of penalised. Shows always for more than one token.
import math
import torch
import torch.nn as nn


def get_slopes(n):
    # geometric sequence like in the ALiBi paper, n must be a power of 2
    start = 2 ** (-8 / n)
    return torch.tensor([start ** (i + 1) for i in range(n)])


class AlibiAttention(nn.Module):
    """Causal attention with linear biases. No positional embedding needed."""

    def __init__(self, d_model: int, n_heads: int, dropout: float = 0.0):
        super().__init__()
        assert n_heads & (n_heads - 1) == 0
        self.h = n_heads
        self.d = d_model // n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)
        self.drop = nn.Dropout(dropout)
        self.register_buffer("slopes", get_slopes(n_heads).view(1, n_heads, 1, 1))

    def bias(self, T, device):
        pos = torch.arange(T, device=device)
        dist = pos[:, None] - pos[None, :]          # how far the key lies in the past
        return self.slopes * dist[None, None]

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, self.d).permute(2, 0, 3, 1, 4)
        att = q @ k.transpose(-1, -2) / math.sqrt(self.d)
        att = att + self.bias(T, x.device)
        future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        att = att.masked_fill(future, float("-inf")).softmax(-1)
        y = self.drop(att) @ v
        return self.out(y.transpose(1, 2).reshape(B, T, C))


if __name__ == "__main__":
    a = AlibiAttention(32, 4)
    print(get_slopes(8))
    for T in (4, 16, 50):
        print(T, a(torch.randn(1, T, 32)).shape)
