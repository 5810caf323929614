# expect: correct
# why: right though unusual: gated MSA attention, by row with a pair bias and by column
"""Gated attention over multiple sequence alignments.

Tensors follow the structure-prediction convention:
    m: (B, S, R, c_m)  S aligned sequences, R residues
    z: (B, R, R, c_z)  pair representation
"""
import torch
import torch.nn as nn
from einops import rearrange


class GatedAttention(nn.Module):
    """Multi-head attention with a sigmoid gate on the heads' output.

    Args:
        c_in: input channels, c_hidden: channels per head, no_heads: heads.

    forward(x, mask, bias):
        x:    (*, N, c_in)
        mask: (*, N), 1 for valid keys, 0 for missing ones
        bias: broadcastable to (*, H, N, N), added to the logits
    """

    def __init__(self, c_in, c_hidden, no_heads, inf=1e9):
        super().__init__()
        self.c_hidden, self.no_heads, self.inf = c_hidden, no_heads, inf
        inner = c_hidden * no_heads
        self.linear_q = nn.Linear(c_in, inner, bias=False)
        self.linear_k = nn.Linear(c_in, inner, bias=False)
        self.linear_v = nn.Linear(c_in, inner, bias=False)
        self.linear_g = nn.Linear(c_in, inner)
        self.linear_o = nn.Linear(inner, c_in)
        self.reset_parameters()

    def reset_parameters(self):
        for lin in (self.linear_q, self.linear_k, self.linear_v):
            nn.init.xavier_uniform_(lin.weight)
        # gate starts open: sigmoid(1) on average
        nn.init.normal_(self.linear_g.weight, std=0.02)
        nn.init.ones_(self.linear_g.bias)

    def forward(self, x, mask=None, bias=None):
        def split(t):
            return rearrange(t, "... n (h c) -> ... h n c", h=self.no_heads)

        q = split(self.linear_q(x)) * self.c_hidden ** -0.5
        k = split(self.linear_k(x))
        v = split(self.linear_v(x))

        logits = torch.einsum("...qc,...kc->...qk", q, k).float()
        if bias is not None:
            logits = logits + bias.float()
        if mask is not None:
            logits = logits + (self.inf * (mask.float() - 1.0))[..., None, None, :]
        a = torch.softmax(logits, dim=-1).to(v.dtype)

        o = rearrange(torch.einsum("...qk,...kc->...qc", a, v), "... h n c -> ... n (h c)")
        o = o * torch.sigmoid(self.linear_g(x))
        return self.linear_o(o)


class MSARowAttentionWithPairBias(nn.Module):
    """Every sequence attends over its own residues, biased by the pair representation."""

    def __init__(self, c_m, c_z, c_hidden, no_heads):
        super().__init__()
        self.norm_m = nn.LayerNorm(c_m)
        self.norm_z = nn.LayerNorm(c_z)
        self.linear_z = nn.Linear(c_z, no_heads, bias=False)
        self.mha = GatedAttention(c_m, c_hidden, no_heads)

    def forward(self, m, z, msa_mask=None):
        bias = rearrange(self.linear_z(self.norm_z(z)), "b i j h -> b 1 h i j")
        return self.mha(self.norm_m(m), msa_mask, bias)


class MSAColumnAttention(nn.Module):
    """Every residue attends over the sequences of the alignment."""

    def __init__(self, c_m, c_hidden, no_heads):
        super().__init__()
        self.norm_m = nn.LayerNorm(c_m)
        self.mha = GatedAttention(c_m, c_hidden, no_heads)

    def forward(self, m, msa_mask=None):
        m = m.transpose(-2, -3)
        if msa_mask is not None:
            msa_mask = msa_mask.transpose(-1, -2)
        return self.mha(self.norm_m(m), msa_mask).transpose(-2, -3)


class MSAStack(nn.Module):
    def __init__(self, c_m=64, c_z=32, c_hidden=16, no_heads=4):
        super().__init__()
        self.row = MSARowAttentionWithPairBias(c_m, c_z, c_hidden, no_heads)
        self.col = MSAColumnAttention(c_m, c_hidden, no_heads)
        self.transition = nn.Sequential(nn.LayerNorm(c_m), nn.Linear(c_m, 4 * c_m), nn.ReLU(), nn.Linear(4 * c_m, c_m))

    def forward(self, m, z, msa_mask=None):
        m = m + self.row(m, z, msa_mask)
        m = m + self.col(m, msa_mask)
        return m + self.transition(m)
