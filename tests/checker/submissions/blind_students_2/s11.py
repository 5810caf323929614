# expect: correct
# what: German names, ModuleList of heads in a loop, True=padding mask, optional averaged weights
# Übungsblatt 8, Aufgabe 3 - Mehrkopf-Aufmerksamkeit
# Gruppe 17
import torch
import torch.nn as nn


class EinKopf(nn.Module):
    def __init__(self, d_modell, d_kopf, p_dropout):
        super().__init__()
        self.anfrage = nn.Linear(d_modell, d_kopf)
        self.schluessel = nn.Linear(d_modell, d_kopf)
        self.wert = nn.Linear(d_modell, d_kopf)
        self.verwerfen = nn.Dropout(p_dropout)
        self.wurzel = d_kopf ** 0.5

    def forward(self, x, fuellmaske=None):
        a = self.anfrage(x)
        s = self.schluessel(x)
        w = self.wert(x)
        punkte = torch.bmm(a, s.transpose(1, 2)) / self.wurzel
        if fuellmaske is not None:
            # fuellmaske: True = Füllzeichen (wird ignoriert)
            punkte = punkte.masked_fill(fuellmaske.unsqueeze(1), float('-inf'))
        gewichte = torch.softmax(punkte, dim=-1)
        return torch.bmm(self.verwerfen(gewichte), w), gewichte


class MehrkopfAufmerksamkeit(nn.Module):
    """Mehrere Köpfe nacheinander in einer Schleife, danach zusammenkleben."""

    def __init__(self, d_modell, anzahl_koepfe, p_dropout=0.1):
        super().__init__()
        if d_modell % anzahl_koepfe != 0:
            raise ValueError('d_modell muss durch anzahl_koepfe teilbar sein')
        d_kopf = d_modell // anzahl_koepfe
        self.koepfe = nn.ModuleList(
            [EinKopf(d_modell, d_kopf, p_dropout) for _ in range(anzahl_koepfe)])
        self.ausgabe = nn.Linear(d_modell, d_modell)

    def forward(self, x, fuellmaske=None, mit_gewichten=False):
        ergebnisse = []
        alle_gewichte = []
        for kopf in self.koepfe:
            e, g = kopf(x, fuellmaske)
            ergebnisse.append(e)
            alle_gewichte.append(g)
        zusammen = torch.cat(ergebnisse, dim=-1)
        y = self.ausgabe(zusammen)
        if mit_gewichten:
            # Mittelwert über die Köpfe, nur zum Plotten
            return y, torch.stack(alle_gewichte, 1).mean(1)
        return y


if __name__ == '__main__':
    schicht = MehrkopfAufmerksamkeit(24, 3)
    x = torch.randn(2, 7, 24)
    maske = torch.zeros(2, 7, dtype=torch.bool)
    maske[0, 5:] = True
    y, g = schicht(x, maske, mit_gewichten=True)
    print(y.shape, g.shape)
    print(g[0, 0])
