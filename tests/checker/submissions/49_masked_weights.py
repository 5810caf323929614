# expect: mask-after-softmax
import torch
import torch.nn as nn


class LateMask(nn.Module):
    """GQA with a causal mask."""

    def __init__(self, hidden_dim, query_heads, kv_heads):
        super().__init__()
        self.qh, self.kvh = query_heads, kv_heads
        self.hdim = hidden_dim // query_heads
        self.Q = nn.Linear(hidden_dim, query_heads * self.hdim, bias=False)
        self.K = nn.Linear(hidden_dim, kv_heads * self.hdim, bias=False)
        self.V = nn.Linear(hidden_dim, kv_heads * self.hdim, bias=False)
        self.O = nn.Linear(query_heads * self.hdim, hidden_dim, bias=False)

    def forward(self, h):
        b, n, _ = h.shape
        q = self.Q(h).view(b, n, self.kvh, self.qh // self.kvh, self.hdim)
        k = self.K(h).view(b, n, self.kvh, self.hdim)
        v = self.V(h).view(b, n, self.kvh, self.hdim)
        logits = torch.einsum("bigrd,bjgd->bgrij", q, k) * self.hdim ** -0.5
        probs = logits.softmax(dim=-1)
        probs = torch.tril(probs)
        return self.O(torch.einsum("bgrij,bjgd->bigrd", probs, v).reshape(b, n, -1))
