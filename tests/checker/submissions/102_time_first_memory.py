# expect: correct
import torch
import torch.nn as nn


class CrossAttnSBC(nn.Module):
    """Decoder -> encoder attention, everything is (time, batch, channel).

    key_padding_mask: (batch, src_time) bool, True = padding, to be ignored
    attn_mask: (tgt_time, src_time) float, added to the scores
    """

    def __init__(self, emb, kdim, nhead, drop=0.0):
        super().__init__()
        self.nhead = nhead
        self.hd = emb // nhead
        self.in_q = nn.Linear(emb, emb)
        self.in_kv = nn.Linear(kdim, 2 * emb)
        self.out = nn.Linear(emb, emb)
        self.drop = drop

    def forward(self, tgt, mem, key_padding_mask=None, attn_mask=None):
        T, B, E = tgt.size()
        S = mem.size(0)
        q = self.in_q(tgt) * self.hd ** -0.5
        k, v = self.in_kv(mem).split(E, dim=2)
        q = q.contiguous().view(T, B * self.nhead, self.hd).transpose(0, 1)
        k = k.contiguous().view(S, B * self.nhead, self.hd).transpose(0, 1)
        v = v.contiguous().view(S, B * self.nhead, self.hd).transpose(0, 1)

        w = torch.bmm(q, k.transpose(1, 2))
        if attn_mask is not None:
            w = w + attn_mask.unsqueeze(0)
        if key_padding_mask is not None:
            w = w.view(B, self.nhead, T, S)
            w = w.masked_fill(key_padding_mask[:, None, None], float("-inf"))
            w = w.view(B * self.nhead, T, S)
        w = torch.softmax(w, -1)
        w = nn.functional.dropout(w, self.drop, self.training)
        y = torch.bmm(w, v).transpose(0, 1).reshape(T, B, E)
        return self.out(y), w.view(B, self.nhead, T, S).mean(1)
