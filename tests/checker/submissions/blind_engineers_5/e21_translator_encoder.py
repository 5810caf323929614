# expect: merge-without-transpose
# why: the heads are merged without moving the head axis behind the sequence axis, so a token gets pieces of other tokens; shows at line 52: `values = values.reshape(batch_size, sequence_length, self.num_heads * self.head_dim)`
"""Encoder side of a small character-level translator (Kannada -> English toy project)."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


def scaled_dot_product(q, k, v, mask=None):
    # q, k, v: 30 x 8 x 200 x 64
    d_k = q.size()[-1]
    scaled = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(d_k)
    if mask is not None:
        scaled = scaled + mask
    attention = F.softmax(scaled, dim=-1)
    values = torch.matmul(attention, v)
    return values, attention


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_sequence_length):
        super().__init__()
        even_i = torch.arange(0, d_model, 2).float()
        denominator = torch.pow(10000, even_i / d_model)
        position = torch.arange(max_sequence_length).reshape(max_sequence_length, 1)
        stacked = torch.stack([torch.sin(position / denominator), torch.cos(position / denominator)], dim=2)
        self.register_buffer("PE", torch.flatten(stacked, start_dim=1, end_dim=2))

    def forward(self, x):
        return x + self.PE[: x.size(1)]


class MultiHeadAttention(nn.Module):
    """Self attention. `mask` is additive: 0 where a position may be read, a large negative number elsewhere."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.d_model = d_model
        self.num_heads = num_heads
        self.head_dim = d_model // num_heads
        self.qkv_layer = nn.Linear(d_model, 3 * d_model)
        self.linear_layer = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        batch_size, sequence_length, d_model = x.size()
        qkv = self.qkv_layer(x)
        qkv = qkv.reshape(batch_size, sequence_length, self.num_heads, 3 * self.head_dim)
        qkv = qkv.permute(0, 2, 1, 3)
        q, k, v = qkv.chunk(3, dim=-1)
        values, attention = scaled_dot_product(q, k, v, mask)
        values = values.reshape(batch_size, sequence_length, self.num_heads * self.head_dim)
        return self.linear_layer(values)


class EncoderLayer(nn.Module):
    def __init__(self, d_model, ffn_hidden, num_heads, drop_prob):
        super().__init__()
        self.attention = MultiHeadAttention(d_model, num_heads)
        self.norm1 = nn.LayerNorm(d_model)
        self.dropout1 = nn.Dropout(drop_prob)
        self.ffn = nn.Sequential(nn.Linear(d_model, ffn_hidden), nn.ReLU(),
                                 nn.Dropout(drop_prob), nn.Linear(ffn_hidden, d_model))
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout2 = nn.Dropout(drop_prob)

    def forward(self, x, mask=None):
        x = self.norm1(x + self.dropout1(self.attention(x, mask)))
        return self.norm2(x + self.dropout2(self.ffn(x)))


class Encoder(nn.Module):
    def __init__(self, vocab_size, d_model=32, ffn_hidden=64, num_heads=4, drop_prob=0.1, num_layers=2,
                 max_sequence_length=64):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.position = PositionalEncoding(d_model, max_sequence_length)
        self.layers = nn.ModuleList([EncoderLayer(d_model, ffn_hidden, num_heads, drop_prob)
                                     for _ in range(num_layers)])

    def forward(self, tokens, mask=None):
        x = self.position(self.embedding(tokens))
        for layer in self.layers:
            x = layer(x, mask)
        return x
