# expect: correct
import math
import torch
import torch.nn as nn

PAD_IDX = 0


class MHA(nn.Module):
    def __init__(self, d, h, p):
        super().__init__()
        self.h, self.dk = h, d // h
        self.proj = nn.ModuleDict({n: nn.Linear(d, d) for n in ("q", "k", "v", "o")})
        self.drop = nn.Dropout(p)

    def forward(self, q, kv, blocked=None):
        """blocked: bool, broadcastable to (B, h, Tq, Tk); True = not allowed"""
        B = q.shape[0]
        def heads(name, t):
            return self.proj[name](t).reshape(B, t.shape[1], self.h, self.dk).permute(0, 2, 1, 3)
        Q, K, V = heads("q", q), heads("k", kv), heads("v", kv)
        # put the scale half on q and half on k
        s = (Q * self.dk ** -0.25) @ (K * self.dk ** -0.25).permute(0, 1, 3, 2)
        if blocked is not None:
            s = s.masked_fill(blocked, -1e9)
        a = self.drop(torch.softmax(s, -1))
        return self.proj["o"]((a @ V).permute(0, 2, 1, 3).flatten(2))


class EncLayer(nn.Module):
    def __init__(self, d, h, ff, p):
        super().__init__()
        self.sa = MHA(d, h, p)
        self.ff = nn.Sequential(nn.Linear(d, ff), nn.ReLU(), nn.Linear(ff, d))
        self.ln = nn.ModuleList([nn.LayerNorm(d) for _ in range(2)])
        self.drop = nn.Dropout(p)

    def forward(self, x, src_block):
        x = self.ln[0](x + self.drop(self.sa(x, x, src_block)))
        return self.ln[1](x + self.drop(self.ff(x)))


class DecLayer(nn.Module):
    def __init__(self, d, h, ff, p):
        super().__init__()
        self.sa, self.ca = MHA(d, h, p), MHA(d, h, p)
        self.ff = nn.Sequential(nn.Linear(d, ff), nn.ReLU(), nn.Linear(ff, d))
        self.ln = nn.ModuleList([nn.LayerNorm(d) for _ in range(3)])
        self.drop = nn.Dropout(p)

    def forward(self, y, mem, tgt_block, src_block):
        y = self.ln[0](y + self.drop(self.sa(y, y, tgt_block)))
        y = self.ln[1](y + self.drop(self.ca(y, mem, src_block)))
        return self.ln[2](y + self.drop(self.ff(y)))


class Seq2SeqTransformer(nn.Module):
    def __init__(self, src_vocab, tgt_vocab, d=64, h=4, ff=128, layers=2, max_len=200, p=0.1):
        super().__init__()
        self.d = d
        self.src_emb = nn.Embedding(src_vocab, d, padding_idx=PAD_IDX)
        self.tgt_emb = nn.Embedding(tgt_vocab, d, padding_idx=PAD_IDX)
        pos = torch.arange(max_len)[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
        pe = torch.stack([pos.sin(), pos.cos()], dim=-1).flatten(1)
        self.register_buffer("pe", pe[None])
        self.enc = nn.ModuleList([EncLayer(d, h, ff, p) for _ in range(layers)])
        self.dec = nn.ModuleList([DecLayer(d, h, ff, p) for _ in range(layers)])
        self.out = nn.Linear(d, tgt_vocab)

    def forward(self, src, tgt):
        src_block = (src == PAD_IDX)[:, None, None, :]
        T = tgt.size(1)
        tgt_block = torch.triu(torch.ones(T, T, dtype=torch.bool, device=tgt.device), 1)
        tgt_block = tgt_block | (tgt == PAD_IDX)[:, None, None, :]
        x = self.src_emb(src) * math.sqrt(self.d) + self.pe[:, :src.size(1)]
        for l in self.enc:
            x = l(x, src_block)
        y = self.tgt_emb(tgt) * math.sqrt(self.d) + self.pe[:, :T]
        for l in self.dec:
            y = l(y, x, tgt_block, src_block)
        return self.out(y)


if __name__ == "__main__":
    m = Seq2SeqTransformer(50, 60)
    print(m(torch.randint(1, 50, (2, 9)), torch.randint(1, 60, (2, 7))).shape)
