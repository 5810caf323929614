# expect: correct
import torch
import torch.nn as nn


class ColumnAttention(nn.Module):
    '''
    Causal multi-head attention, but every token is a COLUMN like in my linear algebra
    course:  K^T Q instead of Q K^T, so column j of A holds the weights of query j.
    From outside nothing changes, x is (batch, tokens, d_in).
    '''

    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        assert d_out % num_heads == 0
        self.n_h = num_heads
        self.lin = nn.ModuleDict({n: nn.Linear(d_in, d_out, bias=qkv_bias) for n in "qkv"})
        self.lin_out = nn.Linear(d_out, d_out)
        self.do = nn.Dropout(dropout)
        # forbidden: key (row) later than query (column)  -> strictly lower part
        self.register_buffer("forbidden", torch.ones(context_length, context_length).tril(-1) > 0)

    def columns(self, name, x):
        y = self.lin[name](x).transpose(1, 2)                  # b, d_out, t
        return y.reshape(y.shape[0], self.n_h, -1, y.shape[2])  # b, heads, d, t

    def forward(self, x):
        b, t, _ = x.shape
        Q, K, V = (self.columns(n, x) for n in "qkv")
        S = K.transpose(2, 3) @ Q                               # b, heads, key, query
        S = S / K.shape[2] ** 0.5
        S = S.masked_fill(self.forbidden[:t, :t], -torch.inf)
        A = self.do(S.softmax(dim=2))
        Z = V @ A                                               # b, heads, d, query
        Z = Z.reshape(b, -1, t).transpose(1, 2)
        return self.lin_out(Z)
