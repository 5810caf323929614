# expect: heads-in-python-list
# कई हेड एक साथ (wrapper) - अभ्यास 3.6
import torch
import torch.nn as nn


class Head(nn.Module):
    """एक causal हेड"""

    def __init__(self, d_in, d_out, context_length, dropout, qkv_bias=False):
        super().__init__()
        self.W_q = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_k = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_v = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1))

    def forward(self, x):
        b, T, d = x.shape
        q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)
        s = q @ k.transpose(1, 2)
        # आगे के टोकन छिपाओ
        s.masked_fill_(self.mask.bool()[:T, :T], -torch.inf)
        w = torch.softmax(s / k.shape[-1] ** 0.5, dim=-1)
        return self.dropout(w) @ v


class SabHeads(nn.Module):
    """num_heads हेड चलाओ, नतीजे जोड़ो, फिर एक linear परत।"""

    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        self.heads = [Head(d_in, d_out, context_length, dropout, qkv_bias) for _ in range(num_heads)]
        self.proj = nn.Linear(num_heads * d_out, num_heads * d_out)

    def forward(self, x):
        z = torch.cat([head(x) for head in self.heads], dim=-1)
        return self.proj(z)


if __name__ == "__main__":
    torch.manual_seed(123)
    x = torch.rand(2, 6, 3)
    m = SabHeads(3, 2, 6, 0.0, num_heads=2)
    print(m(x).shape)  # (2, 6, 4)
