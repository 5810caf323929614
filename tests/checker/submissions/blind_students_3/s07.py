# expect: correct
# %% [markdown]
# ## Attention exercises: valid lengths + multi-head

# %%
import math
import torch
from torch import nn


def sequence_mask(X, valid_len, value=0.0):
    """Everything behind valid_len becomes `value` (X is 2-d)."""
    maxlen = X.size(1)
    keep = torch.arange(maxlen, device=X.device)[None, :] < valid_len[:, None]
    X = X.clone()
    X[~keep] = value
    return X


def masked_softmax(X, valid_lens):
    # X: (b*h, queries, keys); valid_lens: (b*h,) or (b*h, queries)
    if valid_lens is None:
        return nn.functional.softmax(X, dim=-1)
    shape = X.shape
    if valid_lens.dim() == 1:
        valid_lens = torch.repeat_interleave(valid_lens, shape[1])
    else:
        valid_lens = valid_lens.reshape(-1)
    X = sequence_mask(X.reshape(-1, shape[-1]), valid_lens, value=-1e6)
    return nn.functional.softmax(X.reshape(shape), dim=-1)


# %%
class DotProductAttention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens=None):
        d = queries.shape[-1]
        scores = torch.bmm(queries, keys.transpose(1, 2)) / math.sqrt(d)
        self.attention_weights = masked_softmax(scores, valid_lens)
        return torch.bmm(self.dropout(self.attention_weights), values)


# %%
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
        # (b, n, hid) -> (b, n, h, hid/h) -> (b, h, n, hid/h) -> (b*h, n, hid/h)
        X = X.reshape(X.shape[0], X.shape[1], self.num_heads, -1)
        X = X.permute(0, 2, 1, 3)
        return X.reshape(-1, X.shape[2], X.shape[3])

    def transpose_output(self, X):
        X = X.reshape(-1, self.num_heads, X.shape[1], X.shape[2])
        X = X.permute(0, 2, 1, 3)
        return X.reshape(X.shape[0], X.shape[1], -1)

    def forward(self, queries, keys, values, valid_lens=None):
        q = self.transpose_qkv(self.W_q(queries))
        k = self.transpose_qkv(self.W_k(keys))
        v = self.transpose_qkv(self.W_v(values))
        if valid_lens is not None:
            # every sample appears num_heads times in a row
            valid_lens = torch.repeat_interleave(valid_lens, repeats=self.num_heads, dim=0)
        out = self.attention(q, k, v, valid_lens)
        return self.W_o(self.transpose_output(out))


# %%
att = MultiHeadAttention(100, 5, 0.5)
att.eval()
X = torch.ones((2, 4, 100))
Y = torch.ones((2, 6, 100))
print(att(X, Y, Y, torch.tensor([3, 2])).shape)
