# expect: correct
import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHeadByHand(nn.Module):
    """Homework version: a plain loop, every head has its own three matrices."""

    def __init__(self, in_features, n_heads, head_features):
        super().__init__()
        self.head_features = head_features
        self.queries = nn.ModuleList([nn.Linear(in_features, head_features) for _ in range(n_heads)])
        self.keys = nn.ModuleList([nn.Linear(in_features, head_features) for _ in range(n_heads)])
        self.values = nn.ModuleList([nn.Linear(in_features, head_features) for _ in range(n_heads)])
        self.mix = nn.Linear(n_heads * head_features, in_features)

    def forward(self, x):
        results = []
        for make_q, make_k, make_v in zip(self.queries, self.keys, self.values):
            q, k, v = make_q(x), make_k(x), make_v(x)
            w = q @ k.transpose(1, 2)
            w = w / (self.head_features ** 0.5)
            w = F.softmax(w, dim=-1)
            results.append(w @ v)
        return self.mix(torch.cat(results, dim=-1))
