# expect: correct
import torch
import torch.nn as nn


class MultiHead(nn.Module):
    """Atención multi-cabeza causal, una lista de proyecciones por cabeza (versión lenta pero clara)."""

    def __init__(self, d, n_cabezas):
        super().__init__()
        self.n = n_cabezas
        self.dc = d // n_cabezas
        self.Q = nn.ModuleList([nn.Linear(d, self.dc, bias=False) for _ in range(n_cabezas)])
        self.K = nn.ModuleList([nn.Linear(d, self.dc, bias=False) for _ in range(n_cabezas)])
        self.V = nn.ModuleList([nn.Linear(d, self.dc, bias=False) for _ in range(n_cabezas)])
        self.salida = nn.Linear(self.n * self.dc, d)

    def forward(self, x):
        t = x.shape[1]
        # True donde NO se puede mirar (el futuro)
        futuro = torch.triu(torch.ones(t, t, dtype=torch.bool, device=x.device), diagonal=1)
        cabezas = []
        for fq, fk, fv in zip(self.Q, self.K, self.V):
            q, k, v = fq(x), fk(x), fv(x)
            e = torch.bmm(q, k.permute(0, 2, 1)) / (self.dc ** 0.5)
            e = e.masked_fill(futuro, float('-inf'))
            a = nn.functional.softmax(e, dim=2)
            cabezas.append(torch.bmm(a, v))
        return self.salida(torch.cat(cabezas, dim=-1))
