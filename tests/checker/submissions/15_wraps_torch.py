# expect: correct
from torch import nn
import torch


class TorchSelfAttention(nn.Module):
    """I just use the layer from the library, but hide the future."""

    def __init__(self, width, how_many_heads, rate=0.1):
        super().__init__()
        self.mha = nn.MultiheadAttention(width, how_many_heads, dropout=rate, batch_first=True)

    def forward(self, x):
        n = x.shape[1]
        hide = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        out, _ = self.mha(x, x, x, attn_mask=hide, need_weights=False)
        return out
