# expect: mask-result-dropped
import math
import torch
from torch import nn


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.to_qkv = nn.Linear(config.n_embd, config.n_embd * 3)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        longest = config.block_size
        self.register_buffer("visible", torch.ones(longest, longest).tril())     # 1 = may be seen

    def forward(self, x):
        batch, time, width = x.shape
        cut = lambda t: t.view(batch, time, self.n_head, -1).transpose(1, 2)
        q, k, v = map(cut, self.to_qkv(x).chunk(3, dim=2))
        scores = q @ k.transpose(2, 3) / math.sqrt(width // self.n_head)
        # nobody sees the future
        scores.masked_fill(self.visible[:time, :time] == 0, float("-inf"))
        weights = scores.softmax(dim=-1)
        return self.c_proj((weights @ v).transpose(1, 2).reshape(batch, time, width))
