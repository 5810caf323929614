# expect: correct
# what: Conformer / ESPnet relative positions, rel_shift
"""Self attention with relative positional encoding, for speech encoders."""
import math

import torch
from torch import nn


class RelPositionalEncoding(nn.Module):
    """Sinusoids for the relative positions T-1 ... -(T-1)."""

    def __init__(self, d_model: int, dropout_rate: float = 0.0):
        super().__init__()
        self.d_model = d_model
        self.xscale = math.sqrt(d_model)
        self.dropout = nn.Dropout(p=dropout_rate)

    def forward(self, x: torch.Tensor):
        T = x.size(1)
        position = torch.arange(T - 1, -T, -1, dtype=torch.float32, device=x.device).unsqueeze(1)
        div_term = torch.exp(
            torch.arange(0, self.d_model, 2, dtype=torch.float32, device=x.device) * -(math.log(10000.0) / self.d_model)
        )
        pe = torch.zeros(2 * T - 1, self.d_model, device=x.device)
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        return self.dropout(x * self.xscale), self.dropout(pe.unsqueeze(0).to(x.dtype))


class RelPositionMultiHeadedAttention(nn.Module):
    def __init__(self, n_head: int, n_feat: int, dropout_rate: float):
        super().__init__()
        assert n_feat % n_head == 0
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
        self.dropout = nn.Dropout(p=dropout_rate)
        self.attn = None

    def forward_qkv(self, query, key, value):
        n_batch = query.size(0)
        q = self.linear_q(query).view(n_batch, -1, self.h, self.d_k)
        k = self.linear_k(key).view(n_batch, -1, self.h, self.d_k).transpose(1, 2)
        v = self.linear_v(value).view(n_batch, -1, self.h, self.d_k).transpose(1, 2)
        return q, k, v

    def rel_shift(self, x):
        zero_pad = torch.zeros((*x.size()[:3], 1), device=x.device, dtype=x.dtype)
        x_padded = torch.cat([zero_pad, x], dim=-1)
        x_padded = x_padded.view(*x.size()[:2], x.size(3) + 1, x.size(2))
        x = x_padded[:, :, 1:].view_as(x)[:, :, :, : x.size(-1) // 2 + 1]
        return x

    def forward_attention(self, value, scores, mask):
        n_batch = value.size(0)
        if mask is not None:
            mask = mask.unsqueeze(1).eq(0)
            scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
            self.attn = torch.softmax(scores, dim=-1).masked_fill(mask, 0.0)
        else:
            self.attn = torch.softmax(scores, dim=-1)
        x = torch.matmul(self.dropout(self.attn), value)
        x = x.transpose(1, 2).contiguous().view(n_batch, -1, self.h * self.d_k)
        return self.linear_out(x)

    def forward(self, query, key, value, pos_emb, mask=None):
        """
        Args:
            query, key, value: (#batch, time, size)
            pos_emb: (1, 2*time-1, size), from the largest positive distance to the most negative
            mask: (#batch, 1, time) or (#batch, time, time), nonzero for frames to attend to
        """
        q, k, v = self.forward_qkv(query, key, value)
        p = self.linear_pos(pos_emb).view(pos_emb.size(0), -1, self.h, self.d_k).transpose(1, 2)
        q_with_bias_u = (q + self.pos_bias_u).transpose(1, 2)
        q_with_bias_v = (q + self.pos_bias_v).transpose(1, 2)
        matrix_ac = torch.matmul(q_with_bias_u, k.transpose(-2, -1))
        matrix_bd = self.rel_shift(torch.matmul(q_with_bias_v, p.transpose(-2, -1)))
        scores = (matrix_ac + matrix_bd) / math.sqrt(self.d_k)
        return self.forward_attention(v, scores, mask)


class ConformerSelfAttentionModule(nn.Module):
    def __init__(self, size=32, n_head=4, dropout_rate=0.1):
        super().__init__()
        self.embed = RelPositionalEncoding(size, dropout_rate)
        self.norm = nn.LayerNorm(size)
        self.self_attn = RelPositionMultiHeadedAttention(n_head, size, dropout_rate)
        self.dropout = nn.Dropout(dropout_rate)

    def forward(self, xs, lengths=None):
        xs, pos_emb = self.embed(xs)
        mask = None
        if lengths is not None:
            mask = (torch.arange(xs.size(1), device=xs.device)[None, :] < lengths[:, None]).unsqueeze(1)
        y = self.norm(xs)
        return xs + self.dropout(self.self_attn(y, y, y, pos_emb, mask))
