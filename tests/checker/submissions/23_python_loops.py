# expect: correct
import torch
import torch.nn as nn

class SlowAttention(nn.Module):
    """No matrix tricks. Three loops, so that I can follow it with a pencil."""

    def __init__(self, d_in, d_out, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = d_out // num_heads
        self.Wq = nn.Linear(d_in, d_out, bias=False)
        self.Wk = nn.Linear(d_in, d_out, bias=False)
        self.Wv = nn.Linear(d_in, d_out, bias=False)
        self.Wo = nn.Linear(d_out, d_out)

    def forward(self, x):
        q, k, v = self.Wq(x), self.Wk(x), self.Wv(x)
        rows = []
        for i in range(x.shape[1]):
            pieces = []
            for h in range(self.num_heads):
                a, e = h * self.head_dim, (h + 1) * self.head_dim
                # token i looks at tokens 0..i only
                scores = torch.stack([(q[:, i, a:e] * k[:, j, a:e]).sum(-1) for j in range(i + 1)], dim=1)
                w = torch.softmax(scores / self.head_dim ** 0.5, dim=1)
                pieces.append((w.unsqueeze(-1) * v[:, : i + 1, a:e]).sum(1))
            rows.append(torch.cat(pieces, dim=-1))
        return self.Wo(torch.stack(rows, dim=1))
