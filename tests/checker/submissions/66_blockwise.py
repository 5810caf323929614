# expect: breaks-with-length
import math
import torch
import torch.nn as nn


class BlockwiseAttention(nn.Module):
    """Causal attention that works on `block` queries at a time to keep the score matrix small."""

    def __init__(self, d, n_head, block=16):
        super().__init__()
        self.n_head, self.d_head, self.block = n_head, d // n_head, block
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.proj = nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = [
            z.reshape(b, t, self.n_head, self.d_head).transpose(1, 2)
            for z in self.qkv(x).split(d, dim=-1)
        ]
        key_pos = torch.arange(t, device=x.device)

        pieces = []
        for start in range(0, t, self.block):
            q_blk = q[:, :, start:start + self.block]
            s = q_blk @ k.mT / math.sqrt(self.d_head)
            q_pos = torch.arange(q_blk.shape[2], device=x.device)
            hidden = key_pos[None, :] > q_pos[:, None]
            s = s.masked_fill(hidden, float("-inf"))
            pieces.append(s.softmax(dim=-1) @ v)

        y = torch.cat(pieces, dim=2)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))
