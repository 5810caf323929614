# expect: correct
# final project: decoder layer of the translation model (post-norm like the paper)
import torch
import torch.nn as nn


class Attn(nn.Module):
    # mask is required! shape must broadcast to (batch, heads, len_q, len_k), 1 = may look, 0 = may not
    def __init__(self, heads, dim, p=0.1):
        super().__init__()
        self.heads, self.dim = heads, dim
        self.lin_k = nn.Linear(dim, dim)
        self.lin_v = nn.Linear(dim, dim)
        self.lin_q = nn.Linear(dim, dim)
        self.lin_out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(p)

    def forward(self, v, k, q, mask):
        N, Lq, Lk = q.size(0), q.size(1), k.size(1)
        hd = self.dim // self.heads
        v = self.lin_v(v).reshape(N, Lk, self.heads, hd)
        k = self.lin_k(k).reshape(N, Lk, self.heads, hd)
        q = self.lin_q(q).reshape(N, Lq, self.heads, hd)
        energy = torch.einsum("nqhd,nkhd->nhqk", [q, k])
        energy = energy.masked_fill(mask == 0, float("-inf"))
        attention = torch.softmax(energy / (hd ** (1 / 2)), dim=3)
        out = torch.einsum("nhql,nlhd->nqhd", [self.dropout(attention), v])
        return self.lin_out(out.reshape(N, Lq, self.dim))


class DecoderLayer(nn.Module):
    def __init__(self, heads, dim, ff, p=0.1):
        super().__init__()
        self.self_attention = Attn(heads, dim, p)
        self.cross_attention = Attn(heads, dim, p)
        self.ff = nn.Sequential(nn.Linear(dim, ff), nn.ReLU(), nn.Linear(ff, dim))
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.norm3 = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(p)

    def forward(self, x, enc, src_mask, trg_mask):
        x = self.norm1(x + self.dropout(self.self_attention(x, x, x, trg_mask)))
        x = self.norm2(x + self.dropout(self.cross_attention(enc, enc, x, src_mask)))
        return self.norm3(x + self.dropout(self.ff(x)))


def make_src_mask(src, pad=0):
    return (src != pad)[:, None, None, :]


def make_trg_mask(trg):
    N, L = trg.shape
    return torch.tril(torch.ones((L, L), device=trg.device)).expand(N, 1, L, L)


if __name__ == "__main__":
    src = torch.tensor([[5, 6, 7, 0], [8, 9, 0, 0]])
    trg = torch.tensor([[1, 4, 2], [1, 7, 2]])
    e = nn.Embedding(10, 16)
    layer = DecoderLayer(4, 16, 32).eval()
    print(layer(e(trg), e(src), make_src_mask(src), make_trg_mask(trg)).shape)
