# expect: padding-in-other-texts
# why: (B, T, T) mask tiled with repeat, MultiheadAttention is batch-major: masks mixed up
"""Local attention encoder layer for voice activity detection.

Thin wrapper around ``nn.MultiheadAttention``: each frame attends to at most ``left`` earlier and
``right`` later frames, so the look-ahead of the detector is bounded.
"""
import torch
from torch import nn


def lengths_to_valid(lengths: torch.Tensor, max_len: int) -> torch.Tensor:
    """(B,) -> bool (B, max_len), True inside the utterance."""
    return torch.arange(max_len, device=lengths.device)[None, :] < lengths[:, None]


class LocalMHA(nn.Module):
    """Banded self-attention.

    Args:
        d_model, n_heads, dropout: passed to ``nn.MultiheadAttention``.
        left, right: how many frames of past / future are visible.

    forward:
        x: (B, T, d_model)
        lengths: (B,) valid frames per utterance. Frames behind the end are not attended to and the
            output there is zero.
    """

    def __init__(self, d_model: int, n_heads: int, left: int, right: int, dropout: float = 0.0):
        super().__init__()
        self.n_heads = n_heads
        self.left, self.right = left, right
        self.mha = nn.MultiheadAttention(d_model, n_heads, dropout=dropout, batch_first=True)

    def band(self, T: int, device) -> torch.Tensor:
        i = torch.arange(T, device=device)
        delta = i[None, :] - i[:, None]
        return (delta >= -self.left) & (delta <= self.right)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        B, T, _ = x.shape
        valid = lengths_to_valid(lengths, T)
        allowed = self.band(T, x.device)[None] & valid[:, None, :]
        # frames behind the end keep themselves, otherwise the softmax has nothing to normalise
        allowed = allowed | torch.eye(T, dtype=torch.bool, device=x.device)

        # MultiheadAttention wants (B * n_heads, T, T) with True = not allowed
        attn_mask = (~allowed).repeat(self.n_heads, 1, 1)
        y, _ = self.mha(x, x, x, attn_mask=attn_mask, need_weights=False)
        return y * valid.unsqueeze(-1)


class FeedForward(nn.Module):
    def __init__(self, d_model, mult=4, dropout=0.0):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(d_model, mult * d_model), nn.SiLU(), nn.Dropout(dropout), nn.Linear(mult * d_model, d_model))

    def forward(self, x):
        return self.net(x)


class VADEncoder(nn.Module):
    """Filterbank frames -> speech probability per frame."""

    def __init__(self, n_feats=40, d_model=64, n_heads=4, n_layers=2, left=20, right=4, dropout=0.1):
        super().__init__()
        self.inp = nn.Linear(n_feats, d_model)
        self.attn = nn.ModuleList([LocalMHA(d_model, n_heads, left, right, dropout) for _ in range(n_layers)])
        self.ff = nn.ModuleList([FeedForward(d_model, dropout=dropout) for _ in range(n_layers)])
        self.norm1 = nn.ModuleList([nn.LayerNorm(d_model) for _ in range(n_layers)])
        self.norm2 = nn.ModuleList([nn.LayerNorm(d_model) for _ in range(n_layers)])
        self.out = nn.Linear(d_model, 1)

    def forward(self, feats, lengths):
        x = self.inp(feats)
        for attn, ff, n1, n2 in zip(self.attn, self.ff, self.norm1, self.norm2):
            x = x + attn(n1(x), lengths)
            x = x + ff(n2(x))
        return torch.sigmoid(self.out(x)).squeeze(-1)
