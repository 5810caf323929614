# expect: correct
# why: right: sequence first, bmm/baddbmm with an additive float attn_mask
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

# NOTE: everything here is (seq, batch, feature) like nn.RNN / old nn.Transformer


class SeqFirstMHA(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout=0.):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        assert self.head_dim * num_heads == embed_dim
        self.dropout = dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim))
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(self, x, attn_mask=None):
        """
        x         : (T, N, E)
        attn_mask : float tensor (T, T) that is ADDED to the scores (0 or -inf), or None
        """
        T, N, E = x.shape
        q, k, v = F.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=2)

        # (T, N, E) -> (T, N*h, hd) -> (N*h, T, hd)
        q = q.contiguous().view(T, N * self.num_heads, self.head_dim).transpose(0, 1)
        k = k.contiguous().view(T, N * self.num_heads, self.head_dim).transpose(0, 1)
        v = v.contiguous().view(T, N * self.num_heads, self.head_dim).transpose(0, 1)

        q = q / math.sqrt(self.head_dim)
        if attn_mask is None:
            w = torch.bmm(q, k.transpose(1, 2))
        else:
            w = torch.baddbmm(attn_mask.to(q.dtype).expand(N * self.num_heads, T, T), q, k.transpose(1, 2))
        w = F.softmax(w, dim=2)
        w = F.dropout(w, p=self.dropout, training=self.training)
        o = torch.bmm(w, v)                                   # (N*h, T, hd)
        o = o.transpose(0, 1).contiguous().view(T, N, E)
        return self.out_proj(o)


def causal_mask(T):
    return torch.triu(torch.full((T, T), float('-inf')), diagonal=1)
