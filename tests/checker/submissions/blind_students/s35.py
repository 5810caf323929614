# expect: correct
# Übung 7: Aufmerksamkeit (Maschinelles Lernen 2)
import torch
import torch.nn as nn


class Aufmerksamkeit(nn.Module):
    """Einköpfige, kausale Aufmerksamkeit.

    Im Skript sind Vektoren Spalten, deshalb steht K vor Q:  S = K Q^T / sqrt(d)
    S[j, i] = wie gut passt Schlüssel j zu Abfrage i
    """

    def __init__(self, d_ein, d_aus, dropout=0.0):
        super().__init__()
        self.abfrage = nn.Linear(d_ein, d_aus, bias=False)
        self.schluessel = nn.Linear(d_ein, d_aus, bias=False)
        self.wert = nn.Linear(d_ein, d_aus, bias=False)
        self.wurzel_d = d_aus ** 0.5
        self.weglassen = nn.Dropout(dropout)

    def forward(self, x):
        a = self.abfrage(x)
        s = self.schluessel(x)
        w = self.wert(x)

        S = s @ a.transpose(1, 2) / self.wurzel_d           # (B, Schlüssel, Abfrage)
        n = x.shape[1]
        # Schlüssel j > Abfrage i ist Zukunft -> unteres Dreieck ohne Diagonale
        zukunft = torch.ones(n, n, dtype=torch.bool, device=x.device).tril(-1)
        S = S.masked_fill(zukunft, float("-inf"))
        G = torch.softmax(S, dim=1)                          # Summe über die Schlüssel
        G = self.weglassen(G)
        return G.transpose(1, 2) @ w


if __name__ == "__main__":
    schicht = Aufmerksamkeit(5, 6)
    print(schicht(torch.randn(2, 4, 5)))
