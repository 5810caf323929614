# expect: scale-by-d-out, mask-result-dropped
# why: Line 26: scores are divided by sqrt(d_model) instead of sqrt(d_k). Shows always (more than one head).
# why: Line 28: masked_fill is not in place and its result is thrown away, the mask has no effect. Shows only when a mask is passed.
import copy
import math
import torch
import torch.nn as nn


def clones(module, N):
    "Produce N identical layers."
    return nn.ModuleList([copy.deepcopy(module) for _ in range(N)])


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model, dropout=0.1):
        "Take in model size and number of heads."
        super(MultiHeadedAttention, self).__init__()
        assert d_model % h == 0
        self.d_model = d_model
        self.d_k = d_model // h
        self.h = h
        self.linears = clones(nn.Linear(d_model, d_model), 4)
        self.attn = None
        self.dropout = nn.Dropout(p=dropout)

    def attention(self, query, key, value, mask=None):
        "Compute 'Scaled Dot Product Attention'"
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_model)
        if mask is not None:
            scores.masked_fill(mask == 0, -1e9)
        p_attn = scores.softmax(dim=-1)
        p_attn = self.dropout(p_attn)
        return torch.matmul(p_attn, value), p_attn

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            # Same mask applied to all h heads.
            mask = mask.unsqueeze(1)
        nbatches = query.size(0)

        # 1) Do all the linear projections in batch from d_model => h x d_k
        query, key, value = [
            lin(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value))
        ]

        # 2) Apply attention on all the projected vectors in batch.
        x, self.attn = self.attention(query, key, value, mask=mask)

        # 3) "Concat" using a view and apply a final linear.
        x = x.transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
        return self.linears[-1](x)


if __name__ == "__main__":
    mha = MultiHeadedAttention(4, 32)
    x = torch.randn(2, 7, 32)
    mask = torch.tril(torch.ones(1, 7, 7))
    print(mha(x, x, x, mask).shape)
