# expect: correct
import torch
from torch import nn

D = 36          # model width
T_MAX = 24      # longest text


class SmallHead(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.to_key = nn.Linear(D, size, bias=False)
        self.to_query = nn.Linear(D, size, bias=False)
        self.to_value = nn.Linear(D, size, bias=False)
        not_yet = torch.ones(T_MAX, T_MAX, dtype=torch.bool).triu(1)
        self.register_buffer("not_yet", not_yet)

    def forward(self, text):
        steps = text.shape[-2]
        affinity = self.to_query(text) @ self.to_key(text).transpose(1, 2)
        affinity = affinity / (self.to_key.out_features ** 0.5)
        affinity = affinity.masked_fill(self.not_yet[:steps, :steps], -torch.inf)
        return affinity.softmax(-1) @ self.to_value(text)


class HeadsInAList(nn.Module):
    def __init__(self, how_many, size):
        super().__init__()
        self.small = nn.ModuleList(SmallHead(size) for _ in range(how_many))
        self.mixer = nn.Linear(size * how_many, D)

    def forward(self, text):
        pieces = [one(text) for one in self.small]
        return self.mixer(torch.concat(pieces, dim=-1))
