# expect: correct
# why: right: heads run before batch in the flattened axis, so mask.repeat(n_heads, 1, 1) is the fitting order; nan rows of padding become zero
# Sequential recommender, left padded item sequences
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHeadSelfAttention(nn.Module):
    def __init__(self, n_units, n_heads, dropout):
        super(MultiHeadSelfAttention, self).__init__()
        self.n_heads = n_heads
        self.w_qs = nn.Linear(n_units, n_units, bias=False)
        self.w_ks = nn.Linear(n_units, n_units, bias=False)
        self.w_vs = nn.Linear(n_units, n_units, bias=False)
        self.fc = nn.Linear(n_units, n_units)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, slf_attn_mask):
        sz_b, len_s, n_units = x.size()
        d_k = n_units // self.n_heads
        # heads go first, then batch: (n * b) x l x d
        q = self.w_qs(x).view(sz_b, len_s, self.n_heads, d_k).permute(2, 0, 1, 3).contiguous().view(-1, len_s, d_k)
        k = self.w_ks(x).view(sz_b, len_s, self.n_heads, d_k).permute(2, 0, 1, 3).contiguous().view(-1, len_s, d_k)
        v = self.w_vs(x).view(sz_b, len_s, self.n_heads, d_k).permute(2, 0, 1, 3).contiguous().view(-1, len_s, d_k)
        mask = slf_attn_mask.repeat(self.n_heads, 1, 1)

        attn = torch.bmm(q, k.transpose(1, 2)) / np.power(d_k, 0.5)
        attn = attn.masked_fill(mask, -np.inf)
        attn = torch.softmax(attn, dim=2)
        # rows of padded positions have nothing to look at
        attn = torch.nan_to_num(attn, nan=0.0)
        out = torch.bmm(self.dropout(attn), v)

        out = out.view(self.n_heads, sz_b, len_s, d_k).permute(1, 2, 0, 3).contiguous().view(sz_b, len_s, -1)
        return self.fc(out)


class Layer(nn.Module):
    def __init__(self, n_units, n_heads, dropout):
        super(Layer, self).__init__()
        self.attn = MultiHeadSelfAttention(n_units, n_heads, dropout)
        self.norm1 = nn.LayerNorm(n_units)
        self.w_1 = nn.Conv1d(n_units, 2 * n_units, 1)
        self.w_2 = nn.Conv1d(2 * n_units, n_units, 1)
        self.norm2 = nn.LayerNorm(n_units)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask, keep):
        x = self.norm1(x + self.dropout(self.attn(x, mask))) * keep
        y = self.w_2(F.relu(self.w_1(x.transpose(1, 2)))).transpose(1, 2)
        return self.norm2(x + self.dropout(y)) * keep


class NextItem(nn.Module):
    PAD = 0

    def __init__(self, n_items, max_len=30, n_units=32, n_heads=4, n_layers=2, dropout=0.2):
        super(NextItem, self).__init__()
        self.items = nn.Embedding(n_items + 1, n_units, padding_idx=self.PAD)
        self.positions = nn.Embedding(max_len + 1, n_units, padding_idx=0)
        self.layers = nn.ModuleList([Layer(n_units, n_heads, dropout) for _ in range(n_layers)])
        self.out_bias = nn.Parameter(torch.zeros(n_items + 1))

    def forward(self, seq):
        """seq: (batch, len) item ids, 0 in front where the history is short. Scores for each position."""
        pad = seq.eq(self.PAD)
        keep = (~pad).unsqueeze(-1).float()
        # positions count from the last item backwards: 1 is the most recent one
        pos = torch.arange(seq.size(1), 0, -1, device=seq.device).expand_as(seq).masked_fill(pad, 0)
        future = torch.triu(torch.ones(seq.size(1), seq.size(1), dtype=torch.bool, device=seq.device), diagonal=1)
        mask = pad.unsqueeze(1) | future.unsqueeze(0)       # True: must not be seen
        x = self.items(seq) + self.positions(pos)
        for layer in self.layers:
            x = layer(x, mask, keep)
        return F.linear(x, self.items.weight, self.out_bias)
