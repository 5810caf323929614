# expect: heads-share-weights
# why: the ModuleList is built from a multiplied one-element list, so all heads are one and the same module with shared weights, on line 29
import torch
import torch.nn as nn
import torch.nn.functional as F


class AttentionHead(nn.Module):
    def __init__(self, hidden, head_dim):
        super().__init__()
        self.q = nn.Linear(hidden, head_dim)
        self.k = nn.Linear(hidden, head_dim)
        self.v = nn.Linear(hidden, head_dim)
        self.scale = head_dim ** -0.5

    def forward(self, h, causal=False):
        q, k, v = self.q(h), self.k(h), self.v(h)
        scores = torch.bmm(q, k.transpose(1, 2)) * self.scale
        if causal:
            n = scores.size(-1)
            upper = torch.triu(torch.ones(n, n, device=h.device), 1).bool()
            scores = scores.masked_fill(upper, float("-inf"))
        return torch.bmm(F.softmax(scores, dim=-1), v)


class MultiHead(nn.Module):
    def __init__(self, hidden, n_heads):
        super().__init__()
        head_dim = hidden // n_heads
        self.heads = nn.ModuleList([AttentionHead(hidden, head_dim)] * n_heads)
        self.output = nn.Linear(n_heads * head_dim, hidden)

    def forward(self, h, causal=False):
        z = torch.cat([head(h, causal) for head in self.heads], dim=-1)
        return self.output(z)


class EncoderLayer(nn.Module):
    def __init__(self, hidden=32, n_heads=4):
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden)
        self.norm2 = nn.LayerNorm(hidden)
        self.attn = MultiHead(hidden, n_heads)
        self.ff = nn.Sequential(nn.Linear(hidden, 64), nn.ReLU(), nn.Linear(64, hidden))

    def forward(self, x):
        x = self.norm1(x + self.attn(x))
        return self.norm2(x + self.ff(x))


if __name__ == "__main__":
    print(EncoderLayer()(torch.randn(2, 8, 32)).shape)
