# expect: correct
import torch
import torch.nn as nn


def safe_softmax(scores, allowed):
    """Softmax over the last axis among allowed places; rows with none allowed give zeros."""
    scores = scores.masked_fill(~allowed, float("-inf"))
    peak = scores.amax(dim=-1, keepdim=True)
    peak = torch.where(torch.isfinite(peak), peak, torch.zeros_like(peak))
    e = torch.exp(scores - peak)
    total = e.sum(dim=-1, keepdim=True)
    return e / total.masked_fill(total == 0, 1.0)


def local_causal(n, window, device=None):
    """i may see j when i - window < j <= i."""
    i = torch.arange(n, device=device).unsqueeze(1)
    j = torch.arange(n, device=device).unsqueeze(0)
    return (j <= i) & (i - j < window)


class WindowedMultiQuery(nn.Module):
    """Many query heads, one shared key/value head, each token sees the last `window` tokens."""

    def __init__(self, dim, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.hd = dim // heads
        self.q = nn.Linear(dim, dim, bias=False)
        self.k = nn.Linear(dim, self.hd, bias=False)
        self.v = nn.Linear(dim, self.hd, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)

    def forward(self, x, valid=None):
        b, n, dim = x.shape
        q = self.q(x).view(b, n, self.heads, self.hd)
        k, v = self.k(x), self.v(x)

        allowed = local_causal(n, self.window, x.device)[None, None]
        if valid is not None:                       # (b, n) bool, True = real token
            allowed = allowed & valid[:, None, None, :]

        s = torch.einsum("bihd,bjd->bhij", q, k) * self.hd ** -0.5
        y = torch.einsum("bhij,bjd->bihd", safe_softmax(s, allowed), v)
        return self.o(y.reshape(b, n, dim))
