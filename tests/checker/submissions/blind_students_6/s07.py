# expect: fails-at-some-lengths
# why: keys and values are reshaped with the query's length, so it crashes when lengths differ
import torch
import torch.nn as nn
import torch.nn.functional as F
from math import sqrt


class CrossAttention(nn.Module):
    '''
    Cross attention for the seq2seq translation task.
    The decoder states x ask (query), the encoder output memory answers (key, value).

    x:      (batch, tgt_len, dim)
    memory: (batch, src_len, dim)
    '''

    def __init__(self, dim, n_heads, p_drop=0.1):
        super(CrossAttention, self).__init__()
        assert dim % n_heads == 0
        self.n_heads = n_heads
        self.d_k = dim // n_heads
        self.Wq = nn.Linear(dim, dim)
        self.Wk = nn.Linear(dim, dim)
        self.Wv = nn.Linear(dim, dim)
        self.Wo = nn.Linear(dim, dim)
        self.drop = nn.Dropout(p_drop)

    def forward(self, x, memory):
        batch, seq_len, dim = x.shape

        Q = self.Wq(x)
        K = self.Wk(memory)
        V = self.Wv(memory)

        Q = Q.view(batch, seq_len, self.n_heads, self.d_k).permute(0, 2, 1, 3)
        K = K.view(batch, seq_len, self.n_heads, self.d_k).permute(0, 2, 1, 3)
        V = V.view(batch, seq_len, self.n_heads, self.d_k).permute(0, 2, 1, 3)

        energy = torch.matmul(Q, K.permute(0, 1, 3, 2)) / sqrt(self.d_k)
        attention = F.softmax(energy, dim=-1)
        out = torch.matmul(self.drop(attention), V)
        out = out.permute(0, 2, 1, 3).contiguous().view(batch, seq_len, dim)
        return self.Wo(out)
