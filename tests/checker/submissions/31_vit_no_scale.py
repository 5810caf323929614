# expect: missing-scale
import torch
import torch.nn as nn


class PatchAttention(nn.Module):
    def __init__(self, embed_dim=40, heads=5):
        super().__init__()
        self.heads = heads
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, patches):
        b, p, e = patches.shape
        q, k, v = self.in_proj(patches).reshape(b, p, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        affinity = torch.einsum("bhpd,bhqd->bhpq", q, k)
        mixed = torch.einsum("bhpq,bhqd->bphd", affinity.softmax(dim=-1), v)
        return self.out_proj(mixed.reshape(b, p, e))
