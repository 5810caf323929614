# expect: correct
import math

import torch
from torch import nn
from torch.nn import functional as F


def sequence_mask(length, max_length=None):
    if max_length is None:
        max_length = length.max()
    x = torch.arange(max_length, dtype=length.dtype, device=length.device)
    return x.unsqueeze(0) < length.unsqueeze(1)


class MultiHeadAttention(nn.Module):
    """Text encoder attention for TTS. Everything is channels-first, (batch, channels, time), projections are 1x1
    convolutions. Within +-window_size positions keys and values get learned relative embeddings shared by heads."""

    def __init__(self, channels, out_channels, n_heads, p_dropout=0., window_size=None):
        super().__init__()
        assert channels % n_heads == 0
        self.channels = channels
        self.n_heads = n_heads
        self.window_size = window_size
        self.attn = None
        self.k_channels = channels // n_heads

        self.conv_q = nn.Conv1d(channels, channels, 1)
        self.conv_k = nn.Conv1d(channels, channels, 1)
        self.conv_v = nn.Conv1d(channels, channels, 1)
        self.conv_o = nn.Conv1d(channels, out_channels, 1)
        self.drop = nn.Dropout(p_dropout)

        if window_size is not None:
            rel_stddev = self.k_channels ** -0.5
            self.emb_rel_k = nn.Parameter(torch.randn(1, window_size * 2 + 1, self.k_channels) * rel_stddev)
            self.emb_rel_v = nn.Parameter(torch.randn(1, window_size * 2 + 1, self.k_channels) * rel_stddev)

        nn.init.xavier_uniform_(self.conv_q.weight)
        nn.init.xavier_uniform_(self.conv_k.weight)
        nn.init.xavier_uniform_(self.conv_v.weight)

    def forward(self, x, c, attn_mask=None):
        q = self.conv_q(x)
        k = self.conv_k(c)
        v = self.conv_v(c)
        x, self.attn = self.attention(q, k, v, mask=attn_mask)
        return self.conv_o(x)

    def attention(self, query, key, value, mask=None):
        # [b, d, t] -> [b, n_h, t, d_k]
        b, d, t_s, t_t = (*key.size(), query.size(2))
        query = query.view(b, self.n_heads, self.k_channels, t_t).transpose(2, 3)
        key = key.view(b, self.n_heads, self.k_channels, t_s).transpose(2, 3)
        value = value.view(b, self.n_heads, self.k_channels, t_s).transpose(2, 3)

        query = query / math.sqrt(self.k_channels)
        scores = torch.matmul(query, key.transpose(-2, -1))
        if self.window_size is not None:
            assert t_s == t_t, "Relative attention is only available for self-attention."
            rel_k = self._get_relative_embeddings(self.emb_rel_k, t_s)
            rel_logits = torch.matmul(query, rel_k.unsqueeze(0).transpose(-2, -1))
            scores = scores + self._relative_position_to_absolute_position(rel_logits)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
        p_attn = self.drop(F.softmax(scores, dim=-1))  # [b, n_h, t_t, t_s]
        output = torch.matmul(p_attn, value)
        if self.window_size is not None:
            weights = self._absolute_position_to_relative_position(p_attn)
            rel_v = self._get_relative_embeddings(self.emb_rel_v, t_s)
            output = output + torch.matmul(weights, rel_v.unsqueeze(0))
        # [b, n_h, t_t, d_k] -> [b, d, t_t]
        output = output.transpose(2, 3).contiguous().view(b, d, t_t)
        return output, p_attn

    def _get_relative_embeddings(self, rel, length):
        """(1, 2*w+1, d) -> (1, 2*length-1, d), distances -(length-1) ... length-1; zero outside of the window."""
        pad = max(length - (self.window_size + 1), 0)
        start = max((self.window_size + 1) - length, 0)
        rel = F.pad(rel, (0, 0, pad, pad)) if pad > 0 else rel
        return rel[:, start: start + 2 * length - 1]

    def _relative_position_to_absolute_position(self, x):
        """[b, h, l, 2*l-1] -> [b, h, l, l]"""
        batch, heads, length, _ = x.size()
        x = F.pad(x, (0, 1))
        x_flat = x.view(batch, heads, length * 2 * length)
        x_flat = F.pad(x_flat, (0, length - 1))
        return x_flat.view(batch, heads, length + 1, 2 * length - 1)[:, :, :length, length - 1:]

    def _absolute_position_to_relative_position(self, x):
        """[b, h, l, l] -> [b, h, l, 2*l-1]"""
        batch, heads, length, _ = x.size()
        x = F.pad(x, (0, length - 1))
        x_flat = x.reshape(batch, heads, length ** 2 + length * (length - 1))
        x_flat = F.pad(x_flat, (length, 0))
        return x_flat.view(batch, heads, length, 2 * length)[:, :, :, 1:]


class TextEncoderLayer(nn.Module):
    def __init__(self, hidden_channels, n_heads, p_dropout=0.1, window_size=4):
        super().__init__()
        self.attn = MultiHeadAttention(hidden_channels, hidden_channels, n_heads, p_dropout, window_size)
        self.norm = nn.LayerNorm(hidden_channels)
        self.drop = nn.Dropout(p_dropout)

    def forward(self, x, x_lengths):
        x_mask = sequence_mask(x_lengths, x.size(2)).unsqueeze(1).to(x.dtype)
        attn_mask = x_mask.unsqueeze(2) * x_mask.unsqueeze(-1)
        x = x * x_mask
        y = self.drop(self.attn(x, x, attn_mask))
        return self.norm((x + y).transpose(1, 2)).transpose(1, 2) * x_mask
