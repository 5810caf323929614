# expect: kv-heads-do-not-match
import torch
import torch.nn as nn
import torch.nn.functional as F


class SharedKVAttention(nn.Module):
    def __init__(self, model_dim, heads, kv_heads, causal=True):
        super().__init__()
        assert model_dim % heads == 0 and heads % kv_heads == 0
        self.heads = heads
        self.kv_heads = kv_heads
        self.hd = model_dim // heads
        self.causal = causal
        self.lin_q = nn.Linear(model_dim, heads * self.hd)
        self.lin_k = nn.Linear(model_dim, kv_heads * self.hd)
        self.lin_v = nn.Linear(model_dim, kv_heads * self.hd)
        self.lin_o = nn.Linear(heads * self.hd, model_dim)

    def forward(self, seq):
        B, L, _ = seq.shape
        n_rep = self.heads // self.kv_heads

        q = self.lin_q(seq).view(B, L, self.heads, self.hd).transpose(1, 2)
        k = self.lin_k(seq).view(B, L, self.kv_heads, self.hd).transpose(1, 2)
        v = self.lin_v(seq).view(B, L, self.kv_heads, self.hd).transpose(1, 2)

        # bring kv heads up to the number of query heads
        k = k.repeat(1, n_rep, 1, 1)
        v = v.repeat_interleave(n_rep, dim=1)

        o = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        o = o.transpose(1, 2).reshape(B, L, self.heads * self.hd)
        return self.lin_o(o)
