# expect: correct
from torch import nn


class PatchMixer(nn.Module):
    """For image patches: no order, so nothing is hidden."""

    def __init__(self, dim, num_heads=8, qkv_bias=False, attn_drop=0., proj_drop=0.):
        super().__init__()
        self.num_heads, self.per_head = num_heads, dim // num_heads
        self.qkv = nn.Linear(dim, 3 * dim, qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.drops = nn.ModuleList([nn.Dropout(attn_drop), nn.Dropout(proj_drop)])

    def forward(self, patches):
        b, n, d = patches.shape
        stacked = self.qkv(patches).view(b, n, 3, self.num_heads, self.per_head)
        q, k, v = stacked.permute(2, 0, 3, 1, 4)
        likeness = q.mul(self.per_head ** -0.5).matmul(k.transpose(2, 3))
        blend = self.drops[0](likeness.softmax(3)).matmul(v)
        return self.drops[1](self.proj(blend.transpose(1, 2).reshape(b, n, d)))
