# expect: correct
import torch
from torch import nn


class AttentionBlock(nn.Module):
    def __init__(self, embed, num_heads, max_len):
        super().__init__()
        self.norm = nn.LayerNorm(embed)
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed, 3 * embed)
        self.out = nn.Linear(embed, embed)
        self.register_buffer("mask", torch.full((max_len, max_len), float("-inf")).triu(1))

    def forward(self, x):
        residual = x
        b, t, e = x.shape
        qkv = self.qkv(self.norm(x)).view(b, t, 3, self.num_heads, e // self.num_heads)
        q = qkv[:, :, 0].transpose(1, 2)
        k = qkv[:, :, 1].transpose(1, 2)
        v = qkv[:, :, 2].transpose(1, 2)
        att = torch.softmax(q @ k.transpose(2, 3) / (e // self.num_heads) ** 0.5 + self.mask[:t, :t], dim=-1)
        return residual + self.out((att @ v).transpose(1, 2).flatten(2))
