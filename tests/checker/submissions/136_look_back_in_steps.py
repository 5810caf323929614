# expect: correct
import torch
from torch import nn


class LocalMQA(nn.Module):
    """Multi-query attention over a sliding window (causal).

    Position i sees positions max(0, i - window + 1) .. i, i.e. at most `window` keys
    including itself. Queries are handled in slices so that the score matrix stays at
    step x (step + window).
    """

    def __init__(self, dim, n_head, window, step=None, bias=False):
        super().__init__()
        self.n_head, self.d = n_head, dim // n_head
        self.window = window
        self.step = step or window
        self.wq = nn.Linear(dim, dim, bias=bias)
        self.wkv = nn.Linear(dim, 2 * self.d, bias=bias)
        self.wo = nn.Linear(dim, dim, bias=bias)

    def forward(self, x):
        bsz, n, dim = x.shape
        q = self.wq(x).view(bsz, n, self.n_head, self.d) * self.d ** -0.5
        k, v = self.wkv(x).split(self.d, dim=-1)
        idx = torch.arange(n, device=x.device)

        pieces = []
        for a in range(0, n, self.step):
            z = min(a + self.step, n)
            first = max(0, a - self.window + 1)
            gap = idx[a:z, None] - idx[None, first:z]
            ok = (gap >= 0) & (gap < self.window)
            s = torch.einsum("bqhd,bkd->bhqk", q[:, a:z], k[:, first:z])
            s = s.masked_fill(~ok, float("-inf"))
            pieces.append(torch.einsum("bhqk,bkd->bqhd", s.softmax(-1), v[:, first:z]))
        y = torch.cat(pieces, dim=1)
        return self.wo(y.reshape(bsz, n, dim))
