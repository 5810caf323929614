# expect: padding-in-other-texts
# why: Line 43: valid_lens.repeat(num_heads) gives [l0,l1,l0,l1,...] but to_heads folds batch-major (all heads of sample 0 first), so repeat_interleave is needed; heads of a sample are masked with the length of another sample.
import math
import torch
from torch import nn

#@save-like helpers from the textbook, rewritten for my notebook


def length_mask(valid_lens, n_keys):
    """(batch,) -> (batch, 1, n_keys), True where the key is a real token"""
    steps = torch.arange(n_keys, device=valid_lens.device)
    return (steps[None, :] < valid_lens[:, None]).unsqueeze(1)


def to_heads(X, num_heads):
    b, n, d = X.shape
    X = X.reshape(b, n, num_heads, d // num_heads).permute(0, 2, 1, 3)
    return X.reshape(b * num_heads, n, d // num_heads)


def from_heads(X, num_heads):
    bh, n, d = X.shape
    X = X.reshape(bh // num_heads, num_heads, n, d).permute(0, 2, 1, 3)
    return X.reshape(bh // num_heads, n, num_heads * d)


class MultiHeadAttention(nn.Module):
    def __init__(self, num_hiddens, num_heads, dropout=0.1, use_bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.dropout = nn.Dropout(dropout)
        self.W_q = nn.LazyLinear(num_hiddens, bias=use_bias)
        self.W_k = nn.LazyLinear(num_hiddens, bias=use_bias)
        self.W_v = nn.LazyLinear(num_hiddens, bias=use_bias)
        self.W_o = nn.LazyLinear(num_hiddens, bias=use_bias)

    def forward(self, queries, keys, values, valid_lens=None):
        q = to_heads(self.W_q(queries), self.num_heads)
        k = to_heads(self.W_k(keys), self.num_heads)
        v = to_heads(self.W_v(values), self.num_heads)
        scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[-1])
        if valid_lens is not None:
            # one length per (sample, head) pair
            lens = valid_lens.repeat(self.num_heads)
            scores = scores.masked_fill(~length_mask(lens, k.shape[1]), -1e6)
        self.attention_weights = scores.softmax(dim=-1)
        out = torch.bmm(self.dropout(self.attention_weights), v)
        return self.W_o(from_heads(out, self.num_heads))


num_hiddens, num_heads = 100, 5
attention = MultiHeadAttention(num_hiddens, num_heads, 0.5)
attention.eval()
batch_size, num_queries, num_kvpairs = 2, 4, 6
valid_lens = torch.tensor([3, 2])
X = torch.ones((batch_size, num_queries, num_hiddens))
Y = torch.ones((batch_size, num_kvpairs, num_hiddens))
print(attention(X, Y, Y, valid_lens).shape)  # (2, 4, 100)
