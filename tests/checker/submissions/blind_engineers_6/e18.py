# expect: padding-inverted
# why: the mask is True for existing elements, but those are filled with -1e9
"""Set Transformer blocks for point clouds of varying size (Lee et al. 2019)."""
import math
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class MAB(nn.Module):
    """Multihead attention block.

        H = LN(Q' + Attention(Q', K, K));  MAB = LN(H + relu(H W))

    where Q' is the projected query.

    Args:
        dim_Q, dim_K: widths of the two sets
        dim_V: output width, split over ``num_heads``
        ln: use layer normalisation

    ``forward(Q, K, mask)``: Q (B, n, dim_Q), K (B, m, dim_K), ``mask`` bool (B, m): True for the
    elements of K that exist, False for filler.
    """

    def __init__(self, dim_Q: int, dim_K: int, dim_V: int, num_heads: int, ln: bool = True):
        super().__init__()
        assert dim_V % num_heads == 0
        self.dim_V, self.num_heads = dim_V, num_heads
        self.fc_q = nn.Linear(dim_Q, dim_V)
        self.fc_k = nn.Linear(dim_K, dim_V)
        self.fc_v = nn.Linear(dim_K, dim_V)
        self.ln0 = nn.LayerNorm(dim_V) if ln else nn.Identity()
        self.ln1 = nn.LayerNorm(dim_V) if ln else nn.Identity()
        self.fc_o = nn.Linear(dim_V, dim_V)

    def forward(self, Q: torch.Tensor, K: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        B, n, _ = Q.shape
        d = self.dim_V // self.num_heads
        Q = self.fc_q(Q)
        q = Q.view(B, n, self.num_heads, d).transpose(1, 2)
        k = self.fc_k(K).view(B, -1, self.num_heads, d).transpose(1, 2)
        v = self.fc_v(K).view(B, -1, self.num_heads, d).transpose(1, 2)

        logits = q @ k.transpose(-2, -1) / math.sqrt(d)
        if mask is not None:
            logits = logits.masked_fill(mask[:, None, None, :], -1e9)
        A = torch.softmax(logits, dim=-1)

        H = self.ln0(Q + (A @ v).transpose(1, 2).reshape(B, n, self.dim_V))
        return self.ln1(H + F.relu(self.fc_o(H)))


class ISAB(nn.Module):
    """Induced set attention: X -> m inducing points -> X, linear in the size of the set."""

    def __init__(self, dim_in: int, dim_out: int, num_heads: int, num_inds: int):
        super().__init__()
        self.I = nn.Parameter(torch.empty(1, num_inds, dim_out))
        nn.init.xavier_uniform_(self.I)
        self.mab0 = MAB(dim_out, dim_in, dim_out, num_heads)
        self.mab1 = MAB(dim_in, dim_out, dim_out, num_heads)

    def forward(self, X, mask=None):
        H = self.mab0(self.I.expand(X.size(0), -1, -1), X, mask)
        return self.mab1(X, H)


class PMA(nn.Module):
    """Pooling by attention with ``num_seeds`` learned queries."""

    def __init__(self, dim: int, num_heads: int, num_seeds: int):
        super().__init__()
        self.S = nn.Parameter(torch.empty(1, num_seeds, dim))
        nn.init.xavier_uniform_(self.S)
        self.mab = MAB(dim, dim, dim, num_heads)

    def forward(self, X, mask=None):
        return self.mab(self.S.expand(X.size(0), -1, -1), X, mask)


class SetTransformer(nn.Module):
    def __init__(self, dim_input=3, num_outputs=1, dim_output=10, num_inds=16, dim_hidden=64, num_heads=4):
        super().__init__()
        self.enc = nn.ModuleList([
            ISAB(dim_input, dim_hidden, num_heads, num_inds),
            ISAB(dim_hidden, dim_hidden, num_heads, num_inds)])
        self.pool = PMA(dim_hidden, num_heads, num_outputs)
        self.head = nn.Linear(dim_hidden, dim_output)

    def forward(self, X, mask=None):
        for layer in self.enc:
            X = layer(X, mask)
        return self.head(self.pool(X, mask))
