# expect: sdpa-mask-polarity
import torch
import torch.nn as nn
import torch.nn.functional as F


class TextAttentionLayer(nn.Module):
    def __init__(self, emb, nheads, pad_id=0, vocab=100):
        super().__init__()
        self.pad_id = pad_id
        self.nheads = nheads
        self.embed = nn.Embedding(vocab, emb, padding_idx=pad_id)
        self.qkv = nn.Linear(emb, emb * 3)
        self.out = nn.Linear(emb, emb)

    def forward(self, ids):
        # ids: (batch, length) of token numbers, right padded with pad_id
        x = self.embed(ids)
        batch, length, emb = x.shape

        q, k, v = self.qkv(x).view(batch, length, 3, self.nheads, emb // self.nheads).unbind(2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

        pad_mask = None
        if (ids == self.pad_id).any():
            # True on the positions that have to be ignored
            pad_mask = (ids == self.pad_id)[:, None, None, :]

        y = F.scaled_dot_product_attention(q, k, v, attn_mask=pad_mask)
        return self.out(y.transpose(1, 2).reshape(batch, length, emb))
