# expect: mask-after-softmax
import torch
import torch.nn as nn


class MaskedHead(nn.Module):
    def __init__(self, n_in, n_head_dim, max_context=256):
        super().__init__()
        self.key = nn.Linear(n_in, n_head_dim, bias=False)
        self.query = nn.Linear(n_in, n_head_dim, bias=False)
        self.value = nn.Linear(n_in, n_head_dim, bias=False)
        self.scale = n_head_dim ** -0.5
        self.register_buffer("visible", torch.tril(torch.ones(max_context, max_context)))

    def forward(self, x):
        steps = x.size(1)
        scores = self.query(x) @ self.key(x).transpose(-2, -1) * self.scale
        attn = scores.softmax(dim=-1)
        attn = attn * self.visible[:steps, :steps]   # no peeking ahead
        return attn @ self.value(x)
