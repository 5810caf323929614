# expect: wrong
import math
import torch
from torch import nn


class FlattenedAttention(nn.Module):
    def __init__(self, features: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q_net = nn.Linear(features, features)
        self.k_net = nn.Linear(features, features)
        self.v_net = nn.Linear(features, features)
        self.o_net = nn.Linear(features, features)

    def forward(self, x):
        shape = x.shape
        flat = x.reshape(-1, shape[-1])                       # all tokens in one long list
        def heads(t):
            return t.view(flat.shape[0], self.heads, -1).transpose(0, 1)
        q, k, v = heads(self.q_net(flat)), heads(self.k_net(flat)), heads(self.v_net(flat))
        w = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]), dim=-1)
        return self.o_net((w @ v).transpose(0, 1).reshape(shape))
