# expect: correct
# why: right though unusual: cross-attention with different text and image widths and a ModuleList filled by append
import math
import torch
import torch.nn as nn


class TeteAttention(nn.Module):
    """Une tête d'attention croisée : requêtes <- texte, clés/valeurs <- image"""

    def __init__(self, dim_texte, dim_image, dim_tete):
        super().__init__()
        self.requete = nn.Linear(dim_texte, dim_tete)
        self.cle = nn.Linear(dim_image, dim_tete)
        self.valeur = nn.Linear(dim_image, dim_tete)

    def forward(self, texte, image):
        r = self.requete(texte)
        c = self.cle(image)
        v = self.valeur(image)
        poids = nn.functional.softmax(r.matmul(c.mT) / math.sqrt(r.shape[-1]), dim=-1)
        return poids.matmul(v)


class AttentionCroisee(nn.Module):
    def __init__(self, dim_texte, dim_image, nb_tetes):
        super().__init__()
        assert dim_texte % nb_tetes == 0
        self.tetes = nn.ModuleList()
        for _ in range(nb_tetes):
            self.tetes.append(TeteAttention(dim_texte, dim_image, dim_texte // nb_tetes))
        self.sortie = nn.Linear(dim_texte, dim_texte)

    def forward(self, texte, image):
        resultats = []
        for tete in self.tetes:
            resultats.append(tete(texte, image))
        return self.sortie(torch.cat(resultats, dim=2))


if __name__ == "__main__":
    torch.manual_seed(1)
    texte = torch.randn(2, 7, 12)    # 7 mots
    image = torch.randn(2, 16, 20)   # 16 patchs
    couche = AttentionCroisee(12, 20, 3)
    print("forme :", couche(texte, image).shape)
