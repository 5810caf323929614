# expect: correct
# why: right though unusual: scores are k q^T with softmax over the key rows, d**-0.25 on q and k
import torch
import torch.nn as nn


class SelfAttn(nn.Module):
    """Multi-head self attention.

    I keep keys on the rows and queries on the columns of the score matrix
    (that is how I drew it on paper), so the softmax runs over the rows.
    """

    def __init__(self, dim, heads, causal=False):
        super().__init__()
        assert dim % heads == 0
        self.heads = heads
        self.dh = dim // heads
        self.causal = causal
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim)

    def forward(self, x):
        B, T, _ = x.shape
        s = self.dh ** -0.25
        # put a part of the 1/sqrt(d) on each side, keeps numbers smaller
        q = self.wq(x).view(B, T, self.heads, self.dh).transpose(1, 2) * s
        k = self.wk(x).view(B, T, self.heads, self.dh).transpose(1, 2) * s
        v = self.wv(x).view(B, T, self.heads, self.dh).transpose(1, 2)

        kq = k @ q.transpose(-2, -1)          # (B, heads, T_key, T_query)
        if self.causal:
            below = torch.ones(T, T, dtype=torch.bool, device=x.device).tril(-1)
            kq = kq.masked_fill(below, float("-inf"))   # key index > query index
        a = kq.softmax(dim=-2)
        y = a.transpose(-2, -1) @ v
        y = y.transpose(1, 2).reshape(B, T, self.heads * self.dh)
        return self.wo(y)
