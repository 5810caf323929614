# expect: keys-viewed-not-transposed
import torch
import torch.nn as nn
from torch import Tensor


class MultiHeadAttention(nn.Module):
    """Causal multi-head attention with weight splits.

    Shapes used in the comments: b = batch, t = tokens, h = heads, e = size of one head
    """

    def __init__(self, d_in: int, d_out: int, context_length: int, dropout: float,
                 num_heads: int, qkv_bias: bool = False) -> None:
        super().__init__()
        assert d_out % num_heads == 0
        self.h, self.e = num_heads, d_out // num_heads
        self.W_q = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_k = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_v = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_o = nn.Linear(d_out, d_out)
        self.drop = nn.Dropout(p=dropout)
        self.register_buffer(
            "mask",
            torch.triu(torch.ones((context_length, context_length)), diagonal=1).bool(),
        )

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = self.W_q(x).view(b, t, self.h, self.e).transpose(1, 2)  # b h t e
        k = self.W_k(x).view(b, t, self.h, self.e).transpose(1, 2)  # b h t e
        v = self.W_v(x).view(b, t, self.h, self.e).transpose(1, 2)  # b h t e

        k_t = k.reshape(b, self.h, self.e, t)                       # b h e t
        scores = torch.matmul(q, k_t) / (self.e ** 0.5)             # b h t t
        scores = scores.masked_fill(self.mask[:t, :t], float("-inf"))

        w = self.drop(torch.softmax(scores, dim=-1))
        y = torch.matmul(w, v)                                      # b h t e
        y = y.transpose(1, 2).reshape(b, t, self.h * self.e)        # b t d_out
        return self.W_o(y)
