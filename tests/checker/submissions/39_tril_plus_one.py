# expect: mask-off-by-one
import numpy as np
import torch
from torch import nn


def causal_mask(size):
    "1 where attention is allowed"
    return torch.from_numpy(np.tril(np.ones((size, size)), k=1).astype("uint8"))


class DecoderAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.per_head = width // heads
        self.q_lin = nn.Linear(width, width)
        self.k_lin = nn.Linear(width, width)
        self.v_lin = nn.Linear(width, width)
        self.out_lin = nn.Linear(width, width)

    def forward(self, input):
        bs, qlen, dim = input.size()
        shape = lambda x: x.view(bs, -1, self.heads, self.per_head).transpose(1, 2)
        unshape = lambda x: x.transpose(1, 2).contiguous().view(bs, -1, dim)
        q = shape(self.q_lin(input)) / self.per_head ** 0.5
        scores = torch.matmul(q, shape(self.k_lin(input)).transpose(2, 3))
        scores = scores.masked_fill(causal_mask(qlen).to(input.device) == 0, -float("inf"))
        return self.out_lin(unshape(torch.matmul(scores.softmax(-1), shape(self.v_lin(input)))))
