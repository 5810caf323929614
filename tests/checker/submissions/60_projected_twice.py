# expect: wrong
import torch
import torch.nn as nn


class Merge(nn.Module):
    def __init__(self, hid_dim, n_heads, dropout=0.0):
        super().__init__()
        self.hid_dim = hid_dim
        self.n_heads = n_heads
        self.head_dim = hid_dim // n_heads
        self.fc_query = nn.Linear(hid_dim, hid_dim)
        self.fc_key = nn.Linear(hid_dim, hid_dim)
        self.fc_value = nn.Linear(hid_dim, hid_dim)
        self.fc = nn.Linear(hid_dim, hid_dim)
        self.dropout = nn.Dropout(dropout)

    def join(self, x, b):
        return self.fc(x.permute(0, 2, 1, 3).reshape(b, -1, self.hid_dim))

    def forward(self, query, key, value):
        b = query.shape[0]
        Q = self.fc_query(query).view(b, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        K = self.fc_key(key).view(b, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        V = self.fc_value(value).view(b, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        attention = torch.softmax(Q @ K.permute(0, 1, 3, 2) / self.head_dim ** 0.5, dim=-1)
        x = self.join(self.dropout(attention) @ V, b)
        return self.fc(x)
