# expect: padding-in-other-texts
import torch
import torch.nn as nn


class SeqFirstAttention(nn.Module):
    """
    Self attention for tensors shaped (T, B, C) as in our speech encoder.

    pad: (B, T) bool tensor, True marks padded frames.
    """

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim ** -0.5
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, pad=None):
        T, B, C = x.shape
        H, D = self.num_heads, self.head_dim

        q = (self.q_proj(x) * self.scaling).view(T, B * H, D).transpose(0, 1)
        k = self.k_proj(x).view(T, B * H, D).transpose(0, 1)
        v = self.v_proj(x).view(T, B * H, D).transpose(0, 1)

        logits = torch.bmm(q, k.transpose(1, 2))           # (B*H, T, T)
        if pad is not None:
            pad = pad.repeat(H, 1).unsqueeze(1)            # (B*H, 1, T)
            logits = logits.masked_fill(pad, float("-inf"))

        p = logits.softmax(-1)
        y = torch.bmm(p, v)                                # (B*H, T, D)
        y = y.transpose(0, 1).reshape(T, B, C)
        return self.out_proj(y)
