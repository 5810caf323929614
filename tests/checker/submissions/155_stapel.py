# expect: correct
# Hausaufgabe Kapitel 3: mehrere Köpfe stapeln (Wrapper-Variante)
import torch
import torch.nn as nn


class EinKopf(nn.Module):
    """Ein kausaler Aufmerksamkeitskopf, liefert Kontext und Gewichte."""

    def __init__(self, d_in, d_kopf, max_laenge, dropout, bias):
        super().__init__()
        self.q = nn.Linear(d_in, d_kopf, bias=bias)
        self.k = nn.Linear(d_in, d_kopf, bias=bias)
        self.v = nn.Linear(d_in, d_kopf, bias=bias)
        self.dropout = nn.Dropout(dropout)
        zeile = torch.full((max_laenge, max_laenge), float("-inf"))
        self.register_buffer("zukunft", torch.triu(zeile, diagonal=1))

    def forward(self, x):
        t = x.size(-2)
        q, k, v = self.q(x), self.k(x), self.v(x)
        p = q @ k.transpose(-1, -2) / k.size(-1) ** 0.5
        # die Maske wird einfach addiert (0 oder -unendlich)
        w = torch.softmax(p + self.zukunft[:t, :t], dim=-1)
        w = self.dropout(w)
        return w @ v, w


class KopfStapel(nn.Module):
    """d_out ist hier die GESAMTE Ausgabegröße, jeder Kopf bekommt d_out / koepfe."""

    def __init__(self, d_in, d_out, koepfe=4, max_laenge=128, dropout=0.0, bias=False):
        super().__init__()
        assert d_out % koepfe == 0
        self.koepfe = nn.ModuleList()
        for _ in range(koepfe):
            self.koepfe.append(EinKopf(d_in, d_out // koepfe, max_laenge, dropout, bias))
        self.aus = nn.Linear(d_out, d_out)

    def forward(self, x, mit_gewichten=False):
        kontexte, gewichte = [], []
        for kopf in self.koepfe:
            c, w = kopf(x)
            kontexte.append(c)
            gewichte.append(w)
        y = self.aus(torch.cat(kontexte, dim=-1))
        if mit_gewichten:
            return y, torch.stack(gewichte, dim=1)
        return y


torch.manual_seed(0)
stapel = KopfStapel(3, 8)
beispiel = torch.rand(2, 6, 3)
print(stapel(beispiel).shape)
_, g = stapel(beispiel, mit_gewichten=True)
print(g.shape)
print("Parameter:", sum(p.numel() for p in stapel.parameters()))
