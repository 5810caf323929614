# expect: padding-on-queries
import torch
import torch.nn as nn
import torch.nn.functional as F


class EncoderAttention(nn.Module):
    def __init__(self, hidden: int, heads: int, p_drop: float = 0.1):
        super().__init__()
        if hidden % heads:
            raise ValueError("hidden must be a multiple of heads")
        self.heads = heads
        self.width = hidden // heads
        self.q = nn.Linear(hidden, hidden)
        self.k = nn.Linear(hidden, hidden)
        self.v = nn.Linear(hidden, hidden)
        self.o = nn.Linear(hidden, hidden)
        self.drop = nn.Dropout(p_drop)

    def _heads(self, t):
        n, l, _ = t.shape
        return t.view(n, l, self.heads, self.width).transpose(1, 2)

    def forward(self, tokens, keep=None):
        # tokens: (n, l, hidden); keep: (n, l) bool, True where there is a real token
        n, l, hidden = tokens.shape
        q, k, v = (self._heads(f(tokens)) for f in (self.q, self.k, self.v))

        logits = q @ k.transpose(-1, -2) * self.width ** -0.5
        if keep is not None:
            logits = logits.masked_fill(~keep[:, None, :, None], -1e9)

        probs = self.drop(F.softmax(logits, dim=-1))
        mixed = probs @ v
        return self.o(mixed.transpose(1, 2).reshape(n, l, hidden))
