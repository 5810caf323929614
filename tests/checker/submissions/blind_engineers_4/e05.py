# expect: wrong
# why: After the relative shift the last T columns are kept instead of the first T, so the position score of (i, j) belongs to another distance.
"""Relative-position self attention of a Conformer encoder (speech)."""
import math

import torch
from torch import nn


class RelPositionalEncoding(nn.Module):
    """Sinusoids for distances T-1, ..., 0, ..., -(T-1); row 0 is the furthest key in the past."""

    def __init__(self, d_model: int):
        super().__init__()
        self.d_model = d_model
        div = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))
        self.register_buffer("div", div, persistent=False)

    def forward(self, length: int) -> torch.Tensor:
        dist = torch.arange(length - 1, -length, -1.0, device=self.div.device)
        ang = dist[:, None] * self.div[None, :]
        pe = torch.zeros(2 * length - 1, self.d_model, device=ang.device)
        pe[:, 0::2] = ang.sin()
        pe[:, 1::2] = ang.cos()
        return pe.unsqueeze(0)


class RelPosAttention(nn.Module):
    def __init__(self, d_model: int, n_head: int, dropout: float = 0.0):
        super().__init__()
        self.h = n_head
        self.d_k = d_model // n_head
        self.linear_q = nn.Linear(d_model, d_model)
        self.linear_k = nn.Linear(d_model, d_model)
        self.linear_v = nn.Linear(d_model, d_model)
        self.linear_pos = nn.Linear(d_model, d_model, bias=False)
        self.linear_out = nn.Linear(d_model, d_model)
        self.pos_bias_u = nn.Parameter(torch.empty(n_head, self.d_k))
        self.pos_bias_v = nn.Parameter(torch.empty(n_head, self.d_k))
        nn.init.xavier_uniform_(self.pos_bias_u)
        nn.init.xavier_uniform_(self.pos_bias_v)
        self.dropout = nn.Dropout(dropout)

    def rel_shift(self, x: torch.Tensor) -> torch.Tensor:
        """(B, H, T, 2T-1) indexed by distance -> (B, H, T, T) indexed by key."""
        b, h, t, p = x.shape
        x = torch.cat([x.new_zeros(b, h, t, 1), x], dim=-1)
        x = x.view(b, h, p + 1, t)[:, :, 1:].reshape(b, h, t, p)
        return x[..., p - t:]

    def forward(self, x: torch.Tensor, pos_emb: torch.Tensor, pad_mask: torch.Tensor | None = None):
        """pad_mask: (B, T), True for padding frames."""
        b, t, _ = x.shape
        q = self.linear_q(x).view(b, t, self.h, self.d_k)
        k = self.linear_k(x).view(b, t, self.h, self.d_k).transpose(1, 2)
        v = self.linear_v(x).view(b, t, self.h, self.d_k).transpose(1, 2)
        p = self.linear_pos(pos_emb).view(1, -1, self.h, self.d_k).transpose(1, 2)

        content = (q + self.pos_bias_u).transpose(1, 2) @ k.transpose(-2, -1)
        position = (q + self.pos_bias_v).transpose(1, 2) @ p.transpose(-2, -1)
        scores = (content + self.rel_shift(position)) / math.sqrt(self.d_k)

        if pad_mask is not None:
            scores = scores.masked_fill(pad_mask[:, None, None, :], torch.finfo(scores.dtype).min)
        attn = self.dropout(scores.softmax(dim=-1))
        out = (attn @ v).transpose(1, 2).contiguous().view(b, t, -1)
        return self.linear_out(out)


class ConvModule(nn.Module):
    def __init__(self, d: int, kernel: int = 7):
        super().__init__()
        self.pw1 = nn.Conv1d(d, 2 * d, 1)
        self.dw = nn.Conv1d(d, d, kernel, padding=kernel // 2, groups=d)
        self.norm = nn.GroupNorm(1, d)
        self.pw2 = nn.Conv1d(d, d, 1)

    def forward(self, x, pad_mask=None):
        y = nn.functional.glu(self.pw1(x.transpose(1, 2)), dim=1)
        if pad_mask is not None:
            y = y.masked_fill(pad_mask[:, None], 0.0)
        y = self.pw2(nn.functional.silu(self.norm(self.dw(y))))
        return y.transpose(1, 2)


class ConformerLayer(nn.Module):
    def __init__(self, d: int, heads: int):
        super().__init__()
        self.ff1 = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.SiLU(), nn.Linear(4 * d, d))
        self.ff2 = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.SiLU(), nn.Linear(4 * d, d))
        self.norm_att, self.norm_conv, self.norm_out = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.att = RelPosAttention(d, heads)
        self.conv = ConvModule(d)

    def forward(self, x, pos_emb, pad_mask=None):
        x = x + 0.5 * self.ff1(x)
        x = x + self.att(self.norm_att(x), pos_emb, pad_mask)
        x = x + self.conv(self.norm_conv(x), pad_mask)
        x = x + 0.5 * self.ff2(x)
        return self.norm_out(x)
