# expect: padding-on-queries
# why: Line 43: the padding mask (batch, seq) is unsqueezed to (batch,1,seq,1), so it masks the rows of padding queries and not the padding keys; real tokens still attend to [PAD], and logits change when padding is appended.
# HW3 - Text classification with a Transformer encoder
# student id: 20xxxxxx
import math
import torch
from torch import nn
import numpy as np

PAD = 0


def get_pad_mask(ids):
    """1 for real tokens, 0 for [PAD]"""
    return (ids != PAD).long()


class SelfAttention(nn.Module):
    def __init__(self, hidden, n_heads, p=0.1):
        super(SelfAttention, self).__init__()
        assert hidden % n_heads == 0, "hidden must be a multiple of n_heads"
        self.n_heads = n_heads
        self.head_dim = hidden // n_heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, hidden)
        self.drop = nn.Dropout(p)

    def split(self, t):
        b, n, _ = t.size()
        t = t.view(b, n, self.n_heads, self.head_dim)
        return t.permute(0, 2, 1, 3)

    def forward(self, x, mask=None):
        q = self.split(self.query(x))
        k = self.split(self.key(x))
        v = self.split(self.value(x))

        scores = torch.matmul(q, k.transpose(-1, -2))
        scores = scores / math.sqrt(self.head_dim)

        if mask is not None:
            # mask: (batch, seq) -> broadcast over heads and over the last dim of the scores
            mask = mask.unsqueeze(1).unsqueeze(-1)
            scores = scores.masked_fill(mask == 0, -1e9)

        probs = self.drop(torch.softmax(scores, dim=-1))
        ctx = torch.matmul(probs, v)
        ctx = ctx.permute(0, 2, 1, 3).contiguous()
        ctx = ctx.view(ctx.size(0), ctx.size(1), -1)
        return self.out(ctx)


class EncoderLayer(nn.Module):
    def __init__(self, hidden, n_heads, ff, p=0.1):
        super().__init__()
        self.att = SelfAttention(hidden, n_heads, p)
        self.n1 = nn.LayerNorm(hidden)
        self.n2 = nn.LayerNorm(hidden)
        self.ff = nn.Sequential(nn.Linear(hidden, ff), nn.GELU(), nn.Linear(ff, hidden))
        self.drop = nn.Dropout(p)

    def forward(self, x, mask):
        x = self.n1(x + self.drop(self.att(x, mask)))
        return self.n2(x + self.drop(self.ff(x)))


class Classifier(nn.Module):
    def __init__(self, vocab, hidden=64, n_heads=4, layers=2, n_classes=2, max_len=128):
        super().__init__()
        self.tok = nn.Embedding(vocab, hidden, padding_idx=PAD)
        self.pos = nn.Embedding(max_len, hidden)
        self.layers = nn.ModuleList([EncoderLayer(hidden, n_heads, hidden * 4) for _ in range(layers)])
        self.fc = nn.Linear(hidden, n_classes)

    def forward(self, ids):
        mask = get_pad_mask(ids)
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1), device=ids.device))
        for l in self.layers:
            x = l(x, mask)
        m = mask.unsqueeze(-1).float()
        x = (x * m).sum(1) / m.sum(1)
        return self.fc(x)


if __name__ == "__main__":
    ids = torch.randint(1, 100, (3, 12))
    ids[0, 8:] = PAD
    ids[2, 5:] = PAD
    print(Classifier(100)(ids).shape)   # torch.Size([3, 2])
