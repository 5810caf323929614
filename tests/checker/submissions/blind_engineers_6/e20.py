# expect: correct
# why: right: Transformer-XL relative positions with a padding mask
"""Relative-position self-attention of the Conformer encoder (Transformer-XL style)."""
import math
from typing import Optional

import torch
from torch import nn


class RelPositionalEncoding(nn.Module):
    """Sinusoidal embeddings for the offsets T-1, T-2, ..., 0, ..., -(T-1).

    ``forward(T)`` returns (1, 2T - 1, d_model); row ``r`` is the embedding of offset ``T - 1 - r``,
    where offset = query index - key index.
    """

    def __init__(self, d_model: int):
        super().__init__()
        self.d_model = d_model

    def forward(self, T: int, device=None, dtype=torch.float32):
        pos = torch.arange(T - 1, -T, -1, device=device, dtype=torch.float32)[:, None]
        div = torch.exp(torch.arange(0, self.d_model, 2, device=device, dtype=torch.float32)
                        * -(math.log(10000.0) / self.d_model))
        pe = torch.zeros(2 * T - 1, self.d_model, device=device)
        pe[:, 0::2] = torch.sin(pos * div)
        pe[:, 1::2] = torch.cos(pos * div)
        return pe.unsqueeze(0).to(dtype)


class RelPositionMultiHeadedAttention(nn.Module):
    """
    Args:
        n_head: number of heads
        n_feat: model width
        dropout_rate: dropout on the attention weights

    forward:
        x: (B, T, n_feat)
        pos_emb: (1, 2T - 1, n_feat) from :class:`RelPositionalEncoding`
        pad_mask: bool (B, T), True at padded frames
    """

    def __init__(self, n_head: int, n_feat: int, dropout_rate: float = 0.0):
        super().__init__()
        assert n_feat % n_head == 0
        self.h, self.d_k = n_head, n_feat // n_head
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

    @staticmethod
    def rel_shift(x: torch.Tensor) -> torch.Tensor:
        """(B, H, T, 2T-1) indexed by offset row -> (B, H, T, T) indexed by key."""
        b, h, t, p = x.shape
        x = torch.cat([x.new_zeros(b, h, t, 1), x], dim=-1)
        x = x.view(b, h, p + 1, t)[:, :, 1:].reshape(b, h, t, p)
        return x[..., : p // 2 + 1]

    def forward(self, x: torch.Tensor, pos_emb: torch.Tensor, pad_mask: Optional[torch.Tensor] = None):
        B, T, C = x.shape
        q = self.linear_q(x).view(B, T, self.h, self.d_k)
        k = self.linear_k(x).view(B, T, self.h, self.d_k).transpose(1, 2)
        v = self.linear_v(x).view(B, T, self.h, self.d_k).transpose(1, 2)
        p = self.linear_pos(pos_emb).view(1, -1, self.h, self.d_k).transpose(1, 2)

        q_u = (q + self.pos_bias_u).transpose(1, 2)
        q_v = (q + self.pos_bias_v).transpose(1, 2)
        content = q_u @ k.transpose(-2, -1)
        position = self.rel_shift(q_v @ p.transpose(-2, -1))
        scores = (content + position) / math.sqrt(self.d_k)

        if pad_mask is not None:
            m = pad_mask[:, None, None, :]
            scores = scores.masked_fill(m, torch.finfo(scores.dtype).min)
            attn = scores.softmax(dim=-1).masked_fill(m, 0.0)
        else:
            attn = scores.softmax(dim=-1)
        y = self.dropout(attn) @ v
        return self.linear_out(y.transpose(1, 2).reshape(B, T, C))


class ConformerAttentionModule(nn.Module):
    """LayerNorm -> relative attention -> dropout -> residual."""

    def __init__(self, d_model: int = 144, n_head: int = 4, dropout: float = 0.1):
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.pos = RelPositionalEncoding(d_model)
        self.attn = RelPositionMultiHeadedAttention(n_head, d_model, dropout)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, pad_mask=None):
        pe = self.pos(x.shape[1], device=x.device, dtype=x.dtype)
        return x + self.drop(self.attn(self.norm(x), pe, pad_mask))
