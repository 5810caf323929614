# expect: wrong
import torch
import torch.nn as nn
from einops import rearrange


class LocalBlockAttention(nn.Module):
    """Causal local attention. The sequence is cut into blocks, every query sees its own block
    (up to itself) and the complete block before it. Sequence length has to be a multiple of `block`."""

    def __init__(self, dim, heads, block):
        super().__init__()
        self.heads = heads
        self.block = block
        self.scale = (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        w = self.block
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k, v = [rearrange(t, 'b (n w) (h d) -> b h n w d', w=w, h=self.heads) for t in (q, k, v)]

        # previous block in front of the own block
        k = torch.cat([k.roll(1, dims=2), k], dim=3)
        v = torch.cat([v.roll(1, dims=2), v], dim=3)

        sim = torch.einsum('bhnid,bhnjd->bhnij', q, k) * self.scale
        i = torch.arange(w, device=x.device)[:, None] + w
        j = torch.arange(2 * w, device=x.device)[None, :]
        keep = (j <= i).expand(q.shape[2], w, 2 * w)
        sim = sim.masked_fill(~keep, -1e30)

        y = torch.einsum('bhnij,bhnjd->bhnid', sim.softmax(-1), v)
        return self.out(rearrange(y, 'b h n w d -> b (n w) (h d)'))
