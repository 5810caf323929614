# expect: wrong-scale, mask-after-softmax
# why: two mistakes: the scale is 1/sqrt(num_heads) instead of 1/sqrt(head_dim) at line 14: `self.scale = num_heads ** -0.5`, and the mask zeroes weights after the softmax without renormalising at line 36: `attn = attn.masked_fill(~attn_mask[:, None, None, :], 0.)`
"""Text tower of a two-tower retrieval model."""
import torch
import torch.nn as nn


class TowerAttention(nn.Module):
    def __init__(self, dim, num_heads=8, qkv_bias=True, attn_drop=0., proj_drop=0.):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scale = num_heads ** -0.5  # 1 / sqrt(head_dim)

        self.q_proj = nn.Linear(dim, dim, bias=qkv_bias)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.norm = nn.LayerNorm(dim)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x, attn_mask=None):
        """attn_mask: (B, N) bool, True for the tokens that take part."""
        B, N, C = x.shape
        q = self.q_proj(x).reshape(B, N, self.num_heads, -1).transpose(1, 2)
        k = self.k_proj(x).reshape(B, N, self.num_heads, -1).transpose(1, 2)
        v = self.v_proj(x).reshape(B, N, self.num_heads, -1).transpose(1, 2)

        q = q * self.scale
        attn = q @ k.transpose(-2, -1)
        attn = attn.softmax(dim=-1)
        if attn_mask is not None:
            attn_mask = attn_mask.to(torch.bool)
            attn = attn.masked_fill(~attn_mask[:, None, None, :], 0.)
        attn = self.attn_drop(attn)

        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        x = self.norm(x)
        return self.proj_drop(self.proj(x))


class TowerBlock(nn.Module):
    def __init__(self, dim, num_heads, mlp_ratio=2., init_values=0.1):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = TowerAttention(dim, num_heads)
        self.gamma_1 = nn.Parameter(init_values * torch.ones(dim))
        self.norm2 = nn.LayerNorm(dim)
        self.w12 = nn.Linear(dim, int(2 * dim * mlp_ratio))
        self.w3 = nn.Linear(int(dim * mlp_ratio), dim)
        self.gamma_2 = nn.Parameter(init_values * torch.ones(dim))

    def forward(self, x, attn_mask=None):
        x = x + self.gamma_1 * self.attn(self.norm1(x), attn_mask)
        a, b = self.w12(self.norm2(x)).chunk(2, dim=-1)
        return x + self.gamma_2 * self.w3(nn.functional.silu(a) * b)


class TextTower(nn.Module):
    def __init__(self, vocab_size=200, dim=64, depth=2, num_heads=4, max_len=40, out_dim=32, pad_id=0):
        super().__init__()
        self.pad_id = pad_id
        self.tok = nn.Embedding(vocab_size, dim)
        self.pos = nn.Parameter(torch.randn(1, max_len, dim) * 0.02)
        self.blocks = nn.ModuleList([TowerBlock(dim, num_heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, out_dim, bias=False)

    def forward(self, ids):
        keep = ids != self.pad_id
        x = self.tok(ids) + self.pos[:, : ids.shape[1]]
        for blk in self.blocks:
            x = blk(x, keep)
        x = self.norm(x)
        pooled = (x * keep.unsqueeze(-1)).sum(1) / keep.sum(1, keepdim=True).clamp(min=1)
        return nn.functional.normalize(self.head(pooled), dim=-1)
