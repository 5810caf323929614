# expect: correct
# why: right: bucketed local attention, each query sees its own window up to itself and the window before
import torch
import torch.nn.functional as F
from torch import nn
from einops import rearrange


def look_around(x, pad_value=0.):
    """(b, windows, w, d) -> (b, windows, 2w, d): every window together with the one before it."""
    prev = F.pad(x[:, :-1], (0, 0, 0, 0, 1, 0), value=pad_value)
    return torch.cat((prev, x), dim=2)


class LocalAttention(nn.Module):
    """
    Causal attention in buckets. A query sees the keys of its own window up to itself, and the whole
    window before. Sequences are padded to a multiple of the window size and cut back afterwards.
    """

    def __init__(self, window_size, dropout=0.):
        super().__init__()
        self.window_size = window_size
        self.dropout = nn.Dropout(dropout)

    def forward(self, q, k, v, mask=None):
        """q, k, v: (b, h, n, d); mask: (b, n) True for real tokens"""
        b, h, n, d = q.shape
        w = self.window_size
        q, k, v = (rearrange(t, 'b h n d -> (b h) n d') for t in (q, k, v))
        pad = -n % w
        if pad:
            q, k, v = (F.pad(t, (0, 0, 0, pad)) for t in (q, k, v))
        windows = (n + pad) // w

        pos = torch.arange(n + pad, device=q.device).view(1, windows, w, 1)
        bq, bk, bv = (rearrange(t, 'b (m w) d -> b m w d', w=w) for t in (q * d ** -0.5, k, v))
        bk, bv = look_around(bk), look_around(bv)
        q_pos = pos.squeeze(-1)
        k_pos = look_around(pos, pad_value=-1).squeeze(-1)

        sim = torch.einsum('b m i d, b m j d -> b m i j', bq, bk)
        blocked = (q_pos[..., :, None] < k_pos[..., None, :]) | (k_pos[..., None, :] == -1)
        sim = sim.masked_fill(blocked, -torch.finfo(sim.dtype).max)
        if mask is not None:
            mask = F.pad(mask, (0, pad), value=False)
            bm = rearrange(mask, 'b (m w) -> b m w 1', w=w)
            bm = look_around(bm.float()).squeeze(-1).bool()
            bm = bm.repeat_interleave(h, dim=0)
            sim = sim.masked_fill(~bm[:, :, None, :], -torch.finfo(sim.dtype).max)

        attn = self.dropout(sim.softmax(dim=-1))
        out = torch.einsum('b m i j, b m j d -> b m i d', attn, bv)
        out = rearrange(out, '(b h) m w d -> b h (m w) d', h=h)
        return out[:, :, :n]


class LocalMHA(nn.Module):
    def __init__(self, *, dim, window_size, dim_head=16, heads=4, dropout=0.):
        super().__init__()
        inner_dim = dim_head * heads
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.to_qkv = nn.Linear(dim, inner_dim * 3, bias=False)
        self.attn_fn = LocalAttention(window_size, dropout)
        self.to_out = nn.Linear(inner_dim, dim, bias=False)

    def forward(self, x, mask=None):
        x = self.norm(x)
        q, k, v = (rearrange(t, 'b n (h d) -> b h n d', h=self.heads) for t in self.to_qkv(x).chunk(3, dim=-1))
        out = self.attn_fn(q, k, v, mask=mask)
        return self.to_out(rearrange(out, 'b h n d -> b n (h d)'))


class CharLM(nn.Module):
    def __init__(self, num_tokens=96, dim=32, depth=2, window_size=8, max_len=256):
        super().__init__()
        self.token_emb = nn.Embedding(num_tokens, dim)
        self.pos_emb = nn.Embedding(max_len, dim)
        self.layers = nn.ModuleList([nn.ModuleList([
            LocalMHA(dim=dim, window_size=window_size),
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)),
        ]) for _ in range(depth)])
        self.to_logits = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, num_tokens, bias=False))

    def forward(self, ids, mask=None):
        x = self.token_emb(ids) + self.pos_emb(torch.arange(ids.shape[1], device=ids.device))
        for attn, ff in self.layers:
            x = attn(x, mask) + x
            x = ff(x) + x
        return self.to_logits(x)
