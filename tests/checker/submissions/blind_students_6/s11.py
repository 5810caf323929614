# expect: correct
# why: right: cross attention with another source width, True in the mask means padding
# Übungsblatt 5, Aufgabe 3: Kreuzaufmerksamkeit (Cross-Attention)
import torch
from torch import nn


class Kreuzaufmerksamkeit(nn.Module):
    def __init__(self, dim_ziel, dim_quelle, koepfe=4, dim_kopf=16, dropout=0.0):
        super().__init__()
        innen = koepfe * dim_kopf
        self.koepfe = koepfe
        self.skalierung = dim_kopf ** -0.5
        self.nach_q = nn.Linear(dim_ziel, innen, bias=False)
        self.nach_k = nn.Linear(dim_quelle, innen, bias=False)
        self.nach_v = nn.Linear(dim_quelle, innen, bias=False)
        self.ausgabe = nn.Sequential(nn.Linear(innen, dim_ziel), nn.Dropout(dropout))

    def teile_koepfe(self, t):
        b, n, d = t.shape
        return t.reshape(b, n, self.koepfe, d // self.koepfe).permute(0, 2, 1, 3)

    def forward(self, ziel, quelle, fuellmaske=None):
        """
        ziel:       (B, N, dim_ziel)     stellt die Anfragen
        quelle:     (B, M, dim_quelle)   liefert Schlüssel und Werte
        fuellmaske: (B, M) bool, True = Füllzeichen, wird ignoriert
        """
        q = self.teile_koepfe(self.nach_q(ziel)) * self.skalierung
        k = self.teile_koepfe(self.nach_k(quelle))
        v = self.teile_koepfe(self.nach_v(quelle))

        aehnlichkeit = torch.einsum("bhnd,bhmd->bhnm", q, k)
        if fuellmaske is not None:
            kleinster = -torch.finfo(aehnlichkeit.dtype).max
            aehnlichkeit = aehnlichkeit.masked_fill(fuellmaske[:, None, None, :], kleinster)
        gewichte = aehnlichkeit.softmax(dim=-1)

        ergebnis = torch.einsum("bhnm,bhmd->bnhd", gewichte, v)
        return self.ausgabe(ergebnis.flatten(start_dim=2))


if __name__ == "__main__":
    schicht = Kreuzaufmerksamkeit(32, 48)
    z = torch.randn(2, 7, 32)
    s = torch.randn(2, 11, 48)
    print(schicht(z, s).shape)
