# expect: correct
import torch
from torch import nn


class StridedHeads(nn.Module):
    # head i owns features i, i+H, i+2H, ...; splitting and merging agree about it
    def __init__(self, d_model, n_heads, dropout_prob=0.0):
        super().__init__()
        self.H = n_heads
        self.to_queries = nn.Linear(d_model, d_model, bias=False)
        self.to_keys = nn.Linear(d_model, d_model, bias=False)
        self.to_values = nn.Linear(d_model, d_model, bias=False)
        self.unify = nn.Linear(d_model, d_model)
        self.attn_dropout = nn.Dropout(dropout_prob)

    def split(self, t):
        return t.unflatten(2, (-1, self.H)).permute(0, 3, 1, 2)  # b h n hd

    def forward(self, x):
        q, k, v = self.split(self.to_queries(x)), self.split(self.to_keys(x)), self.split(self.to_values(x))
        dots = (q @ k.mT).div(q.shape[-1] ** 0.5)
        att = self.attn_dropout(dots.softmax(-1))
        return self.unify((att @ v).permute(0, 2, 3, 1).flatten(2))
