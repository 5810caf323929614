# expect: dropout-in-eval
import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHeadCausalAttention(nn.Module):
    """Causal multi-head attention; dropout rate is for the attention weights.

    I pass the context length in the forward implicitly (mask is built on the fly),
    so there's no context_length argument.
    """

    def __init__(self, d_in, d_out, dropout=0.1, num_heads=2, qkv_bias=False):
        super().__init__()
        assert d_out % num_heads == 0
        self.num_heads = num_heads
        self.dropout = dropout
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)

    def split(self, t):
        return t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def forward(self, x):
        T = x.shape[1]
        q, k, v = (self.split(w(x)) for w in (self.W_query, self.W_key, self.W_value))
        mask = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
        ctx = self.attend(q, k, v, mask)
        return self.out_proj(ctx.transpose(1, 2).flatten(2))

    def attend(self, q, k, v, mask):
        scores = torch.matmul(q, k.transpose(-2, -1)) / (q.size(-1) ** 0.5)
        weights = F.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1)
        weights = F.dropout(weights, self.dropout)
        return weights @ v


if __name__ == "__main__":
    torch.manual_seed(123)
    m = MultiHeadCausalAttention(3, 4)
    print(m(torch.rand(2, 6, 3)).shape)
