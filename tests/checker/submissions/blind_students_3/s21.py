# expect: correct
import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiheadAttentionTBC(nn.Module):
    """Everything is (time, batch, channel), like in fairseq."""

    def __init__(self, embed_dim, num_heads, kdim=None, dropout=0.0):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        assert self.head_dim * num_heads == self.embed_dim
        self.scaling = self.head_dim ** -0.5
        kdim = kdim if kdim is not None else embed_dim
        self.dropout = dropout
        self.k_proj = nn.Linear(kdim, embed_dim)
        self.v_proj = nn.Linear(kdim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.reset_parameters()

    def reset_parameters(self):
        for lin in (self.k_proj, self.v_proj, self.q_proj):
            nn.init.xavier_uniform_(lin.weight, gain=2 ** -0.5)
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.constant_(self.out_proj.bias, 0.0)

    def _shape(self, t, length, bsz):
        return t.contiguous().view(length, bsz * self.num_heads, self.head_dim).transpose(0, 1)

    def forward(self, query, key, value, key_padding_mask=None, attn_mask=None, need_weights=False):
        tgt_len, bsz, _ = query.size()
        src_len = key.size(0)

        q = self._shape(self.q_proj(query) * self.scaling, tgt_len, bsz)
        k = self._shape(self.k_proj(key), src_len, bsz)
        v = self._shape(self.v_proj(value), src_len, bsz)

        w = torch.bmm(q, k.transpose(1, 2))
        assert list(w.size()) == [bsz * self.num_heads, tgt_len, src_len]

        if attn_mask is not None:          # additive (tgt_len, src_len)
            w = w + attn_mask.unsqueeze(0)
        if key_padding_mask is not None:   # (bsz, src_len), True = pad
            w = w.view(bsz, self.num_heads, tgt_len, src_len)
            w = w.masked_fill(key_padding_mask.unsqueeze(1).unsqueeze(2), float("-inf"))
            w = w.view(bsz * self.num_heads, tgt_len, src_len)

        w_float = F.softmax(w, dim=-1, dtype=torch.float32)
        w = w_float.type_as(w)
        probs = F.dropout(w, p=self.dropout, training=self.training)
        out = torch.bmm(probs, v)
        out = out.transpose(0, 1).contiguous().view(tgt_len, bsz, self.embed_dim)
        out = self.out_proj(out)
        if need_weights:
            avg = w_float.view(bsz, self.num_heads, tgt_len, src_len).mean(dim=1)
            return out, avg
        return out, None


def buffered_future_mask(n):
    return torch.triu(torch.full((n, n), float("-inf")), 1)
