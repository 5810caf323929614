# expect: correct
import copy
import math
import torch
from torch import nn


def dot_attention(q, k, v, keep=None, drop=nn.Identity()):
    s = (q @ k.mT).div(math.sqrt(q.shape[-1]))
    if keep is not None:
        s = s + (keep == 0) * -1e9          # 0 in the mask = may not be seen
    w = torch.softmax(s, dim=3)
    return drop(w) @ v, w


class ClonedLayers(nn.Module):
    """Four copies of one Linear: three on the way in, one on the way out."""

    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        if d_model % h:
            raise ValueError("h must divide d_model")
        self.h, self.width = h, d_model // h
        template = nn.Linear(d_model, d_model)
        self.linears = nn.ModuleList([copy.deepcopy(template) for _ in "qkvo"])
        self.last_weights = None
        self.drop = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        if mask is not None and mask.dim() == 3:
            mask = mask[:, None]             # the same for every head
        into = []
        for linear, source in zip(self.linears, [query, key, value]):
            into.append(linear(source).reshape(len(source), source.shape[1], self.h, self.width).permute(0, 2, 1, 3))
        mixed, self.last_weights = dot_attention(*into, keep=mask, drop=self.drop)
        return self.linears[3](mixed.permute(0, 2, 1, 3).reshape(query.shape))
