# expect: mask-result-dropped
# why: the result of masked_fill is not assigned, so the model is not causal.
import math

import torch
import torch.nn.functional as F
from torch import nn


class RelativeGlobalAttention(nn.Module):
    """Causal self-attention with learned relative embeddings for symbolic music generation.

    ``Er[max_len - 1 - n]`` belongs to a key that lies n events in the past. The (q, distance) products are
    realigned to (q, k) with the memory-efficient skewing procedure.
    """

    def __init__(self, d_model: int, num_heads: int, max_len: int = 1024, dropout: float = 0.1):
        super().__init__()
        d_head, remainder = divmod(d_model, num_heads)
        if remainder:
            raise ValueError("incompatible `d_model` and `num_heads`")
        self.max_len = max_len
        self.d_model = d_model
        self.num_heads = num_heads
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.query = nn.Linear(d_model, d_model)
        self.fc_out = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)
        self.Er = nn.Parameter(torch.randn(max_len, d_head) * d_head ** -0.5)
        self.register_buffer(
            "mask", torch.tril(torch.ones(max_len, max_len)).unsqueeze(0).unsqueeze(0)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch_size, seq_len, _ = x.shape
        if seq_len > self.max_len:
            raise ValueError("sequence length exceeds model capacity")

        k_t = self.key(x).reshape(batch_size, seq_len, self.num_heads, -1).permute(0, 2, 3, 1)
        v = self.value(x).reshape(batch_size, seq_len, self.num_heads, -1).transpose(1, 2)
        q = self.query(x).reshape(batch_size, seq_len, self.num_heads, -1).transpose(1, 2)

        start = self.max_len - seq_len
        Er_t = self.Er[start:, :].transpose(0, 1)
        QEr = torch.matmul(q, Er_t)
        Srel = self.skew(QEr)

        attn = (torch.matmul(q, k_t) + Srel) / math.sqrt(q.size(-1))
        mask = self.mask[:, :, :seq_len, :seq_len]
        attn.masked_fill(mask == 0, float("-inf"))
        attn = F.softmax(attn, dim=-1)
        out = torch.matmul(attn, v)
        out = out.transpose(1, 2).reshape(batch_size, seq_len, -1)
        return self.dropout(self.fc_out(out))

    def skew(self, QEr: torch.Tensor) -> torch.Tensor:
        padded = F.pad(QEr, (1, 0))
        batch_size, num_heads, num_rows, num_cols = padded.shape
        reshaped = padded.reshape(batch_size, num_heads, num_cols, num_rows)
        return reshaped[:, :, 1:, :]


class MusicDecoderLayer(nn.Module):
    def __init__(self, d_model=64, num_heads=4, max_len=256, dropout=0.1):
        super().__init__()
        self.rga = RelativeGlobalAttention(d_model, num_heads, max_len=max_len, dropout=dropout)
        self.norm1 = nn.LayerNorm(d_model, eps=1e-6)
        self.ffn_pre = nn.Linear(d_model, d_model // 2)
        self.ffn_suf = nn.Linear(d_model // 2, d_model)
        self.norm2 = nn.LayerNorm(d_model, eps=1e-6)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        out1 = self.norm1(x + self.rga(x))
        ffn = self.ffn_suf(F.relu(self.ffn_pre(out1)))
        return self.norm2(out1 + self.dropout(ffn))
