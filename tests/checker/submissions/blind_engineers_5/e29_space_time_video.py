# expect: correct
# why: plain
import torch
from torch import nn, einsum
from einops import rearrange, repeat


def attn(q, k, v):
    sim = einsum('b i d, b j d -> b i j', q, k)
    return einsum('b i j, b j d -> b i d', sim.softmax(dim=-1), v)


class DividedAttention(nn.Module):
    """Attention along one axis of the clip. The class token sees everything, and everything sees it."""

    def __init__(self, dim, dim_head=16, heads=4, dropout=0.):
        super().__init__()
        self.heads = heads
        self.scale = dim_head ** -0.5
        inner_dim = dim_head * heads
        self.to_qkv = nn.Linear(dim, inner_dim * 3, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner_dim, dim), nn.Dropout(dropout))

    def forward(self, x, einops_from, einops_to, **einops_dims):
        h = self.heads
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = map(lambda t: rearrange(t, 'b n (h d) -> (b h) n d', h=h), (q, k, v))
        q = q * self.scale

        # splice out class token at index 0
        (cls_q, q_), (cls_k, k_), (cls_v, v_) = map(lambda t: (t[:, :1], t[:, 1:]), (q, k, v))
        cls_out = attn(cls_q, k, v)

        # rearrange across time or space
        q_, k_, v_ = map(lambda t: rearrange(t, f'{einops_from} -> {einops_to}', **einops_dims), (q_, k_, v_))

        # every group gets its copy of the class key and value
        r = q_.shape[0] // cls_k.shape[0]
        cls_k, cls_v = map(lambda t: repeat(t, 'b () d -> (b r) () d', r=r), (cls_k, cls_v))
        k_ = torch.cat((cls_k, k_), dim=1)
        v_ = torch.cat((cls_v, v_), dim=1)
        out = attn(q_, k_, v_)

        # merge back time or space
        out = rearrange(out, f'{einops_to} -> {einops_from}', **einops_dims)
        out = torch.cat((cls_out, out), dim=1)
        out = rearrange(out, '(b h) n d -> b n (h d)', h=h)
        return self.to_out(out)


class SpaceTimeEncoder(nn.Module):
    def __init__(self, *, dim=32, num_frames=4, image_size=12, patch_size=4, num_classes=5, channels=3, depth=2,
                 heads=4, dim_head=8):
        super().__init__()
        self.patch_size = patch_size
        n = (image_size // patch_size) ** 2
        self.to_patch_embedding = nn.Linear(channels * patch_size ** 2, dim)
        self.pos_emb = nn.Embedding(num_frames * n + 1, dim)
        self.cls_token = nn.Parameter(torch.randn(1, dim))
        self.layers = nn.ModuleList([])
        for _ in range(depth):
            self.layers.append(nn.ModuleList([
                nn.LayerNorm(dim), DividedAttention(dim, dim_head, heads),
                nn.LayerNorm(dim), DividedAttention(dim, dim_head, heads),
                nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim * 4), nn.GELU(), nn.Linear(dim * 4, dim)),
            ]))
        self.to_out = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, num_classes))

    def forward(self, video):
        b, f, _, hgt, wid = video.shape
        p = self.patch_size
        n = (hgt // p) * (wid // p)
        video = rearrange(video, 'b f c (h p1) (w p2) -> b (f h w) (p1 p2 c)', p1=p, p2=p)
        tokens = self.to_patch_embedding(video)
        x = torch.cat((repeat(self.cls_token, 'n d -> b n d', b=b), tokens), dim=1)
        x = x + self.pos_emb(torch.arange(x.shape[1], device=x.device))
        for ln_t, time_attn, ln_s, spatial_attn, ff in self.layers:
            x = x + time_attn(ln_t(x), 'b (f n) d', '(b n) f d', n=n)
            x = x + spatial_attn(ln_s(x), 'b (f n) d', '(b f) n d', f=f)
            x = x + ff(x)
        return self.to_out(x[:, 0])
