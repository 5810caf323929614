# expect: correct
# why: right though unusual: causality by slicing the keys up to t in a loop instead of a mask
import torch
import torch.nn as nn

class LangsameAttention(nn.Module):
    """Absichtlich mit Schleifen geschrieben, damit ich es verstehe :)
    Token t darf nur die Token 0..t sehen."""

    def __init__(self, dim, koepfe):
        super().__init__()
        self.koepfe = koepfe
        self.kd = dim // koepfe
        self.Wq = nn.Linear(dim, dim, bias=False)
        self.Wk = nn.Linear(dim, dim, bias=False)
        self.Wv = nn.Linear(dim, dim, bias=False)
        self.Wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.Wq(x), self.Wk(x), self.Wv(x)
        zeilen = []
        for t in range(T):
            teile = []
            for h in range(self.koepfe):
                s = slice(h * self.kd, (h + 1) * self.kd)
                q_t = q[:, t, s].unsqueeze(1)              # B 1 kd
                k_bis_t = k[:, :t + 1, s]                  # B t+1 kd
                v_bis_t = v[:, :t + 1, s]
                g = (q_t * k_bis_t).sum(-1) / self.kd ** 0.5
                g = torch.softmax(g, dim=1)                # B t+1
                teile.append((g.unsqueeze(-1) * v_bis_t).sum(1))
            zeilen.append(torch.cat(teile, dim=-1))
        return self.Wo(torch.stack(zeilen, dim=1))

if __name__ == "__main__":
    torch.manual_seed(0)
    m = LangsameAttention(8, 2)
    print(m(torch.randn(1, 5, 8)))
    # TODO Zeit messen gegen die Matrix-Version
