# expect: correct
import torch
import torch.nn as nn
# I think of each COLUMN as one query. So my scores are keys x queries and I normalise down the columns.

class ColumnAttention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.Q = nn.Linear(d, d)
        self.K = nn.Linear(d, d)
        self.V = nn.Linear(d, d)
        self.O = nn.Linear(d, d)

    def forward(self, X):
        b, n, d = X.shape
        hd = d // self.heads
        Q = self.Q(X).view(b, n, self.heads, hd)
        K = self.K(X).view(b, n, self.heads, hd)
        V = self.V(X).view(b, n, self.heads, hd)
        S = torch.einsum('bkhd,bqhd->bkqh', K, Q) / hd ** 0.5
        above = torch.arange(n)[:, None] > torch.arange(n)[None, :]   # key later than query
        S = S.masked_fill(above[None, :, :, None].to(S.device), float('-inf'))
        A = torch.softmax(S, dim=1)                                  # over the keys!
        return self.O(torch.einsum('bkqh,bkhd->bqhd', A, V).reshape(b, n, d))
