# expect: correct
import torch
import torch.nn as nn


class CausalAttention(nn.Module):

    def __init__(self, d_in, d_out, context_length, dropout, qkv_bias=False):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.dropout = nn.Dropout(dropout)
        future = torch.ones(context_length, context_length).triu(1).bool()
        self.register_buffer("future", future, persistent=False)

    def forward(self, x):
        _, n, _ = x.shape
        q, k, v = self.W_query(x), self.W_key(x), self.W_value(x)
        scores = torch.bmm(q, k.mT)
        scores = scores.masked_fill(self.future[:n, :n], -torch.inf)
        w = torch.softmax(scores * k.shape[-1] ** -0.5, dim=-1)
        return torch.bmm(self.dropout(w), v)


class MultiHeadAttentionWrapper(nn.Module):
    """Runs the heads one after the other and glues the results together."""

    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        self.heads = nn.ModuleList(
            CausalAttention(d_in, d_out, context_length, dropout, qkv_bias)
            for _ in range(num_heads)
        )

    def forward(self, x):
        return torch.cat([head(x) for head in self.heads], dim=-1)


def main():
    torch.manual_seed(1)
    x = torch.rand(2, 5, 3)
    mha = MultiHeadAttentionWrapper(3, 1, context_length=8, dropout=0.0, num_heads=2)
    out = mha(x)
    assert out.shape == (2, 5, 2)
    print(out)


if __name__ == "__main__":
    main()
