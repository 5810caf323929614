# expect: wrong
import torch
import torch.nn as nn


class SharedValueBug(nn.Module):
    def __init__(self, embed_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_size // num_heads
        self.queries = nn.Linear(embed_size, embed_size)
        self.keys = nn.Linear(embed_size, embed_size)
        self.values = nn.Linear(embed_size, embed_size)
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, x):
        N, length, E = x.shape
        q = self.queries(x).reshape(N, length, self.num_heads, self.head_dim)
        k = self.keys(x).reshape(N, length, self.num_heads, self.head_dim)
        v = self.values(x).reshape(N, length, self.num_heads, self.head_dim)
        energy = torch.einsum("nqhd,nkhd->nhqk", [q, k])
        attention = torch.softmax(energy / self.head_dim ** 0.5, dim=3)
        out = torch.einsum("nhqk,nkd->nqhd", [attention, v[:, :, 0]])
        return self.fc_out(out.reshape(N, length, E))
