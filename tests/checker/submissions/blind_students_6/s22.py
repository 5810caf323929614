# expect: correct
# why: right: the ALiBi bias and the causal mask are one float mask given to SDPA
# Домашнее задание: внимание с ALiBi (Press et al., 2021)
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


def get_slopes(n):
    """Наклоны для голов, как в статье (и для n не степени двойки)."""
    def power_of_2(m):
        start = 2 ** (-(2 ** -(math.log2(m) - 3)))
        return [start * start ** i for i in range(m)]

    if math.log2(n).is_integer():
        return power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_2(closest) + get_slopes(2 * closest)[0::2][: n - closest]


class AlibiAttention(nn.Module):
    def __init__(self, d_model, n_heads, dropout=0.0):
        super().__init__()
        assert d_model % n_heads == 0
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.c_attn = nn.Linear(d_model, 3 * d_model)
        self.c_proj = nn.Linear(d_model, d_model)
        self.dropout = dropout
        slopes = torch.tensor(get_slopes(n_heads), dtype=torch.float32)
        self.register_buffer("slopes", slopes.view(n_heads, 1, 1), persistent=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = [t.view(B, T, self.n_heads, self.d_head).transpose(1, 2) for t in (q, k, v)]

        pos = torch.arange(T, device=x.device)
        dist = pos.view(1, T) - pos.view(T, 1)              # j - i, в прошлом отрицательно
        bias = self.slopes.to(q.dtype) * dist               # (heads, T, T)
        bias = bias.masked_fill(dist > 0, float("-inf"))    # будущее закрыто

        # bias прибавляется ПОСЛЕ деления на sqrt(d)
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias.unsqueeze(0),
            dropout_p=self.dropout if self.training else 0.0,
        )
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)
