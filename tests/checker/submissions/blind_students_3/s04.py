# expect: correct
"""Seq2Seq mit Bahdanau-Attention (Uebungsblatt 7)."""
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Encoder(nn.Module):
    def __init__(self, vokab, emb, hid):
        super().__init__()
        self.emb = nn.Embedding(vokab, emb)
        self.rnn = nn.GRU(emb, hid, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * hid, hid)

    def forward(self, src, laengen):
        e = self.emb(src)
        gepackt = pack_padded_sequence(e, laengen.cpu(), batch_first=True, enforce_sorted=False)
        out, h = self.rnn(gepackt)
        out, _ = pad_packed_sequence(out, batch_first=True, total_length=src.size(1))
        # letzter Zustand vorwaerts + rueckwaerts
        h = torch.tanh(self.fc(torch.cat([h[0], h[1]], dim=-1)))
        return out, h


class BahdanauAttention(nn.Module):
    """e_ij = v^T tanh(W s_i + U h_j)"""

    def __init__(self, dec_dim, enc_dim, attn_dim):
        super().__init__()
        self.W = nn.Linear(dec_dim, attn_dim, bias=False)
        self.U = nn.Linear(enc_dim, attn_dim, bias=False)
        self.v = nn.Linear(attn_dim, 1, bias=False)

    def forward(self, s, H, laengen=None):
        # s: (B, dec_dim)   H: (B, T, enc_dim)
        e = self.v(torch.tanh(self.W(s).unsqueeze(1) + self.U(H))).squeeze(-1)   # (B, T)
        if laengen is not None:
            pos = torch.arange(H.size(1), device=H.device)
            gueltig = pos[None, :] < laengen.to(H.device)[:, None]
            e = e.masked_fill(~gueltig, float("-inf"))
        alpha = torch.softmax(e, dim=1)
        kontext = torch.bmm(alpha.unsqueeze(1), H).squeeze(1)
        return kontext, alpha


class Decoder(nn.Module):
    def __init__(self, vokab, emb, hid, enc_dim, attn_dim=32):
        super().__init__()
        self.emb = nn.Embedding(vokab, emb)
        self.attention = BahdanauAttention(hid, enc_dim, attn_dim)
        self.zelle = nn.GRUCell(emb + enc_dim, hid)
        self.out = nn.Linear(hid + enc_dim + emb, vokab)

    def forward(self, tgt, h, H, laengen):
        # Teacher forcing: tgt[:, t] ist die Eingabe im Schritt t
        logits, alphas = [], []
        for t in range(tgt.size(1)):
            e = self.emb(tgt[:, t])
            c, a = self.attention(h, H, laengen)
            h = self.zelle(torch.cat([e, c], dim=-1), h)
            logits.append(self.out(torch.cat([h, c, e], dim=-1)))
            alphas.append(a)
        return torch.stack(logits, dim=1), torch.stack(alphas, dim=1)


if __name__ == "__main__":
    enc, dec = Encoder(50, 16, 24), Decoder(60, 16, 24, 48)
    src = torch.randint(1, 50, (3, 9))
    L = torch.tensor([9, 4, 6])
    H, h = enc(src, L)
    y, a = dec(torch.randint(1, 60, (3, 5)), h, H, L)
    print(y.shape, a.shape, a.sum(-1))
