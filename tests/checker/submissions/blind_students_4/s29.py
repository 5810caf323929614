# expect: correct
"""Self-attention in the column convention of our linear algebra course.

A sentence is a matrix X of shape (features, positions): one COLUMN per token.
So Q = W_Q X, the scores are S = K^T Q (keys down, queries across), and the
softmax normalises every column.
"""
import torch
from torch import nn


class ColumnAttention(nn.Module):
    def __init__(self, features, heads):
        super().__init__()
        if features % heads != 0:
            raise ValueError(f"{features} features do not fit {heads} heads")
        self.heads = heads
        self.d = features // heads
        init = lambda: nn.Parameter(torch.randn(features, features) * features ** -0.5)
        self.W_Q, self.W_K, self.W_V, self.W_O = init(), init(), init(), init()

    def forward(self, X, causal=True):
        # X: (batch, features, positions)
        B, F_, N = X.shape
        Q = (self.W_Q @ X).view(B, self.heads, self.d, N)
        K = (self.W_K @ X).view(B, self.heads, self.d, N)
        V = (self.W_V @ X).view(B, self.heads, self.d, N)

        S = K.transpose(-2, -1) @ Q / self.d ** 0.5      # (B, heads, key, query)
        if causal:
            # a key below the diagonal comes after the query
            later = torch.tril(torch.ones(N, N, device=X.device), diagonal=-1) > 0
            S = S.masked_fill(later, float("-inf"))
        A = torch.softmax(S, dim=-2)
        Z = (V @ A).reshape(B, F_, N)
        return self.W_O @ Z


if __name__ == "__main__":
    X = torch.randn(2, 12, 5)
    layer = ColumnAttention(12, 3)
    print(layer(X).shape)
    print(layer(X, causal=False).shape)
