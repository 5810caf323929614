# expect: correct
# what: lucidrains local attention in buckets with look-around (equals banded attention)
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn


def exists(val):
    return val is not None


def pad_to_multiple(t, multiple, dim=-2, value=0.0):
    n = t.shape[dim]
    extra = -n % multiple
    if extra == 0:
        return False, t
    offset = (0,) * (-1 - dim) * 2
    return True, F.pad(t, (*offset, 0, extra), value=value)


def look_around(x, backward=1, forward=0, pad_value=-1.0, dim=2):
    """(b, windows, w, ...) -> (b, windows, (backward + forward + 1) * w, ...)"""
    n_windows = x.shape[1]
    tail = (len(x.shape) - dim) * (0, 0)
    padded = F.pad(x, (*tail, backward, forward), value=pad_value)
    views = [padded[:, i : i + n_windows] for i in range(forward + backward + 1)]
    return torch.cat(views, dim=dim)


class LocalAttention(nn.Module):
    """Each query sees keys at most `window_size` positions away: behind it, and when not causal also ahead.
    Computed in buckets, with the neighbouring buckets looked up for each one."""

    def __init__(self, window_size, causal=False, dropout=0.0, scale=None, autopad=True):
        super().__init__()
        self.window_size = window_size
        self.causal = causal
        self.look_backward = 1
        self.look_forward = 0 if causal else 1
        self.scale = scale
        self.autopad = autopad
        self.dropout = nn.Dropout(dropout)

    def forward(self, q, k, v, mask=None):
        """q, k, v: (b, h, n, d); mask: (b, n) bool, True = keep"""
        b, heads, n_orig, dim_head = q.shape
        q, k, v = (rearrange(t, "b h n d -> (b h) n d") for t in (q, k, v))
        w = self.window_size
        if self.autopad:
            (_, q), (_, k), (_, v) = (pad_to_multiple(t, w, dim=-2) for t in (q, k, v))
        n = q.shape[1]
        assert n % w == 0, "sequence length must be divisible by window size"
        windows = n // w
        scale = self.scale if exists(self.scale) else dim_head**-0.5

        pos = torch.arange(n, device=q.device)
        b_pos = rearrange(pos, "(w n) -> 1 w n", w=windows)
        bq, bk, bv = (rearrange(t, "b (w n) d -> b w n d", w=windows) for t in (q, k, v))
        around = dict(backward=self.look_backward, forward=self.look_forward)
        bk = look_around(bk, **around, pad_value=0.0)
        bv = look_around(bv, **around, pad_value=0.0)
        k_pos = look_around(b_pos, **around, pad_value=-1)

        q_pos = rearrange(b_pos, "... i -> ... i 1")
        k_pos = rearrange(k_pos, "... j -> ... 1 j")
        absent = (k_pos == -1) | (k_pos >= n_orig)

        sim = torch.einsum("b w i d, b w j d -> b w i j", bq * scale, bk)
        neg = -torch.finfo(sim.dtype).max
        far = (q_pos - k_pos).abs() > w
        hidden = absent | far
        if self.causal:
            hidden = hidden | (k_pos > q_pos)
        sim = sim.masked_fill(hidden, neg)

        if exists(mask):
            _, mask = pad_to_multiple(mask, w, dim=-1, value=False)
            mask = rearrange(mask, "b (w n) -> b w n", w=windows)
            mask = look_around(mask, **around, pad_value=False)
            mask = rearrange(mask, "b w j -> b w 1 j").repeat_interleave(heads, dim=0)
            sim = sim.masked_fill(~mask, neg)

        attn = self.dropout(sim.softmax(dim=-1))
        out = torch.einsum("b w i j, b w j d -> b w i d", attn, bv)
        out = rearrange(out, "b w n d -> b (w n) d")[:, :n_orig]
        return rearrange(out, "(b h) n d -> b h n d", h=heads)


class LocalMHA(nn.Module):
    def __init__(self, *, dim, window_size, dim_head=16, heads=4, causal=False, prenorm=False, dropout=0.0):
        super().__init__()
        inner_dim = dim_head * heads
        self.heads = heads
        self.norm = nn.LayerNorm(dim) if prenorm else None
        self.to_qkv = nn.Linear(dim, inner_dim * 3, bias=False)
        self.attn_fn = LocalAttention(window_size, causal=causal, dropout=dropout)
        self.to_out = nn.Linear(inner_dim, dim, bias=False)

    def forward(self, x, mask=None):
        if exists(self.norm):
            x = self.norm(x)
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = map(lambda t: rearrange(t, "b n (h d) -> b h n d", h=self.heads), (q, k, v))
        out = self.attn_fn(q, k, v, mask=mask)
        return self.to_out(rearrange(out, "b h n d -> b n (h d)"))
