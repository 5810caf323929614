# expect: wrong-scale
# why: two mistakes: the head axis is never moved before the token axis, so each token attends over its own heads only (scores are (B, T, H, H)), and the scores are divided by head_dim instead of its square root (line 24: `q = self.query(x).view(B, T, self.num_heads, self.head_dim)`; line 28: `scores = torch.matmul(q, k.transpose(-2, -1)) / self.head_dim`)
import torch
import torch.nn as nn


class SelfAttentionLayer(nn.Module):
    """Bidirectional multi-head self attention for the text encoder (no mask,
    all the sentences in the dataset have the same length)."""

    def __init__(self, hidden, num_heads, dropout=0.1):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden // num_heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        B, T, C = x.shape
        # split into heads
        q = self.query(x).view(B, T, self.num_heads, self.head_dim)
        k = self.key(x).view(B, T, self.num_heads, self.head_dim)
        v = self.value(x).view(B, T, self.num_heads, self.head_dim)

        scores = torch.matmul(q, k.transpose(-2, -1)) / self.head_dim
        attn = self.dropout(torch.softmax(scores, dim=-1))
        # print(attn.shape)

        ctx = torch.matmul(attn, v)
        ctx = ctx.reshape(B, T, C)
        return self.out(ctx)


if __name__ == "__main__":
    torch.manual_seed(3)
    layer = SelfAttentionLayer(48, 6)
    x = torch.randn(5, 12, 48)
    y = layer(x)
    print(y.shape)
    y.sum().backward()
    print(layer.query.weight.grad.norm())
