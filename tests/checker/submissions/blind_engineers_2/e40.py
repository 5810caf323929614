# expect: mask-fill-not-inf
# why: line 61: relative key logits use the unscaled query, so they are not divided by sqrt(k_channels) like the content scores. Always with window_size set (as in the Encoder; the class default is None).
# why: line 65: the 0/1 mask is multiplied into the scores instead of setting them to a large negative number, so masked positions get score 0 and take part. Only with attn_mask.
"""Text encoder attention for speech synthesis: channels first, relative positions inside a window."""
import math

import torch
from torch import nn
from torch.nn import functional as F


class LayerNorm(nn.Module):
    def __init__(self, channels, eps=1e-5):
        super().__init__()
        self.channels = channels
        self.eps = eps
        self.gamma = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        x = F.layer_norm(x.transpose(1, -1), (self.channels,), self.gamma, self.beta, self.eps)
        return x.transpose(1, -1)


def sequence_mask(length, max_length=None):
    max_length = max_length or int(length.max())
    return torch.arange(max_length, device=length.device)[None, :] < length[:, None]


class MultiHeadAttention(nn.Module):
    def __init__(self, channels, out_channels, n_heads, p_dropout=0.0, window_size=None):
        super().__init__()
        assert channels % n_heads == 0
        self.n_heads = n_heads
        self.window_size = window_size
        self.k_channels = channels // n_heads
        self.conv_q = nn.Conv1d(channels, channels, 1)
        self.conv_k = nn.Conv1d(channels, channels, 1)
        self.conv_v = nn.Conv1d(channels, channels, 1)
        self.conv_o = nn.Conv1d(channels, out_channels, 1)
        self.drop = nn.Dropout(p_dropout)
        if window_size is not None:
            rel_stddev = self.k_channels**-0.5
            self.emb_rel_k = nn.Parameter(torch.randn(2 * window_size + 1, self.k_channels) * rel_stddev)
            self.emb_rel_v = nn.Parameter(torch.randn(2 * window_size + 1, self.k_channels) * rel_stddev)

    def forward(self, x, c, attn_mask=None):
        """x: (b, channels, t) queries, c: (b, channels, s) keys and values,
        attn_mask: (b, 1, t, s), 1 for pairs to use and 0 for the others"""
        q, k, v = self.conv_q(x), self.conv_k(c), self.conv_v(c)
        x, self.attn = self.attention(q, k, v, mask=attn_mask)
        return self.conv_o(x)

    def attention(self, query, key, value, mask=None):
        b, d, t_s, t_t = (*key.size(), query.size(2))
        query = query.view(b, self.n_heads, self.k_channels, t_t).transpose(2, 3)
        key = key.view(b, self.n_heads, self.k_channels, t_s).transpose(2, 3)
        value = value.view(b, self.n_heads, self.k_channels, t_s).transpose(2, 3)

        scores = torch.matmul(query / math.sqrt(self.k_channels), key.transpose(-2, -1))
        if self.window_size is not None:
            assert t_s == t_t, "Relative attention is only available for self-attention."
            index, inside = self.relative_index(t_s, query.device)
            rel_logits = torch.matmul(query, self.emb_rel_k.t())
            gathered = rel_logits.gather(-1, index.expand(b, self.n_heads, -1, -1))
            scores = scores + gathered * inside
        if mask is not None:
            scores = scores * mask
        p_attn = self.drop(F.softmax(scores, dim=-1))
        output = torch.matmul(p_attn, value)
        if self.window_size is not None:
            binned = p_attn.new_zeros(b, self.n_heads, t_t, 2 * self.window_size + 1)
            binned = binned.scatter_add(-1, index.expand(b, self.n_heads, -1, -1), p_attn * inside)
            output = output + torch.matmul(binned, self.emb_rel_v)
        output = output.transpose(2, 3).contiguous().view(b, d, t_t)
        return output, p_attn

    def relative_index(self, length, device):
        """Row of the embedding tables for each pair, and 1 where the pair lies inside the window."""
        pos = torch.arange(length, device=device)
        delta = pos[None, :] - pos[:, None]
        inside = (delta.abs() <= self.window_size).float()
        index = delta.clamp(-self.window_size, self.window_size) + self.window_size
        return index[None, None], inside[None, None]


class Encoder(nn.Module):
    def __init__(self, hidden_channels=32, filter_channels=64, n_heads=2, n_layers=2, p_dropout=0.0, window_size=4):
        super().__init__()
        self.attn_layers, self.norm_layers_1 = nn.ModuleList(), nn.ModuleList()
        self.ffn_layers, self.norm_layers_2 = nn.ModuleList(), nn.ModuleList()
        for _ in range(n_layers):
            self.attn_layers.append(
                MultiHeadAttention(hidden_channels, hidden_channels, n_heads, p_dropout, window_size=window_size)
            )
            self.norm_layers_1.append(LayerNorm(hidden_channels))
            self.ffn_layers.append(nn.Sequential(
                nn.Conv1d(hidden_channels, filter_channels, 3, padding=1), nn.ReLU(),
                nn.Conv1d(filter_channels, hidden_channels, 3, padding=1),
            ))
            self.norm_layers_2.append(LayerNorm(hidden_channels))

    def forward(self, x, x_lengths):
        x_mask = sequence_mask(x_lengths, x.size(2)).unsqueeze(1).to(x.dtype)
        attn_mask = x_mask.unsqueeze(2) * x_mask.unsqueeze(-1)
        x = x * x_mask
        for attn, n1, ffn, n2 in zip(self.attn_layers, self.norm_layers_1, self.ffn_layers, self.norm_layers_2):
            x = n1(x + attn(x, x, attn_mask))
            x = n2(x + ffn(x * x_mask) * x_mask)
        return x * x_mask
