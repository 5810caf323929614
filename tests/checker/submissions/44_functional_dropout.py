# expect: dropout-in-eval
import torch
import torch.nn.functional as F
from torch import nn


class DropAttention(nn.Module):
    def __init__(self, size, heads, dropout=0.2):
        super().__init__()
        self.heads, self.p = heads, dropout
        self.qkv_linear = nn.Linear(size, size * 3, bias=False)
        self.merge_linear = nn.Linear(size, size, bias=False)

    def forward(self, x):
        b, n, c = x.shape
        qkv = self.qkv_linear(x).unflatten(2, (3, self.heads, c // self.heads)).transpose(1, 3)
        q, k, v = qkv.unbind(2)                      # (b, heads, n, c/heads)
        weights = F.softmax(q @ k.mT / (c // self.heads) ** 0.5, dim=-1)
        weights = F.dropout(weights, self.p)
        return self.merge_linear((weights @ v).transpose(1, 2).flatten(2))
