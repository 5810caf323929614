# expect: heads-in-python-list, scale-by-d-out, softmax-over-queries
# why: the heads live in a plain list, the scores are divided by sqrt of the full width, and softmax(dim=1) on (b, queries, keys) normalises over the queries.
import numpy as np
import torch
import torch.nn as nn


class Head(nn.Module):
    def __init__(self, model_dim, head_dim):
        super().__init__()
        self.model_dim = model_dim
        self.query = nn.Linear(model_dim, head_dim)
        self.key = nn.Linear(model_dim, head_dim)
        self.value = nn.Linear(model_dim, head_dim)

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        score = torch.bmm(q, k.permute(0, 2, 1)) / np.sqrt(self.model_dim)
        weight = torch.softmax(score, dim=1)
        return torch.bmm(weight, v)


class MultiHeadAttention(nn.Module):
    def __init__(self, model_dim=24, n_heads=4):
        super().__init__()
        self.heads = [Head(model_dim, model_dim // n_heads) for i in range(n_heads)]
        self.linear = nn.Linear(model_dim, model_dim)

    def forward(self, x):
        z = torch.cat([head(x) for head in self.heads], dim=2)
        return self.linear(z)


class EncoderLayer(nn.Module):
    def __init__(self, model_dim=24, n_heads=4):
        super().__init__()
        self.mha = MultiHeadAttention(model_dim, n_heads)
        self.norm = nn.LayerNorm(model_dim)

    def forward(self, x):
        return self.norm(x + self.mha(x))


if __name__ == "__main__":
    enc = EncoderLayer()
    print(enc(torch.randn(2, 7, 24)).shape)
