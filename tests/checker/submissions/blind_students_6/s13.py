# expect: padding-on-queries
# why: the padding mask lies along the query axis, so real tokens still attend to padding
"""Transformer encoder layer for the text classification homework (IMDB)."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD = 0


def make_pad_mask(tokens):
    """(batch, seq) token ids -> (batch, seq) bool, True for real words"""
    return tokens != PAD


class MultiHeadSelfAttention(nn.Module):
    def __init__(self, hidden_dim, n_heads, dropout=0.1):
        super().__init__()
        assert hidden_dim % n_heads == 0
        self.hidden_dim = hidden_dim
        self.n_heads = n_heads
        self.head_dim = hidden_dim // n_heads
        self.fc_q = nn.Linear(hidden_dim, hidden_dim)
        self.fc_k = nn.Linear(hidden_dim, hidden_dim)
        self.fc_v = nn.Linear(hidden_dim, hidden_dim)
        self.fc_o = nn.Linear(hidden_dim, hidden_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        # x    = [batch, seq, hidden_dim]
        # mask = [batch, seq], True for real words
        batch, seq, _ = x.shape
        Q = self.fc_q(x).view(batch, seq, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        K = self.fc_k(x).view(batch, seq, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        V = self.fc_v(x).view(batch, seq, self.n_heads, self.head_dim).permute(0, 2, 1, 3)

        energy = torch.matmul(Q, K.permute(0, 1, 3, 2)) / math.sqrt(self.head_dim)
        # energy = [batch, n_heads, seq, seq]
        if mask is not None:
            mask = mask.view(batch, 1, seq, 1)
            energy = energy.masked_fill(mask == 0, -1e10)
        attention = torch.softmax(energy, dim=-1)
        out = torch.matmul(self.dropout(attention), V)
        out = out.permute(0, 2, 1, 3).contiguous().view(batch, seq, self.hidden_dim)
        return self.fc_o(out)


class EncoderLayer(nn.Module):
    def __init__(self, hidden_dim, n_heads, pf_dim, dropout=0.1):
        super().__init__()
        self.ln1 = nn.LayerNorm(hidden_dim)
        self.ln2 = nn.LayerNorm(hidden_dim)
        self.self_attention = MultiHeadSelfAttention(hidden_dim, n_heads, dropout)
        self.fc1 = nn.Linear(hidden_dim, pf_dim)
        self.fc2 = nn.Linear(pf_dim, hidden_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, src, src_mask):
        src = self.ln1(src + self.dropout(self.self_attention(src, src_mask)))
        src = self.ln2(src + self.dropout(self.fc2(F.relu(self.fc1(src)))))
        return src
