# expect: weights-transposed
# why: The output einsum sums over the query index instead of the key index, i.e. it multiplies the values with the transposed attention matrix.
"""Entity attention for a multi-agent environment, einsum only. b: batch, e/f: entities, h: heads."""
import torch
import torch.nn as nn
from torch import einsum


class EntityAttention(nn.Module):
    """Residual attention over the entities an agent observes.

    entity_mask is 1 for entities that exist; absent ones must not influence the others
    and come out as zero.
    """

    def __init__(self, embed, heads=4, key_size=16):
        super().__init__()
        std = embed ** -0.5
        self.wq = nn.Parameter(torch.randn(embed, heads, key_size) * std)
        self.wk = nn.Parameter(torch.randn(embed, heads, key_size) * std)
        self.wv = nn.Parameter(torch.randn(embed, heads, key_size) * std)
        self.wo = nn.Parameter(torch.randn(heads, key_size, embed) * (heads * key_size) ** -0.5)
        self.scale = key_size ** -0.5
        self.pre = nn.LayerNorm(embed)
        self.post = nn.LayerNorm(embed)

    def forward(self, x, entity_mask):
        y = self.pre(x)
        q = einsum("bed,dhk->behk", y, self.wq)
        k = einsum("bfd,dhk->bfhk", y, self.wk)
        v = einsum("bfd,dhk->bfhk", y, self.wv)

        logits = einsum("behk,bfhk->bhef", q, k) * self.scale
        logits = logits - 1e10 * (1.0 - entity_mask)[:, None, None, :]
        weights = torch.softmax(logits, dim=-1)

        mixed = einsum("bhef,behk->bfhk", weights, v)
        out = einsum("behk,hkd->bed", mixed, self.wo)
        return self.post(x + out) * entity_mask[..., None]


class MaskedMeanPool(nn.Module):
    def forward(self, x, entity_mask):
        m = entity_mask[..., None]
        return (x * m).sum(dim=1) / m.sum(dim=1).clamp(min=1e-6)


class ObservationEncoder(nn.Module):
    """Embeds self / ally / object features to one width and mixes them with attention."""

    def __init__(self, sizes, embed=32, out=64):
        super().__init__()
        self.embedders = nn.ModuleDict({name: nn.Linear(n, embed) for name, n in sizes.items()})
        self.attn = nn.ModuleList([EntityAttention(embed) for _ in range(2)])
        self.pool = MaskedMeanPool()
        self.head = nn.Sequential(nn.Linear(embed, out), nn.ReLU(), nn.LayerNorm(out))

    def forward(self, obs, masks):
        names = sorted(self.embedders)
        x = torch.cat([torch.relu(self.embedders[n](obs[n])) for n in names], dim=1)
        m = torch.cat([masks[n] for n in names], dim=1).to(x.dtype)
        for layer in self.attn:
            x = layer(x, m)
        return self.head(self.pool(x, m))


if __name__ == "__main__":
    enc = ObservationEncoder({"agent": 7, "ally": 5, "box": 4})
    obs = {"agent": torch.randn(3, 1, 7), "ally": torch.randn(3, 2, 5), "box": torch.randn(3, 4, 4)}
    masks = {"agent": torch.ones(3, 1), "ally": torch.ones(3, 2), "box": torch.tensor([[1, 1, 0, 0]] * 3)}
    print(enc(obs, masks).shape)
