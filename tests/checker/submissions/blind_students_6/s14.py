# expect: correct
# why: right though unusual: loops over samples, queries and keys, softmax written by hand
# TP3 - mécanisme d'attention, version naïve avec des boucles
# (le prof a dit : d'abord comprendre, ensuite optimiser)
import math
import torch
import torch.nn as nn


class AttentionNaive(nn.Module):
    def __init__(self, d_entree, d_sortie, causale=True):
        super().__init__()
        self.d_sortie = d_sortie
        self.causale = causale
        self.requete = nn.Linear(d_entree, d_sortie, bias=False)
        self.cle = nn.Linear(d_entree, d_sortie, bias=False)
        self.valeur = nn.Linear(d_entree, d_sortie, bias=False)

    def softmax_liste(self, scores):
        # on enlève le max pour éviter l'overflow
        m = max(s.item() for s in scores)
        exps = [torch.exp(s - m) for s in scores]
        total = sum(exps)
        return [e / total for e in exps]

    def une_sequence(self, x):
        n = x.shape[0]
        Q, K, V = self.requete(x), self.cle(x), self.valeur(x)
        sorties = []
        for i in range(n):
            fin = i + 1 if self.causale else n
            scores = []
            for j in range(fin):
                scores.append(torch.dot(Q[i], K[j]) / math.sqrt(self.d_sortie))
            poids = self.softmax_liste(scores)
            z = torch.zeros_like(V[0])
            for j in range(fin):
                z = z + poids[j] * V[j]
            sorties.append(z)
        return torch.stack(sorties)

    def forward(self, x):
        # x : (lot, longueur, d_entree)
        return torch.stack([self.une_sequence(phrase) for phrase in x])


if __name__ == "__main__":
    att = AttentionNaive(3, 2)
    print(att(torch.rand(2, 6, 3)))
