# expect: weights-transposed
# why: Line 42: the second einsum names the weight axes 'bhkq' although they are (b,h,q,k), so values are mixed with the transposed weight matrix. Shows always (eval, training, with and without mask).
"""
Deep Learning, Homework 4, Problem 2
Multi-head self attention with einsum (no for-loops allowed!)
"""
import torch
from torch import nn, einsum


class MultiHeadSelfAttention(nn.Module):
    def __init__(self, dim, heads=8, dim_head=64, dropout=0.0):
        super().__init__()
        inner_dim = heads * dim_head
        self.heads = heads
        self.scale = dim_head ** -0.5

        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_k = nn.Linear(dim, inner_dim, bias=False)
        self.to_v = nn.Linear(dim, inner_dim, bias=False)
        self.to_out = nn.Linear(inner_dim, dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        """
        x:    (b, n, dim)
        mask: (b, n) bool, True where there is a real token
        """
        b, n, _ = x.shape
        h = self.heads

        q = self.to_q(x).view(b, n, h, -1)
        k = self.to_k(x).view(b, n, h, -1)
        v = self.to_v(x).view(b, n, h, -1)

        scores = einsum('bqhd,bkhd->bhqk', q, k) * self.scale
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], float('-inf'))

        attn = scores.softmax(dim=-1)
        attn = self.drop(attn)

        # weighted sum over the keys
        out = einsum('bhkq,bkhd->bqhd', attn, v)
        out = out.reshape(b, n, -1)
        return self.to_out(out)


if __name__ == '__main__':
    torch.manual_seed(0)
    attn = MultiHeadSelfAttention(32, heads=4, dim_head=8)
    x = torch.randn(2, 10, 32)
    m = torch.ones(2, 10).bool()
    m[1, 7:] = False
    y = attn(x, m)
    print(y.shape)
    assert y.shape == x.shape
