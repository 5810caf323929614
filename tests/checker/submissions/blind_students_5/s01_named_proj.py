# expect: value-from-keys
# why: the values are projected with k_proj instead of v_proj (copy and paste), v_proj is never used (line 27: `value = self.k_proj(value).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)`)
from math import sqrt
import torch
from torch import nn, Tensor


class MultiHeadedAttention(nn.Module):
    """Same as the annotated transformer, but with named projections
    (I find the zip over self.linears hard to read)."""

    def __init__(self, h: int, d_model: int, dropout: float = 0.1):
        super().__init__()
        assert d_model % h == 0
        self.h = h
        self.d_k = d_model // h
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.o_proj = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor = None) -> Tensor:
        nbatches = query.size(0)
        query = self.q_proj(query).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
        key = self.k_proj(key).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
        value = self.k_proj(value).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)

        scores = query @ key.transpose(-2, -1) / sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        p_attn = self.dropout(scores.softmax(dim=-1))

        x = (p_attn @ value).transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
        return self.o_proj(x)


if __name__ == "__main__":
    layer = MultiHeadedAttention(8, 128)
    q, kv = torch.randn(2, 5, 128), torch.randn(2, 11, 128)
    mask = torch.ones(2, 1, 11)
    mask[1, :, 9:] = 0
    print(layer(q, kv, kv, mask).shape)
