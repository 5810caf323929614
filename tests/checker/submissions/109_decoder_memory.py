# expect: value-from-keys
import torch
import torch.nn as nn


class DecoderCrossAttention(nn.Module):
    """交叉注意力：query 来自解码器，key / value 来自编码器输出 (memory)。"""

    def __init__(self, d_model, nhead, dropout=0.0):
        super().__init__()
        self.nhead = nhead
        self.d_head = d_model // nhead
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_o = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, memory, memory_mask=None):
        # x: [B, T, D]  memory: [B, S, D]  memory_mask: [B, S]，True 表示有效
        B, T, D = x.shape
        S = memory.shape[1]
        q = self.w_q(x).view(B, T, self.nhead, self.d_head).transpose(1, 2)
        k = self.w_k(memory).view(B, S, self.nhead, self.d_head).transpose(1, 2)
        v = self.w_k(memory).view(B, S, self.nhead, self.d_head).transpose(1, 2)

        score = q @ k.transpose(-1, -2) / self.d_head ** 0.5
        if memory_mask is not None:
            score = score.masked_fill(~memory_mask[:, None, None, :], -1e9)
        # 归一化
        attn = self.dropout(score.softmax(dim=-1))
        y = (attn @ v).transpose(1, 2).reshape(B, T, D)
        return self.w_o(y)
