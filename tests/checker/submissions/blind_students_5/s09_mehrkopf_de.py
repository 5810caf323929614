# expect: split-without-transpose
# why: the heads are split with view(B, h, T, d_kopf) directly, without view(B, T, h, d_kopf).transpose(1, 2), so a head mixes features of different tokens (line 25: `return t.view(B, self.h, T, self.d_kopf)`)
import math
import torch
from torch import nn


class MehrkopfAufmerksamkeit(nn.Module):
    """Multi-Head Self-Attention (Aufgabe 3b)"""

    def __init__(self, d_modell, anzahl_koepfe, p_drop=0.1):
        super().__init__()
        assert d_modell % anzahl_koepfe == 0, "geht nicht auf"
        self.h = anzahl_koepfe
        self.d_kopf = d_modell // anzahl_koepfe
        self.W_q = nn.Linear(d_modell, d_modell)
        self.W_k = nn.Linear(d_modell, d_modell)
        self.W_v = nn.Linear(d_modell, d_modell)
        self.W_o = nn.Linear(d_modell, d_modell)
        self.drop = nn.Dropout(p_drop)

    def aufteilen(self, t):
        # (B, T, C) -> (B, h, T, d_kopf)
        B, T, _ = t.shape
        return t.view(B, self.h, T, self.d_kopf)

    def forward(self, x):
        B, T, C = x.shape
        q = self.aufteilen(self.W_q(x))
        k = self.aufteilen(self.W_k(x))
        v = self.aufteilen(self.W_v(x))

        punkte = q @ k.transpose(-2, -1) / math.sqrt(self.d_kopf)
        gewichte = torch.softmax(punkte, dim=-1)
        gewichte = self.drop(gewichte)

        aus = gewichte @ v
        aus = aus.transpose(1, 2).contiguous().view(B, T, C)
        return self.W_o(aus)


if __name__ == "__main__":
    torch.manual_seed(42)
    x = torch.randn(4, 10, 64)
    mha = MehrkopfAufmerksamkeit(64, 8)
    y = mha(x)
    print("Eingabe:", x.shape, "Ausgabe:", y.shape)
    assert y.shape == x.shape
