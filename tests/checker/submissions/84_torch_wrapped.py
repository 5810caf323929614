# expect: correct
import torch
from torch import nn


class TorchMHAWrapper(nn.Module):
    """Thin wrapper; x is (batch, time, features), lengths is an optional (batch,) of valid lengths >= 1."""

    def __init__(self, features, heads=4, dropout=0.0, causal=False):
        super().__init__()
        self.causal = causal
        self.mha = nn.MultiheadAttention(features, heads, dropout=dropout, batch_first=True)

    def forward(self, x, lengths=None):
        t = x.size(1)
        attn_mask = None
        if self.causal:
            # for nn.MultiheadAttention True means "may not attend"
            attn_mask = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        pad = None
        if lengths is not None:
            pad = torch.arange(t, device=x.device)[None, :] >= lengths[:, None]
        y, _ = self.mha(x, x, x, attn_mask=attn_mask, key_padding_mask=pad, need_weights=False)
        return y
