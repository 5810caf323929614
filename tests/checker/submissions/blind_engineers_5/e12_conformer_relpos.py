# expect: correct
# why: right: 2T-1 relative positions with the shift that drops the first row, both directions are exact
# Relative-position self attention of a Conformer encoder
import math

import torch
from torch import nn


class RelPositionalEncoding(nn.Module):
    """Sinusoids for the distances T-1, ..., 0, ..., -(T-1): shape (1, 2T-1, d_model)."""

    def __init__(self, d_model):
        super().__init__()
        self.d_model = d_model

    def forward(self, T, device=None):
        dist = torch.arange(T - 1, -T, -1.0, device=device).unsqueeze(1)
        div = torch.exp(torch.arange(0, self.d_model, 2, device=device).float() * -(math.log(10000.0) / self.d_model))
        pe = torch.zeros(2 * T - 1, self.d_model, device=device)
        pe[:, 0::2] = torch.sin(dist * div)
        pe[:, 1::2] = torch.cos(dist * div)
        return pe.unsqueeze(0)


class RelPositionMultiHeadedAttention(nn.Module):
    def __init__(self, n_head, n_feat, dropout_rate=0.0):
        super().__init__()
        self.d_k = n_feat // n_head
        self.h = n_head
        self.linear_q = nn.Linear(n_feat, n_feat)
        self.linear_k = nn.Linear(n_feat, n_feat)
        self.linear_v = nn.Linear(n_feat, n_feat)
        self.linear_out = nn.Linear(n_feat, n_feat)
        self.linear_pos = nn.Linear(n_feat, n_feat, bias=False)
        self.pos_bias_u = nn.Parameter(torch.empty(self.h, self.d_k))
        self.pos_bias_v = nn.Parameter(torch.empty(self.h, self.d_k))
        nn.init.xavier_uniform_(self.pos_bias_u)
        nn.init.xavier_uniform_(self.pos_bias_v)
        self.dropout = nn.Dropout(dropout_rate)

    def rel_shift(self, x):
        """(B, H, T, 2T-1) -> (B, H, T, T)"""
        b, h, t, p = x.size()
        zero_pad = x.new_zeros(b, h, t, 1)
        x_padded = torch.cat([zero_pad, x], dim=-1).view(b, h, p + 1, t)
        x = x_padded[:, :, 1:].view_as(x)
        return x[:, :, :, : p // 2 + 1]

    def forward(self, x, pos_emb, mask=None):
        """mask: (B, T) bool, True on valid frames"""
        b, t, _ = x.size()
        q = self.linear_q(x).view(b, t, self.h, self.d_k)
        k = self.linear_k(x).view(b, t, self.h, self.d_k).transpose(1, 2)
        v = self.linear_v(x).view(b, t, self.h, self.d_k).transpose(1, 2)
        p = self.linear_pos(pos_emb).view(pos_emb.size(0), -1, self.h, self.d_k).transpose(1, 2)

        q_with_bias_u = (q + self.pos_bias_u).transpose(1, 2)
        q_with_bias_v = (q + self.pos_bias_v).transpose(1, 2)
        matrix_ac = torch.matmul(q_with_bias_u, k.transpose(-2, -1))
        matrix_bd = self.rel_shift(torch.matmul(q_with_bias_v, p.transpose(-2, -1)))
        scores = (matrix_ac + matrix_bd) / math.sqrt(self.d_k)

        if mask is not None:
            drop = ~mask[:, None, None, :]
            scores = scores.masked_fill(drop, torch.finfo(scores.dtype).min)
            attn = torch.softmax(scores, dim=-1).masked_fill(drop, 0.0)
        else:
            attn = torch.softmax(scores, dim=-1)
        out = torch.matmul(self.dropout(attn), v)
        return self.linear_out(out.transpose(1, 2).contiguous().view(b, t, self.h * self.d_k))


class ConformerLayer(nn.Module):
    def __init__(self, size, n_head, kernel=7):
        super().__init__()
        self.ff1 = nn.Sequential(nn.LayerNorm(size), nn.Linear(size, 2 * size), nn.SiLU(), nn.Linear(2 * size, size))
        self.norm_mha = nn.LayerNorm(size)
        self.pos = RelPositionalEncoding(size)
        self.mha = RelPositionMultiHeadedAttention(n_head, size)
        self.norm_conv = nn.LayerNorm(size)
        self.pw1 = nn.Conv1d(size, 2 * size, 1)
        self.dw = nn.Conv1d(size, size, kernel, padding=kernel // 2, groups=size)
        self.pw2 = nn.Conv1d(size, size, 1)
        self.ff2 = nn.Sequential(nn.LayerNorm(size), nn.Linear(size, 2 * size), nn.SiLU(), nn.Linear(2 * size, size))
        self.final = nn.LayerNorm(size)

    def forward(self, x, mask=None):
        x = x + 0.5 * self.ff1(x)
        x = x + self.mha(self.norm_mha(x), self.pos(x.size(1), x.device), mask)
        c = self.norm_conv(x)
        if mask is not None:
            c = c.masked_fill(~mask[:, :, None], 0.0)
        c = nn.functional.glu(self.pw1(c.transpose(1, 2)), dim=1)
        if mask is not None:
            c = c.masked_fill(~mask[:, None, :], 0.0)
        x = x + self.pw2(nn.functional.silu(self.dw(c))).transpose(1, 2)
        return self.final(x + 0.5 * self.ff2(x))
