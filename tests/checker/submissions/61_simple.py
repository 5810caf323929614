# expect: correct
import math
import torch
from torch import nn


class SimpleSelfAttention(nn.Module):
    """One head, no mask. x: (batch, seq, dim) -> (batch, seq, dim)"""

    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.to_query = nn.Linear(dim, dim)
        self.to_key = nn.Linear(dim, dim)
        self.to_value = nn.Linear(dim, dim)

    def forward(self, x):
        query = self.to_query(x)
        key = self.to_key(x)
        value = self.to_value(x)

        similarity = torch.bmm(query, key.permute(0, 2, 1)) / math.sqrt(self.dim)
        weights = torch.softmax(similarity, dim=2)
        return torch.bmm(weights, value)
