# expect: correct
# Attention with linear biases (ALiBi) in place of position embeddings.
import math
import torch
import torch.nn as nn


def alibi_slopes(n_heads):
    # 2^(-8/n), 2^(-16/n), ... (n_heads is a power of two here)
    return torch.tensor([2.0 ** (-8.0 * (h + 1) / n_heads) for h in range(n_heads)])


class AlibiAttention(nn.Module):
    def __init__(self, d_model, n_heads, dropout=0.0):
        super().__init__()
        assert d_model % n_heads == 0
        assert math.log2(n_heads).is_integer()
        self.n_heads = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)
        self.drop = nn.Dropout(dropout)
        self.register_buffer("slopes", alibi_slopes(n_heads).view(1, n_heads, 1, 1))

    def bias(self, t):
        pos = torch.arange(t, device=self.slopes.device)
        distance = pos[None, :] - pos[:, None]          # j - i, not positive in the past
        b = self.slopes * distance
        return b.masked_fill(distance > 0, float("-inf"))

    def forward(self, x):
        B, T, D = x.shape
        # every head has its q, k and v next to each other in the fused layer
        q, k, v = self.qkv(x).view(B, T, self.n_heads, -1).transpose(1, 2).chunk(3, dim=-1)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        scores = scores + self.bias(T)
        w = self.drop(scores.softmax(-1))
        ctx = (w @ v).transpose(1, 2).reshape(B, T, D)
        return self.out(ctx)


if __name__ == "__main__":
    att = AlibiAttention(32, 8)
    print(att.slopes.flatten())
    print(att.bias(4)[0, 0])
    print(att(torch.randn(2, 12, 32)).shape)
