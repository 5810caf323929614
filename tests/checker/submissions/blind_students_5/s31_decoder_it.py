# expect: wrong
# why: the roles are swapped: the queries come from the encoder output and keys and values from the decoder state, it should be the other way round (line 28: `q = self.dividi(self.wq(memoria))`; line 29: `k = self.dividi(self.wk(x))`; line 30: `v = self.dividi(self.wv(x))`)
import torch
import torch.nn as nn
import torch.nn.functional as F


class AttenzioneIncrociata(nn.Module):
    """Encoder-decoder attention.
    x:        stato del decoder     (B, T_dec, D)
    memoria:  uscita dell'encoder   (B, T_enc, D)
    """

    def __init__(self, dim, teste):
        super().__init__()
        self.teste = teste
        self.dim_testa = dim // teste
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def dividi(self, t):
        B, T, D = t.shape
        return t.view(B, T, self.teste, self.dim_testa).transpose(1, 2)

    def forward(self, x, memoria):
        q = self.dividi(self.wq(memoria))
        k = self.dividi(self.wk(x))
        v = self.dividi(self.wv(x))
        punteggi = q @ k.transpose(-2, -1) * self.dim_testa ** -0.5
        pesi = F.softmax(punteggi, dim=-1)
        out = (pesi @ v).transpose(1, 2).flatten(2)
        return self.wo(out)


class StratoDecoder(nn.Module):
    def __init__(self, dim, teste):
        super().__init__()
        self.incrociata = AttenzioneIncrociata(dim, teste)
        self.norm1 = nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))
        self.norm2 = nn.LayerNorm(dim)
        # manca ancora la masked self attention, la aggiungo dopo

    def forward(self, x, memoria):
        x = self.norm1(x + self.incrociata(x, memoria))
        return self.norm2(x + self.ff(x))


if __name__ == "__main__":
    torch.manual_seed(7)
    decoder = StratoDecoder(32, 4)
    x, memoria = torch.randn(2, 10, 32), torch.randn(2, 10, 32)
    print(decoder(x, memoria).shape)
