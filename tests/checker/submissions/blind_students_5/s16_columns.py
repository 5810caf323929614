# expect: correct
# why: right though unusual: tokens are columns, the scores are K^T Q, so the softmax over the keys is dim=-2 and the mask is j > i
import torch
import torch.nn as nn

# In our lecture notes tokens are COLUMNS: X is (d, n), so everything is transposed
# Q = Wq X, K = Wk X, V = Wv X ,  A = softmax over the keys (column wise),  Z = V A


class ColumnSelfAttention(nn.Module):
    def __init__(self, d, dk, dv, masked=False):
        super().__init__()
        self.Wq = nn.Parameter(torch.randn(dk, d) / d ** 0.5)
        self.Wk = nn.Parameter(torch.randn(dk, d) / d ** 0.5)
        self.Wv = nn.Parameter(torch.randn(dv, d) / d ** 0.5)
        self.dk = dk
        self.masked = masked

    def forward(self, X):
        Q, K, V = self.Wq @ X, self.Wk @ X, self.Wv @ X
        S = K.transpose(-2, -1) @ Q / self.dk ** 0.5    # S[j, i]: key j, query i
        if self.masked:
            n = S.shape[-1]
            j = torch.arange(n)[:, None]
            i = torch.arange(n)[None, :]
            S = S.masked_fill(j > i, float("-inf"))
        A = S.softmax(dim=-2)
        return V @ A


X = torch.randn(2, 6, 4)   # batch of 2, d=6, n=4 tokens
att = ColumnSelfAttention(6, 5, 3, masked=True)
Z = att(X)
print(Z.shape)  # (2, 3, 4)
