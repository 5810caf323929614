# expect: correct
import torch
from torch import nn


class SelfAttention(nn.Module):
    """
    Wide/narrow self attention, after a blog post on transformers from scratch.

    The scaling is done before the dot product, half of it on the queries and
    half of it on the keys, which keeps the intermediate numbers smaller.
    """

    def __init__(self, emb, heads=4, mask=False):
        super().__init__()
        assert emb % heads == 0
        self.emb, self.heads, self.mask = emb, heads, mask
        self.tokeys = nn.Linear(emb, emb, bias=False)
        self.toqueries = nn.Linear(emb, emb, bias=False)
        self.tovalues = nn.Linear(emb, emb, bias=False)
        self.unifyheads = nn.Linear(emb, emb)

    def forward(self, x):
        b, t, e = x.size()
        h = self.heads
        s = e // h

        keys = self.tokeys(x).view(b, t, h, s)
        queries = self.toqueries(x).view(b, t, h, s)
        values = self.tovalues(x).view(b, t, h, s)

        # fold heads into the batch dimension
        keys = keys.transpose(1, 2).contiguous().view(b * h, t, s)
        queries = queries.transpose(1, 2).contiguous().view(b * h, t, s)
        values = values.transpose(1, 2).contiguous().view(b * h, t, s)

        queries = queries / (s ** (1 / 4))
        keys = keys / (s ** (1 / 4))

        dot = torch.bmm(queries, keys.transpose(1, 2))
        assert dot.size() == (b * h, t, t)

        if self.mask:
            rows, cols = torch.triu_indices(t, t, offset=1)
            dot[:, rows, cols] = float("-inf")

        dot = dot.softmax(dim=2)
        out = torch.bmm(dot, values).view(b, h, t, s)
        out = out.transpose(1, 2).contiguous().view(b, t, s * h)
        return self.unifyheads(out)


if __name__ == "__main__":
    for masked in (False, True):
        print(SelfAttention(40, 5, mask=masked)(torch.rand(3, 7, 40)).shape)
