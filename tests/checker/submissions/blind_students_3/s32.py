# expect: correct
import torch
import torch.nn as nn
import torch.nn.functional as F


def window_mask(n: int, window: int, causal: bool, device=None) -> torch.Tensor:
    """
    True where attention is allowed.
    causal:     i sees i-window+1 ... i            (window positions)
    non causal: i sees i-window ... i+window       (2*window+1 positions)
    """
    i = torch.arange(n, device=device).view(-1, 1)
    j = torch.arange(n, device=device).view(1, -1)
    if causal:
        return (j <= i) & (j > i - window)
    return (i - j).abs() <= window


class LocalAttention(nn.Module):
    def __init__(self, dim, heads=4, window=8, causal=True, dropout=0.0):
        super().__init__()
        self.heads = heads
        self.window = window
        self.causal = causal
        self.dropout = dropout
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, lengths=None):
        b, n, d = x.shape
        h = self.heads
        q, k, v = map(lambda t: t.reshape(b, n, h, d // h).movedim(2, 1), self.to_qkv(x).chunk(3, -1))

        ok = window_mask(n, self.window, self.causal, x.device).expand(b, 1, n, n)
        if lengths is not None:
            real = torch.arange(n, device=x.device) < lengths[:, None]     # (b, n)
            ok = ok & real[:, None, None, :]
            # a padded query always keeps itself, otherwise its row would be empty (nan)
            ok = ok | torch.eye(n, dtype=torch.bool, device=x.device)

        sim = torch.einsum('bhid,bhjd->bhij', q, k) * (d // h) ** -0.5
        sim = sim.masked_fill(~ok, float('-inf'))
        att = F.dropout(sim.softmax(dim=-1), self.dropout, self.training)
        out = torch.einsum('bhij,bhjd->bihd', att, v).reshape(b, n, d)
        out = self.to_out(out)
        if lengths is not None:
            out = out * real.unsqueeze(-1)
        return out


if __name__ == '__main__':
    print(window_mask(7, 3, True).int())
    print(window_mask(7, 2, False).int())
    m = LocalAttention(32, window=3)
    print(m(torch.randn(2, 7, 32), torch.tensor([7, 4])).shape)
