# expect: dropout-before-softmax
# why: in training the dropout is applied to the raw scores, so dropped scores become 0 instead of dropped weights.
import torch
from torch import nn


class CausalSelfAttention(nn.Module):
    """single file version, see notebook 4"""

    def __init__(self, embed_dim, heads, max_len=64, p_drop=0.1):
        super().__init__()
        self.h = heads
        self.dk = embed_dim // heads
        self.q_lin = nn.Linear(embed_dim, embed_dim)
        self.k_lin = nn.Linear(embed_dim, embed_dim)
        self.v_lin = nn.Linear(embed_dim, embed_dim)
        self.o_lin = nn.Linear(embed_dim, embed_dim)
        self.drop = nn.Dropout(p_drop)
        self.softmax = nn.Softmax(dim=-1)
        self.register_buffer("causal", torch.triu(torch.ones(max_len, max_len, dtype=torch.bool), 1))

    def _split(self, t):
        b, n, _ = t.size()
        return t.reshape(b, n, self.h, self.dk).permute(0, 2, 1, 3)

    def forward(self, x):
        b, n, e = x.size()
        q = self._split(self.q_lin(x))
        k = self._split(self.k_lin(x))
        v = self._split(self.v_lin(x))

        s = torch.matmul(q, k.permute(0, 1, 3, 2)) * (self.dk ** -0.5)
        s = self.drop(s)
        s = s.masked_fill(self.causal[:n, :n], float("-inf"))
        a = self.softmax(s)

        y = torch.matmul(a, v)
        y = y.permute(0, 2, 1, 3).reshape(b, n, e)
        return self.o_lin(y)


if __name__ == "__main__":
    layer = CausalSelfAttention(32, 4).eval()
    print(layer(torch.randn(3, 9, 32)).shape)
