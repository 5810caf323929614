# expect: mask-fill-not-inf, scale-by-d-out, merge-without-transpose
# why: three mistakes: masked scores are filled with 1e-9 instead of -1e9, the temperature is sqrt(d_model) instead of sqrt(d_k), and the heads are merged with view without transpose(1, 2) (line 20: `attn = attn.masked_fill(mask == 0, 1e-9)`; line 34: `self.attention = ScaledDotProductAttention(temperature=np.power(d_model, 0.5))`; line 49: `out = out.contiguous().view(sz_b, len_q, -1)`)
"""
HW 5 - Transformer encoder
Name: ____________
"""
import numpy as np
import torch
import torch.nn as nn


class ScaledDotProductAttention(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, q, k, v, mask=None):
        attn = torch.matmul(q, k.transpose(2, 3)) / self.temperature
        if mask is not None:
            attn = attn.masked_fill(mask == 0, 1e-9)
        attn = torch.softmax(attn, dim=-1)
        return torch.matmul(attn, v), attn


class MultiHeadAttention(nn.Module):
    def __init__(self, n_head, d_model):
        super().__init__()
        self.n_head = n_head
        self.d_k = d_model // n_head
        self.w_qs = nn.Linear(d_model, d_model, bias=False)
        self.w_ks = nn.Linear(d_model, d_model, bias=False)
        self.w_vs = nn.Linear(d_model, d_model, bias=False)
        self.fc = nn.Linear(d_model, d_model, bias=False)
        self.attention = ScaledDotProductAttention(temperature=np.power(d_model, 0.5))
        self.layer_norm = nn.LayerNorm(d_model, eps=1e-6)

    def forward(self, q, k, v, mask=None):
        sz_b, len_q, len_k, len_v = q.size(0), q.size(1), k.size(1), v.size(1)
        residual = q

        q = self.w_qs(q).view(sz_b, len_q, self.n_head, self.d_k).transpose(1, 2)
        k = self.w_ks(k).view(sz_b, len_k, self.n_head, self.d_k).transpose(1, 2)
        v = self.w_vs(v).view(sz_b, len_v, self.n_head, self.d_k).transpose(1, 2)

        if mask is not None:
            mask = mask.unsqueeze(1)   # for head axis broadcasting

        out, attn = self.attention(q, k, v, mask=mask)
        out = out.contiguous().view(sz_b, len_q, -1)
        out = self.fc(out) + residual
        return self.layer_norm(out), attn


if __name__ == "__main__":
    seq = torch.tensor([[3, 4, 5, 0, 0], [6, 7, 8, 9, 2]])
    pad_mask = (seq != 0).unsqueeze(-2)
    x = nn.Embedding(10, 32)(seq)
    mha = MultiHeadAttention(4, 32)
    y, a = mha(x, x, x, pad_mask)
    print(y.shape, a.shape)
