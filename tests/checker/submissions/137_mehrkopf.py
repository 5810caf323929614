# expect: correct
import torch
import torch.nn as nn


# Hilfsfunktionen ------------------------------------------------------------

def aufteilen(t, koepfe):
    """(B, N, D) -> (B*K, N, D/K)"""
    B, N, D = t.shape
    return t.view(B, N, koepfe, D // koepfe).permute(0, 2, 1, 3).reshape(B * koepfe, N, D // koepfe)


def zusammen(t, koepfe):
    """Umkehrung von aufteilen"""
    BK, N, d = t.shape
    return t.view(BK // koepfe, koepfe, N, d).permute(0, 2, 1, 3).reshape(BK // koepfe, N, koepfe * d)


def log_softmax_von_hand(s):
    m = s.amax(dim=2, keepdim=True)
    return s - m - (s - m).exp().sum(dim=2, keepdim=True).log()


class MehrkopfAttention(nn.Module):
    """Kausale Mehrkopf-Attention, Aufgabe 3.3"""

    def __init__(self, d_in, d_out, kontext, dropout, koepfe, qkv_bias=False):
        super().__init__()
        assert d_out % koepfe == 0
        self.koepfe = koepfe
        self.skala = (d_out // koepfe) ** 0.5
        self.q, self.k, self.v = (nn.Linear(d_in, d_out, bias=qkv_bias) for _ in range(3))
        self.aus = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("zukunft", torch.ones(kontext, kontext, dtype=torch.bool).triu(1))

    def forward(self, x):
        N = x.shape[1]
        q, k, v = (aufteilen(w(x), self.koepfe) for w in (self.q, self.k, self.v))
        s = torch.bmm(q, k.transpose(1, 2)) / self.skala
        s[:, self.zukunft[:N, :N]] = float("-inf")
        a = log_softmax_von_hand(s).exp()
        return self.aus(zusammen(torch.bmm(self.dropout(a), v), self.koepfe))
