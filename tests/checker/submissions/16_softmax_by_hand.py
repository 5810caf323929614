# expect: correct
import torch
from torch import nn


def stable_softmax(scores):
    # subtract the largest one, else exp overflows
    e = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
    return e / e.sum(dim=-1, keepdim=True)


class HandmadeAttention(nn.Module):

    def __init__(self, features, heads, longest):
        super().__init__()
        self.heads = heads
        self.lq, self.lk, self.lv, self.lo = (nn.Linear(features, features) for _ in range(4))
        additive = torch.zeros(longest, longest)
        additive[torch.ones(longest, longest).triu(1) > 0] = -torch.inf
        self.register_buffer('additive', additive)

    def forward(self, sequence):
        n = sequence.shape[1]
        parts = []
        for q, k, v in zip(self.lq(sequence).chunk(self.heads, -1),
                           self.lk(sequence).chunk(self.heads, -1),
                           self.lv(sequence).chunk(self.heads, -1)):
            w = stable_softmax(q.matmul(k.mT) / q.size(-1) ** .5 + self.additive[:n, :n])
            parts.append(w.matmul(v))
        return self.lo(torch.cat(parts, dim=2))
