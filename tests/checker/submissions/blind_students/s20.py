# expect: mask-not-sliced
# why: the full context_length mask is used for every input, so any sequence shorter than context_length crashes.
import torch
import torch.nn as nn


class Attention(nn.Module):
    def __init__(self, d_in, d_out, context_length, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.d_head = d_out // num_heads
        self.Wq = nn.Linear(d_in, d_out, bias=False)
        self.Wk = nn.Linear(d_in, d_out, bias=False)
        self.Wv = nn.Linear(d_in, d_out, bias=False)
        self.proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        mask = torch.full((context_length, context_length), float("-inf"))
        self.register_buffer("mask", torch.triu(mask, diagonal=1))

    def heads(self, t):
        return t.unflatten(2, (self.num_heads, self.d_head)).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.heads(self.Wq(x)), self.heads(self.Wk(x)), self.heads(self.Wv(x))
        att = q @ k.transpose(-1, -2) / self.d_head ** 0.5
        att = att + self.mask
        att = self.dropout(att.softmax(dim=-1))
        return self.proj((att @ v).transpose(1, 2).flatten(2))


if __name__ == "__main__":
    CTX = 8
    data = torch.randn(4, CTX, 10)
    a = Attention(10, 12, CTX, 3)
    print(a(data).shape)
