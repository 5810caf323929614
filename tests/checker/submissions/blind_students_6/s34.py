# expect: value-from-keys, mask-after-softmax
# why: two: values come from W_key; mask after the softmax without renormalising the rows
# Esercizio 3 - Attenzione causale a più teste
import torch
import torch.nn as nn


class Attenzione(nn.Module):
    def __init__(self, d_in, d_out, teste, lunghezza_max):
        super().__init__()
        assert d_out % teste == 0
        self.teste = teste
        self.d_testa = d_out // teste
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)
        self.uscita = nn.Linear(d_out, d_out)
        self.register_buffer('maschera', torch.tril(torch.ones(lunghezza_max, lunghezza_max)))

    def forward(self, x):
        b, n, _ = x.shape

        query = self.W_query(x).view(b, n, self.teste, self.d_testa).transpose(1, 2)
        key = self.W_key(x).view(b, n, self.teste, self.d_testa).transpose(1, 2)
        value = self.W_key(x).view(b, n, self.teste, self.d_testa).transpose(1, 2)

        punteggi = query @ key.transpose(2, 3) / self.d_testa ** 0.5
        pesi = torch.softmax(punteggi, dim=-1)
        # azzera i token futuri
        pesi = pesi * self.maschera[:n, :n]

        contesto = (pesi @ value).transpose(1, 2).reshape(b, n, -1)
        return self.uscita(contesto)


if __name__ == '__main__':
    torch.manual_seed(0)
    att = Attenzione(3, 4, 2, 10)
    x = torch.rand(2, 6, 3)
    print(att(x).shape)
