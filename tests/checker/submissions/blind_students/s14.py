# expect: split-without-transpose, merge-without-transpose, missing-scale
# why: q, k, v are viewed straight into (b, heads, n, head_dim), the result is viewed straight back, and the scores are never divided by sqrt(head_dim).
import torch
import torch.nn as nn
import torch.nn.functional as F


class SelfAttention(nn.Module):
    def __init__(self, emb_size, heads, mask=True):
        super(SelfAttention, self).__init__()
        self.emb_size = emb_size
        self.heads = heads
        self.mask = mask
        self.toqueries = nn.Linear(emb_size, emb_size, bias=False)
        self.tokeys = nn.Linear(emb_size, emb_size, bias=False)
        self.tovalues = nn.Linear(emb_size, emb_size, bias=False)
        self.unifyheads = nn.Linear(emb_size, emb_size)

    def forward(self, x):
        b, n, e = x.shape
        h = self.heads
        s = e // h

        queries = self.toqueries(x).view(b, h, n, s)
        keys = self.tokeys(x).view(b, h, n, s)
        values = self.tovalues(x).view(b, h, n, s)

        dot = torch.einsum('bhid,bhjd->bhij', queries, keys)

        if self.mask:
            i, j = torch.triu_indices(n, n, offset=1)
            dot[:, :, i, j] = float('-inf')

        dot = F.softmax(dot, dim=3)
        out = torch.einsum('bhij,bhjd->bhid', dot, values)
        out = out.contiguous().view(b, n, e)
        return self.unifyheads(out)


if __name__ == '__main__':
    x = torch.randn(4, 10, 30)
    print(SelfAttention(30, 5)(x).size())
