# expect: correct
import torch
import torch.nn as nn


class CachedSelfAttention(nn.Module):
    """Causal attention. Pass `past` (k, v) from an earlier call to go on from there."""

    def __init__(self, size, heads):
        super().__init__()
        self.heads = heads
        self.dk = size // heads
        self.qkv = nn.Linear(size, size * 3)
        self.out = nn.Linear(size, size)

    def forward(self, x, past=None):
        bs, new, size = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q = q.view(bs, new, self.heads, self.dk).permute(0, 2, 1, 3)
        k = k.view(bs, new, self.heads, self.dk).permute(0, 2, 1, 3)
        v = v.view(bs, new, self.heads, self.dk).permute(0, 2, 1, 3)

        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)
        total = k.shape[2]

        att = (q @ k.transpose(2, 3)) / self.dk ** 0.5
        # query number i of this call sits at absolute position total - new + i
        allowed = torch.ones(new, total, dtype=torch.bool, device=x.device).tril(total - new)
        att = att.masked_fill(allowed.logical_not(), torch.finfo(att.dtype).min)
        att = torch.softmax(att, dim=-1)

        y = (att @ v).permute(0, 2, 1, 3).reshape(bs, new, size)
        return self.out(y), (k, v)
