# expect: correct
"""Conformer self-attention module with Transformer-XL relative positional encoding."""
import math

import torch
from torch import nn


class RelPositionalEncoding(nn.Module):
    """Sinusoids for relative distances T-1, T-2, ..., 0, ..., -(T-1)  (2T-1 of them)."""

    def __init__(self, d_model):
        super().__init__()
        div_term = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float32) * -(math.log(10000.0) / d_model))
        self.register_buffer("div_term", div_term, persistent=False)

    def forward(self, x):
        t = x.size(1)
        distance = torch.arange(t - 1, -t, -1, dtype=torch.float32, device=x.device)
        angle = distance[:, None] * self.div_term
        pe = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)
        return pe.unsqueeze(0).to(x.dtype)            # 1, 2T-1, D


class RelPositionMultiHeadedAttention(nn.Module):
    def __init__(self, n_head, n_feat, dropout_rate):
        super().__init__()
        assert n_feat % n_head == 0
        self.d_k = n_feat // n_head
        self.h = n_head
        self.linear_q = nn.Linear(n_feat, n_feat)
        self.linear_k = nn.Linear(n_feat, n_feat)
        self.linear_v = nn.Linear(n_feat, n_feat)
        self.linear_out = nn.Linear(n_feat, n_feat)
        self.linear_pos = nn.Linear(n_feat, n_feat, bias=False)
        # matrix c and matrix d of Transformer-XL, section 3.3
        self.pos_bias_u = nn.Parameter(torch.empty(self.h, self.d_k))
        self.pos_bias_v = nn.Parameter(torch.empty(self.h, self.d_k))
        nn.init.xavier_uniform_(self.pos_bias_u)
        nn.init.xavier_uniform_(self.pos_bias_v)
        self.dropout = nn.Dropout(p=dropout_rate)

    @staticmethod
    def rel_shift(x):
        """(B, H, T, 2T-1) indexed by [query, distance]  ->  (B, H, T, T) indexed by [query, key]"""
        b, h, t, n = x.shape
        x = nn.functional.pad(x, (1, 0))               # one zero column on the left
        x = x.view(b, h, n + 1, t)
        x = x[:, :, 1:].reshape(b, h, t, n)
        return x[..., : n // 2 + 1]

    def forward(self, x, pos_emb, mask=None):
        """mask: (B, 1, T) or (B, T, T); 0 / False = masked"""
        b, t, _ = x.shape
        q = self.linear_q(x).view(b, t, self.h, self.d_k)
        k = self.linear_k(x).view(b, t, self.h, self.d_k).transpose(1, 2)
        v = self.linear_v(x).view(b, t, self.h, self.d_k).transpose(1, 2)
        p = self.linear_pos(pos_emb).view(1, -1, self.h, self.d_k).transpose(1, 2)

        q_with_u = (q + self.pos_bias_u).transpose(1, 2)
        q_with_v = (q + self.pos_bias_v).transpose(1, 2)
        matrix_ac = torch.matmul(q_with_u, k.transpose(-2, -1))
        matrix_bd = self.rel_shift(torch.matmul(q_with_v, p.transpose(-2, -1)))
        scores = (matrix_ac + matrix_bd) / math.sqrt(self.d_k)

        if mask is not None:
            mask = mask.unsqueeze(1).eq(0)
            scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
            attn = torch.softmax(scores, dim=-1).masked_fill(mask, 0.0)
        else:
            attn = torch.softmax(scores, dim=-1)
        out = torch.matmul(self.dropout(attn), v)
        return self.linear_out(out.transpose(1, 2).contiguous().view(b, t, self.h * self.d_k))


class ConformerMHSAModule(nn.Module):
    def __init__(self, n_head=4, n_feat=64, dropout=0.1):
        super().__init__()
        self.norm = nn.LayerNorm(n_feat)
        self.pos = RelPositionalEncoding(n_feat)
        self.attn = RelPositionMultiHeadedAttention(n_head, n_feat, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, lengths=None):
        mask = None
        if lengths is not None:
            mask = (torch.arange(x.size(1), device=x.device) < lengths[:, None]).unsqueeze(1)
        y = self.norm(x)
        return x + self.dropout(self.attn(y, self.pos(y), mask))


if __name__ == "__main__":
    mod = ConformerMHSAModule().eval()
    print(mod(torch.randn(2, 50, 64), torch.tensor([50, 31])).shape)
