# expect: correct
# TP n°6 : attention locale (fenêtre glissante) et causale
# Chaque mot regarde lui-même et les (fenetre - 1) mots précédents.
import torch
import torch.nn as nn


class AttentionLocale(nn.Module):
    def __init__(self, taille_entree, taille_sortie, nb_tetes, fenetre, biais=False):
        super().__init__()
        assert taille_sortie % nb_tetes == 0
        assert fenetre >= 1
        self.nb_tetes = nb_tetes
        self.dim_tete = taille_sortie // nb_tetes
        self.fenetre = fenetre
        self.requete = nn.Linear(taille_entree, taille_sortie, bias=biais)
        self.cle = nn.Linear(taille_entree, taille_sortie, bias=biais)
        self.valeur = nn.Linear(taille_entree, taille_sortie, bias=biais)
        self.sortie = nn.Linear(taille_sortie, taille_sortie)

    def decouper(self, z):
        lot, longueur, _ = z.size()
        return z.view(lot, longueur, self.nb_tetes, self.dim_tete).permute(2, 0, 1, 3)

    def visible(self, longueur, device):
        i = torch.arange(longueur, device=device)
        retard = i.unsqueeze(1) - i.unsqueeze(0)      # ligne - colonne
        return (retard >= 0) & (retard < self.fenetre)

    def forward(self, x):
        # les têtes sont ici la PREMIERE dimension : (tetes, lot, longueur, dim)
        q = self.decouper(self.requete(x))
        k = self.decouper(self.cle(x))
        v = self.decouper(self.valeur(x))

        scores = q.matmul(k.transpose(-1, -2)).div(self.dim_tete ** 0.5)
        cache = ~self.visible(x.size(1), x.device)
        poids = scores.masked_fill(cache, float("-inf")).softmax(-1)

        y = torch.cat(list(poids.matmul(v)), dim=-1)  # recolle les têtes
        return self.sortie(y)


if __name__ == "__main__":
    couche = AttentionLocale(10, 24, nb_tetes=4, fenetre=3)
    print(couche.visible(6, "cpu").int())
    print(couche(torch.randn(2, 6, 10)).shape)
