# expect: softmax-no-keepdim
import torch
import torch.nn as nn


def my_softmax(x):
    # subtract the maximum so that exp() can't overflow
    x = x - x.max(dim=-1, keepdim=True).values
    ex = torch.exp(x)
    return ex / ex.sum(dim=-1)


class CausalHead(nn.Module):
    """One causal attention head for one sequence: (num_tokens, d_in) -> (num_tokens, d_out)"""

    def __init__(self, d_in, d_out, context_length, dropout, qkv_bias=False):
        super().__init__()
        self.d_out = d_out
        self.W_q = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_k = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_v = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.ones(context_length, context_length).triu(diagonal=1).bool())

    def forward(self, x):
        num_tokens = x.shape[0]
        q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)
        omega = q @ k.T / self.d_out ** 0.5
        omega = omega.masked_fill(self.mask[:num_tokens, :num_tokens], float("-inf"))
        alpha = self.dropout(my_softmax(omega))
        return alpha @ v


class AllHeads(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        self.heads = nn.ModuleList(
            [CausalHead(d_in, d_out, context_length, dropout, qkv_bias) for _ in range(num_heads)]
        )

    def forward(self, x):
        return torch.cat([h(x) for h in self.heads], dim=-1)
