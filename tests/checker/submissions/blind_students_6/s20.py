# expect: correct
# why: right: qkv laid out per head (NeoX), clipped relative bias, additive mask made from 1/0
import torch
import torch.nn as nn


class RelPosAttention(nn.Module):
    """Bidirectional self-attention with a learned bias per (head, clipped distance)."""

    def __init__(self, width, nheads, max_dist=16, p=0.0):
        super().__init__()
        assert width % nheads == 0
        self.nheads = nheads
        self.hd = width // nheads
        self.max_dist = max_dist
        self.norm_factor = self.hd ** 0.5
        self.query_key_value = nn.Linear(width, 3 * width)
        self.dense = nn.Linear(width, width)
        self.rel_bias = nn.Embedding(2 * max_dist + 1, nheads)
        nn.init.normal_(self.rel_bias.weight, std=0.02)
        self.p = nn.Dropout(p)

    def bias(self, n, device):
        pos = torch.arange(n, device=device)
        rel = (pos[None, :] - pos[:, None]).clamp(-self.max_dist, self.max_dist) + self.max_dist
        return self.rel_bias(rel).permute(2, 0, 1)[None]       # 1, heads, n, n

    def forward(self, x, mask=None):
        # mask: (batch, n), 1 = keep, 0 = pad
        b, n, w = x.shape
        # neox layout: every head owns a [q|k|v] slice
        qkv = self.query_key_value(x).view(b, n, self.nheads, 3 * self.hd).transpose(1, 2)
        q, k, v = qkv.split(self.hd, dim=-1)

        logits = torch.matmul(q, k.transpose(-1, -2)) / self.norm_factor
        logits = logits + self.bias(n, x.device)
        if mask is not None:
            logits = logits + (1.0 - mask[:, None, None, :].to(logits.dtype)) * -1e9
        # softmax in fp32 for stability, then back
        probs = torch.softmax(logits, dim=-1, dtype=torch.float32).to(v.dtype)
        probs = self.p(probs)
        ctx = torch.matmul(probs, v).transpose(1, 2).contiguous().view(b, n, w)
        return self.dense(ctx)
