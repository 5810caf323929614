# expect: wrong
# why: Line 18: the positional code has shape (max_len, 1, d) but the input is (batch, length, d), and it is cut with x.size(0) (batch): each sentence gets one constant vector, all its tokens the same, so positions are missing.
# why: Line 44: the output projection W_o (line 29) is never applied; the concatenated heads are returned as they are and W_o gets no gradient.
# why: Line 49: torch.triu without diagonal=1 also forbids the token itself; the first row is fully forbidden and with -1e9 (line 40) becomes uniform over all words, future included.
# TP4 : traduction automatique avec un Transformer
import math
import torch
import torch.nn as nn


class EncodagePositionnel(nn.Module):
    def __init__(self, d_modele, longueur_max=500):
        super().__init__()
        pe = torch.zeros(longueur_max, d_modele)
        position = torch.arange(longueur_max).unsqueeze(1).float()
        div = torch.exp(torch.arange(0, d_modele, 2).float() * (-math.log(10000.0) / d_modele))
        pe[:, 0::2] = torch.sin(position * div)
        pe[:, 1::2] = torch.cos(position * div)
        self.register_buffer("pe", pe.unsqueeze(1))

    def forward(self, x):
        return x + self.pe[:x.size(0)]


class AttentionMultiTete(nn.Module):
    def __init__(self, d_modele, n_tetes):
        super().__init__()
        self.n_tetes = n_tetes
        self.d_tete = d_modele // n_tetes
        self.W_q = nn.Linear(d_modele, d_modele)
        self.W_k = nn.Linear(d_modele, d_modele)
        self.W_v = nn.Linear(d_modele, d_modele)
        self.W_o = nn.Linear(d_modele, d_modele)

    def decouper(self, x):
        lot, longueur, _ = x.shape
        return x.view(lot, longueur, self.n_tetes, self.d_tete).transpose(1, 2)

    def forward(self, q, k, v, masque=None):
        Q = self.decouper(self.W_q(q))
        K = self.decouper(self.W_k(k))
        V = self.decouper(self.W_v(v))
        scores = Q @ K.transpose(-2, -1) / math.sqrt(self.d_tete)
        if masque is not None:
            scores = scores.masked_fill(masque, -1e9)   # True = position interdite
        poids = torch.softmax(scores, dim=-1)
        sortie = (poids @ V).transpose(1, 2).contiguous()
        return sortie.view(sortie.size(0), sortie.size(1), -1)


def masque_futur(n):
    """empeche le decodeur de regarder les mots suivants"""
    return torch.triu(torch.ones(n, n)).bool()


class CoucheDecodeur(nn.Module):
    def __init__(self, d_modele, n_tetes, d_ff):
        super().__init__()
        self.auto_attention = AttentionMultiTete(d_modele, n_tetes)
        self.attention_croisee = AttentionMultiTete(d_modele, n_tetes)
        self.ff = nn.Sequential(nn.Linear(d_modele, d_ff), nn.ReLU(), nn.Linear(d_ff, d_modele))
        self.n1, self.n2, self.n3 = nn.LayerNorm(d_modele), nn.LayerNorm(d_modele), nn.LayerNorm(d_modele)

    def forward(self, x, memoire, masque_src=None):
        m = masque_futur(x.size(1)).to(x.device)
        x = self.n1(x + self.auto_attention(x, x, x, m))
        x = self.n2(x + self.attention_croisee(x, memoire, memoire, masque_src))
        return self.n3(x + self.ff(x))


class Decodeur(nn.Module):
    def __init__(self, vocab, d_modele=64, n_tetes=4, n_couches=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, d_modele)
        self.pos = EncodagePositionnel(d_modele)
        self.couches = nn.ModuleList([CoucheDecodeur(d_modele, n_tetes, 256) for _ in range(n_couches)])
        self.sortie = nn.Linear(d_modele, vocab)
        self.d_modele = d_modele

    def forward(self, tgt, memoire, masque_src=None):
        # tgt : (lot, longueur)
        x = self.pos(self.emb(tgt) * math.sqrt(self.d_modele))
        for couche in self.couches:
            x = couche(x, memoire, masque_src)
        return self.sortie(x)


if __name__ == "__main__":
    dec = Decodeur(100)
    print(dec(torch.randint(0, 100, (3, 7)), torch.randn(3, 9, 64)).shape)
