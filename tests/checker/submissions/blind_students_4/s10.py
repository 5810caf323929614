# expect: correct
# Übungsblatt 5, Aufgabe 2: Multi-Head-Attention (Encoder und Decoder)
# Maske: 1/True = darf gesehen werden, 0/False = wird ausgeblendet
import math
import torch
from torch import nn, Tensor


def skalierte_aufmerksamkeit(frage: Tensor, schluessel: Tensor, wert: Tensor,
                             maske: Tensor | None = None,
                             auslassen: nn.Module | None = None) -> tuple[Tensor, Tensor]:
    tiefe = schluessel.size(-1)
    punkte = frage @ schluessel.transpose(-1, -2) / math.sqrt(tiefe)
    if maske is not None:
        punkte = punkte.masked_fill(maske == 0, -1e9)
    gewichte = punkte.softmax(dim=-1)
    if auslassen is not None:
        gewichte = auslassen(gewichte)
    return gewichte @ wert, gewichte


class MehrkopfAufmerksamkeit(nn.Module):
    def __init__(self, d_modell: int, koepfe: int, p: float = 0.1) -> None:
        super().__init__()
        assert d_modell % koepfe == 0
        self.koepfe = koepfe
        self.d_kopf = d_modell // koepfe
        self.lin_f = nn.Linear(d_modell, d_modell)
        self.lin_s = nn.Linear(d_modell, d_modell)
        self.lin_w = nn.Linear(d_modell, d_modell)
        self.lin_aus = nn.Linear(d_modell, d_modell)
        self.auslassen = nn.Dropout(p)
        self.gewichte: Tensor | None = None  # zum Anschauen im Notebook

    def teile(self, t: Tensor) -> Tensor:
        n, laenge, _ = t.shape
        return t.view(n, laenge, self.koepfe, self.d_kopf).transpose(1, 2)

    def forward(self, frage: Tensor, schluessel: Tensor, wert: Tensor,
                maske: Tensor | None = None) -> Tensor:
        if maske is not None:
            maske = maske.unsqueeze(1)   # (N, 1, Tq, Tk)
        f = self.teile(self.lin_f(frage))
        s = self.teile(self.lin_s(schluessel))
        w = self.teile(self.lin_w(wert))
        y, gew = skalierte_aufmerksamkeit(f, s, w, maske, self.auslassen)
        self.gewichte = gew.detach()
        y = y.transpose(1, 2).flatten(2)
        return self.lin_aus(y)


if __name__ == "__main__":
    x = torch.randn(3, 6, 32)
    dreieck = torch.tril(torch.ones(1, 6, 6))
    schicht = MehrkopfAufmerksamkeit(32, 4).eval()
    print(schicht(x, x, x, dreieck).shape)
