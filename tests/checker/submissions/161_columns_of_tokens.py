# expect: correct
"""Attention in the column convention of my linear algebra class.

Tokens are COLUMNS here: x has shape (batch, d_in, T), the output (batch, d_out, T).
"""
import torch
import torch.nn as nn


class ColumnAttention(nn.Module):
    """Causal multi-head attention on column vectors.

    scores[j, i] = <k_j, q_i>, so every column i is the distribution of query i.
    """

    def __init__(self, heads, d_out, d_in, *, attn_dropout=0.0):
        super().__init__()
        assert d_out % heads == 0
        self.heads = heads
        self.Wq = nn.Parameter(torch.randn(d_out, d_in) * d_in ** -0.5)
        self.Wk = nn.Parameter(torch.randn(d_out, d_in) * d_in ** -0.5)
        self.Wv = nn.Parameter(torch.randn(d_out, d_in) * d_in ** -0.5)
        self.Wo = nn.Parameter(torch.randn(d_out, d_out) * d_out ** -0.5)
        self.attn_dropout = nn.Dropout(attn_dropout)

    def forward(self, x):
        B, _, T = x.shape
        Q = (self.Wq @ x).view(B, self.heads, -1, T)
        K = (self.Wk @ x).view(B, self.heads, -1, T)
        V = (self.Wv @ x).view(B, self.heads, -1, T)

        S = K.transpose(-2, -1) @ Q / Q.shape[-2] ** 0.5      # (B, heads, T keys, T queries)
        later = torch.ones(T, T, dtype=torch.bool, device=x.device).tril(-1)
        S = S.masked_fill(later, float("-inf"))
        A = S.softmax(dim=-2)
        Z = V @ self.attn_dropout(A)
        return self.Wo @ Z.reshape(B, -1, T)


if __name__ == "__main__":
    torch.manual_seed(11)
    layer = ColumnAttention(2, 4, 3)
    x = torch.randn(2, 3, 6)
    print(layer(x).shape)
