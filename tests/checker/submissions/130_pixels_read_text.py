# expect: correct
import torch
import torch.nn as nn


class SpatialCrossAttn2d(nn.Module):
    """U-Net block: every pixel attends to the text encoder states.

    x        B C H W
    ctx      B S ctx_dim
    ctx_keep B S bool, True where the token is real
    """

    def __init__(self, channels, ctx_dim, head_dim=32, groups=8):
        super().__init__()
        self.n_heads = channels // head_dim
        self.norm = nn.GroupNorm(groups, channels)
        self.norm_ctx = nn.LayerNorm(ctx_dim)
        self.q = nn.Conv2d(channels, channels, 1)
        self.kv = nn.Linear(ctx_dim, 2 * channels)
        self.out = nn.Conv2d(channels, channels, 1)
        nn.init.zeros_(self.out.bias)

    def forward(self, x, ctx, ctx_keep=None):
        B, C, H, W = x.shape
        d = C // self.n_heads
        q = self.q(self.norm(x)).view(B, self.n_heads, d, H * W)
        kv = self.kv(self.norm_ctx(ctx)).transpose(1, 2)            # B 2C S
        k, v = kv.view(B, 2 * self.n_heads, d, -1).chunk(2, dim=1)  # B h d S

        # split the temperature over both sides, nicer in fp16
        s = d ** -0.25
        att = torch.einsum("bhdp,bhds->bhps", q * s, k * s).float()
        if ctx_keep is not None:
            att = att.masked_fill(~ctx_keep[:, None, None, :], torch.finfo(att.dtype).min)
        att = att.softmax(dim=-1).to(v.dtype)
        y = torch.einsum("bhps,bhds->bhdp", att, v)
        return x + self.out(y.reshape(B, C, H, W))
