# expect: correct
# what: sliding-window causal attention, in-place mask, optional weights
import torch
import torch.nn as nn
import torch.nn.functional as F


class SlidingWindowAttention(nn.Module):
    """
    Local causal attention as in Mistral: position i sees itself and the
    window-1 positions before it. (This makes it O(n) - well, not in this
    implementation because I still build the full matrix.)
    """

    def __init__(self, dim, n_heads, window, dropout=0.0):
        super().__init__()
        self.n_heads = n_heads
        self.window = window
        self.dropout = dropout
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def visible(self, n, device):
        i = torch.arange(n, device=device).unsqueeze(1)
        j = torch.arange(n, device=device).unsqueeze(0)
        return (j <= i) & (i - j < self.window)

    def forward(self, x, return_weights=False):
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.n_heads, c // self.n_heads)
        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))

        logits = q @ k.transpose(-1, -2) * (c // self.n_heads) ** -0.5
        logits.masked_fill_(~self.visible(n, x.device), float("-inf"))
        w = logits.softmax(-1)
        w = F.dropout(w, self.dropout, self.training)

        y = self.out((w @ v).transpose(1, 2).reshape(b, n, c))
        return (y, w) if return_weights else y


def test_window():
    m = SlidingWindowAttention(16, 2, window=3)
    y, w = m(torch.randn(1, 6, 16), return_weights=True)
    print(w[0, 0].detach().round(decimals=2))
    y.sum().backward()


if __name__ == "__main__":
    test_window()
