# expect: correct
import torch
from torch import nn, Tensor


class SeqFirstAttention(nn.Module):
    """Input and output are (tokens, batch, features), as nn.Transformer likes it."""

    def __init__(self, embed_dim: int, nhead: int, batch_first: bool = False):
        super().__init__()
        self.nhead = nhead
        self.batch_first = batch_first
        self.query = nn.Linear(embed_dim, embed_dim)
        self.key = nn.Linear(embed_dim, embed_dim)
        self.value = nn.Linear(embed_dim, embed_dim)
        self.output = nn.Linear(embed_dim, embed_dim)

    def forward(self, src: Tensor) -> Tensor:
        if self.batch_first:
            src = src.transpose(0, 1)
        length, bsz, width = src.shape
        hd = width // self.nhead
        # (length, bsz * nhead, hd) -> (bsz * nhead, length, hd)
        q = self.query(src).contiguous().view(length, bsz * self.nhead, hd).transpose(0, 1)
        k = self.key(src).contiguous().view(length, bsz * self.nhead, hd).transpose(0, 1)
        v = self.value(src).contiguous().view(length, bsz * self.nhead, hd).transpose(0, 1)
        attn = torch.bmm(q * hd**-0.5, k.transpose(1, 2))
        attn = torch.nn.functional.softmax(attn, dim=-1)
        out = torch.bmm(attn, v).transpose(0, 1).contiguous().view(length, bsz, width)
        out = self.output(out)
        return out.transpose(0, 1) if self.batch_first else out
