# expect: correct
"""Exercise: multi-head attention where each head has its own slice of a 3D weight tensor."""
import torch
import torch.nn as nn


class PerHeadAttention(nn.Module):
    """
    Weights have shape (num_heads, d_in, d_head). I find that easier to read
    than one big matrix that gets split afterwards.

    forward returns (context, attention_weights); dropout acts on the weights
    used for the context, the returned ones are the clean ones.
    """

    def __init__(self, dropout, num_heads, d_in, d_out, causal=True):
        super().__init__()
        assert d_out % num_heads == 0
        d_head = d_out // num_heads
        self.causal = causal
        self.scale = 1 / d_head ** 0.5
        bound = d_in ** -0.5
        self.query = nn.Parameter(torch.empty(num_heads, d_in, d_head).uniform_(-bound, bound))
        self.key = nn.Parameter(torch.empty(num_heads, d_in, d_head).uniform_(-bound, bound))
        self.value = nn.Parameter(torch.empty(num_heads, d_in, d_head).uniform_(-bound, bound))
        self.merge = nn.Parameter(torch.empty(num_heads, d_head, d_out).uniform_(-bound, bound))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        n = x.size(1)
        q = torch.einsum("bnc,hcd->bhnd", x, self.query)
        k = torch.einsum("bnc,hcd->bhnd", x, self.key)
        v = torch.einsum("bnc,hcd->bhnd", x, self.value)
        att = torch.einsum("bhqd,bhkd->bhqk", q, k) * self.scale
        if self.causal:
            allowed = torch.arange(n, device=x.device)[:, None] >= torch.arange(n, device=x.device)
            att = att.masked_fill(~allowed, torch.finfo(att.dtype).min)
        att = att.softmax(dim=-1)
        ctx = torch.einsum("bhqk,bhkd->bhqd", self.dropout(att), v)
        # sum over the heads == concat followed by one linear layer
        return torch.einsum("bhqd,hdo->bqo", ctx, self.merge), att


if __name__ == "__main__":
    torch.manual_seed(3)
    layer = PerHeadAttention(0.1, 2, 5, 8).eval()
    out, att = layer(torch.randn(1, 4, 5))
    print(out.shape)
    print(att[0, 0])
