# expect: correct
import torch
import torch.nn as nn
import torch.nn.functional as F


class LatentResampler(nn.Module):
    """Perceiver style pooling: a fixed set of learned latents reads a variable number of media
    tokens. The latents also attend to each other (keys/values = media followed by latents).

    media:     (B, M, media_dim)
    media_len: (B,) number of real tokens, or None. An item without any media is fine, its
               latents then only see themselves.
    returns    (B, num_latents, latent_dim)
    """

    def __init__(self, num_latents=16, latent_dim=128, media_dim=None, num_heads=4, depth=2):
        super().__init__()
        media_dim = media_dim or latent_dim
        self.h = num_heads
        self.latents = nn.Parameter(torch.randn(num_latents, latent_dim) * 0.02)
        self.media_in = nn.Linear(media_dim, latent_dim)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                dict(
                    ln_media=nn.LayerNorm(latent_dim),
                    ln_lat=nn.LayerNorm(latent_dim),
                    q=nn.Linear(latent_dim, latent_dim, bias=False),
                    kv=nn.Linear(latent_dim, 2 * latent_dim, bias=False),
                    out=nn.Linear(latent_dim, latent_dim, bias=False),
                )
            )
            for _ in range(depth)
        )
        self.ln_out = nn.LayerNorm(latent_dim)

    def _heads(self, t):
        return t.unflatten(-1, (self.h, -1)).transpose(1, 2)

    def forward(self, media, media_len=None):
        B, M, _ = media.shape
        x = self.latents.expand(B, -1, -1)
        media = self.media_in(media)

        mask = None
        if media_len is not None:
            ok = torch.arange(M, device=media.device) < media_len[:, None]
            ok = F.pad(ok, (0, x.shape[1]), value=True)
            mask = ok[:, None, None, :]

        for layer in self.layers:
            lat = layer["ln_lat"](x)
            ctx = torch.cat((layer["ln_media"](media), lat), dim=1)
            q = self._heads(layer["q"](lat))
            k, v = map(self._heads, layer["kv"](ctx).chunk(2, dim=-1))
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            x = x + layer["out"](y.transpose(1, 2).flatten(2))
        return self.ln_out(x)
