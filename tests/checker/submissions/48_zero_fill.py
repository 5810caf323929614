# expect: mask-fill-not-inf
import torch
from torch import nn


class TrilAttention(nn.Module):
    def __init__(self, in_features, out_features, max_seq):
        super().__init__()
        self.query = nn.Linear(in_features, out_features)
        self.key = nn.Linear(in_features, out_features)
        self.value = nn.Linear(in_features, out_features)
        self.register_buffer("lower", torch.tril(torch.ones(max_seq, max_seq)))

    def forward(self, x):
        t = x.size(1)
        s = torch.bmm(self.query(x), self.key(x).transpose(1, 2)) / (self.key.out_features ** 0.5)
        s = s * self.lower[:t, :t]          # no looking ahead
        return torch.bmm(torch.softmax(s, dim=2), self.value(x))
