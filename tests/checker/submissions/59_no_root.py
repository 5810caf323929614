# expect: wrong
import torch
from torch import nn
import torch.nn.functional as F


class AttentionModule(nn.Module):
    """scale = 1 / d_k"""

    def __init__(self, input_dim, hidden_dim, heads=3):
        super().__init__()
        self.heads = heads
        self.scale = 1 / (hidden_dim // heads)
        self.to_qkv = nn.Linear(input_dim, hidden_dim * 3, bias=False)
        self.to_out = nn.Linear(hidden_dim, hidden_dim)

    def forward(self, x):
        b, n, _ = x.shape
        qkv = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = [t.reshape(b, n, self.heads, -1).transpose(1, 2) for t in qkv]
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        return self.to_out(out.transpose(1, 2).flatten(start_dim=2))
