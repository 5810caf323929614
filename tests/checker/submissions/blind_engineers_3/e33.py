# expect: correct
import torch
import torch.nn.functional as F
from torch import nn


def exists(val):
    return val is not None


def default(val, d):
    return val if exists(val) else d


class CrossAttention(nn.Module):
    """Image tokens (queries) read text tokens (keys / values).

    With `num_null_kv > 0` a few learned key/value pairs are prepended, so that a sample
    whose caption has been dropped (classifier-free guidance) still has something to look at.
    """

    def __init__(self, dim, *, context_dim=None, dim_head=64, heads=8, num_null_kv=0, dropout=0.0, backend="sdpa"):
        super().__init__()
        assert backend in ("sdpa", "math")
        self.heads, self.dim_head, self.backend, self.dropout = heads, dim_head, backend, dropout
        inner = dim_head * heads
        context_dim = default(context_dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.norm_context = nn.LayerNorm(context_dim)
        self.num_null_kv = num_null_kv
        self.null_kv = nn.Parameter(torch.randn(2, heads, num_null_kv, dim_head)) if num_null_kv else None
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(context_dim, 2 * inner, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, dim, bias=False), nn.LayerNorm(dim))

    def forward(self, x, context, mask=None):
        """mask: (batch, context length), True = keep"""
        b = x.shape[0]
        x, context = self.norm(x), self.norm_context(context)
        q = self.to_q(x)
        k, v = self.to_kv(context).chunk(2, dim=-1)
        q, k, v = map(lambda t: t.unflatten(-1, (self.heads, self.dim_head)).transpose(1, 2), (q, k, v))

        if self.num_null_kv:
            nk, nv = self.null_kv.unsqueeze(1).expand(-1, b, -1, -1, -1)
            k = torch.cat((nk, k), dim=-2)
            v = torch.cat((nv, v), dim=-2)
            if exists(mask):
                mask = F.pad(mask, (self.num_null_kv, 0), value=True)
        if exists(mask):
            mask = mask[:, None, None, :]

        if self.backend == "sdpa":
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0.0)
        else:
            sim = torch.einsum("bhid,bhjd->bhij", q * self.dim_head ** -0.5, k)
            if exists(mask):
                sim = sim.masked_fill(~mask, -torch.finfo(sim.dtype).max)
            attn = F.dropout(sim.softmax(dim=-1), self.dropout, self.training)
            out = torch.einsum("bhij,bhjd->bhid", attn, v)

        return self.to_out(out.transpose(1, 2).flatten(2))


class ConditionedBlock(nn.Module):
    def __init__(self, dim, context_dim, heads=4, dim_head=16):
        super().__init__()
        self.cross = CrossAttention(dim, context_dim=context_dim, heads=heads, dim_head=dim_head, num_null_kv=2)
        self.ff = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, dim))

    def forward(self, feats, text, text_mask=None):
        b, c, h, w = feats.shape
        x = feats.flatten(2).transpose(1, 2)
        x = x + self.cross(x, text, text_mask)
        x = x + self.ff(x)
        return x.transpose(1, 2).reshape(b, c, h, w)


if __name__ == "__main__":
    blk = ConditionedBlock(32, 24).eval()
    text_mask = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]]).bool()     # second caption dropped
    out = blk(torch.randn(2, 32, 6, 6), torch.randn(2, 5, 24), text_mask)
    print(out.shape, torch.isfinite(out).all())
