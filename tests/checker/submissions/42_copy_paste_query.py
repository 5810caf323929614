# expect: key-from-query-weights
import torch
from torch import nn


class TaskThree(nn.Module):
    """Task 3: attention with a causal mask and dropout"""

    def __init__(self, d_in, d_out, context_length, dropout, num_heads):
        super().__init__()
        self.h, self.dh = num_heads, d_out // num_heads
        self.query_weights = nn.Linear(d_in, d_out, bias=False)
        self.key_weights = nn.Linear(d_in, d_out, bias=False)
        self.value_weights = nn.Linear(d_in, d_out, bias=False)
        self.output_weights = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        self.context_length = context_length

    def forward(self, x):
        b, n, _ = x.shape
        # step 1: project
        q = self.query_weights(x)
        k = self.query_weights(x)
        v = self.value_weights(x)
        # step 2: split
        q, k, v = (t.view(b, n, self.h, self.dh).transpose(1, 2) for t in (q, k, v))
        # step 3: scores, mask, softmax
        s = q @ k.transpose(2, 3) * self.dh ** -0.5
        s = s + torch.full((n, n), float("-inf"), device=x.device, dtype=s.dtype).triu(1)
        w = self.dropout(s.softmax(-1))
        # step 4: merge
        return self.output_weights((w @ v).transpose(1, 2).flatten(-2))
