# expect: padding-in-other-texts
# why: Line 59: lengths are tiled with repeat (order H,B) but the heads are folded as (B,H), needs repeat_interleave; sentences get each other's lengths. Shows only when valid_lens is passed, batch > 1, more than one head and the lengths differ.
import math
import torch
from torch import nn


def masked_softmax(X, valid_lens):
    """Softmax over the last axis, positions >= valid_len get (almost) zero weight.

    X: (n, queries, keys), valid_lens: (n,) or None
    """
    if valid_lens is None:
        return torch.softmax(X, dim=-1)
    maxlen = X.size(-1)
    keep = torch.arange(maxlen, device=X.device)[None, :] < valid_lens[:, None]
    X = X.masked_fill(~keep[:, None, :], -1e6)
    return torch.softmax(X, dim=-1)


class DotProductAttention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens=None):
        d = queries.shape[-1]
        scores = torch.bmm(queries, keys.transpose(1, 2)) / math.sqrt(d)
        self.attention_weights = masked_softmax(scores, valid_lens)
        return torch.bmm(self.dropout(self.attention_weights), values)


class MultiHeadAttention(nn.Module):
    def __init__(self, num_hiddens, num_heads, dropout=0.0, bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.attention = DotProductAttention(dropout)
        self.W_q = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_k = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_v = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=bias)

    def transpose_qkv(self, X):
        # (batch, len, hidden) -> (batch * heads, len, hidden / heads)
        X = X.reshape(X.shape[0], X.shape[1], self.num_heads, -1)
        X = X.permute(0, 2, 1, 3)
        return X.reshape(-1, X.shape[2], X.shape[3])

    def transpose_output(self, X):
        X = X.reshape(-1, self.num_heads, X.shape[1], X.shape[2])
        X = X.permute(0, 2, 1, 3)
        return X.reshape(X.shape[0], X.shape[1], -1)

    def forward(self, queries, keys, values, valid_lens=None):
        queries = self.transpose_qkv(self.W_q(queries))
        keys = self.transpose_qkv(self.W_k(keys))
        values = self.transpose_qkv(self.W_v(values))

        if valid_lens is not None:
            # every head needs its own copy of the lengths
            valid_lens = valid_lens.repeat(self.num_heads)

        output = self.attention(queries, keys, values, valid_lens)
        return self.W_o(self.transpose_output(output))


if __name__ == '__main__':
    num_hiddens, num_heads = 100, 5
    attention = MultiHeadAttention(num_hiddens, num_heads, 0.5)
    batch_size, num_queries, num_kvpairs = 2, 4, 6
    valid_lens = torch.tensor([3, 2])
    X = torch.ones((batch_size, num_queries, num_hiddens))
    Y = torch.ones((batch_size, num_kvpairs, num_hiddens))
    print(attention(X, Y, Y, valid_lens).shape)
