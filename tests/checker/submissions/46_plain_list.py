# expect: heads-in-python-list
import torch
import torch.nn as nn


class SingleHead(nn.Module):
    def __init__(self, d_in, d_head, length):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(d_in, d_head, bias=False) for _ in range(3))
        self.register_buffer("m", torch.ones(length, length).tril().bool())

    def forward(self, x):
        n = x.shape[1]
        s = self.to_q(x) @ self.to_k(x).mT / self.to_k.out_features ** 0.5
        return s.masked_fill(~self.m[:n, :n], -torch.inf).softmax(-1) @ self.to_v(x)


class ManyHeads(nn.Module):
    def __init__(self, d_in, d_head, length, num_heads):
        super().__init__()
        self.heads = [SingleHead(d_in, d_head, length) for _ in range(num_heads)]

    def forward(self, x):
        return torch.cat([head(x) for head in self.heads], dim=-1)
