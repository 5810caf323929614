# expect: mask-result-dropped
import math

import torch
import torch.nn as nn


class KausaleAufmerksamkeit(nn.Module):
    """
    Kausale Selbst-Aufmerksamkeit (ein Kopf).
    Jedes Token darf nur sich selbst und die Tokens davor sehen.

    Eingabe: (batch, tokens, d_ein), Ausgabe: (batch, tokens, d_aus)
    """

    def __init__(self, d_ein, d_aus, kontextlaenge, dropout=0.1, qkv_bias=False):
        super().__init__()
        self.d_aus = d_aus
        self.W_anfrage = nn.Linear(d_ein, d_aus, bias=qkv_bias)
        self.W_schluessel = nn.Linear(d_ein, d_aus, bias=qkv_bias)
        self.W_wert = nn.Linear(d_ein, d_aus, bias=qkv_bias)
        self.dropout = nn.Dropout(dropout)
        # obere Dreiecksmatrix: True = Zukunft
        maske = torch.triu(torch.ones(kontextlaenge, kontextlaenge), diagonal=1).bool()
        self.register_buffer("maske", maske)

    def forward(self, x):
        b, n, _ = x.shape
        anfragen = self.W_anfrage(x)
        schluessel = self.W_schluessel(x)
        werte = self.W_wert(x)

        punkte = anfragen @ schluessel.transpose(-2, -1)
        # Zukunft ausblenden
        punkte.masked_fill(self.maske[:n, :n], -torch.inf)
        gewichte = torch.softmax(punkte / math.sqrt(self.d_aus), dim=-1)
        gewichte = self.dropout(gewichte)
        return gewichte @ werte


if __name__ == "__main__":
    torch.manual_seed(1)
    ka = KausaleAufmerksamkeit(3, 2, 6, dropout=0.0)
    print(ka(torch.rand(2, 6, 3)).shape)
