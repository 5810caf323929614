# expect: correct
"""Perceiver-style resampler: a fixed number of latents reads a variable number of visual tokens
of another width and hands them to a language model."""
import torch
from torch import nn


class LatentCrossAttention(nn.Module):
    def __init__(self, latent_dim: int, media_dim: int, n_head: int = 4, d_head: int = 16):
        super().__init__()
        inner = n_head * d_head
        self.n_head = n_head
        self.scale = d_head ** -0.5
        self.ln_latent = nn.LayerNorm(latent_dim)
        self.ln_media = nn.LayerNorm(media_dim)
        self.q_from_latent = nn.Linear(latent_dim, inner, bias=False)
        # the latents also read themselves; their width differs, hence two kv projections
        self.kv_from_media = nn.Linear(media_dim, 2 * inner, bias=False)
        self.kv_from_latent = nn.Linear(latent_dim, 2 * inner, bias=False)
        self.out = nn.Linear(inner, latent_dim, bias=False)

    def forward(self, latents, media, media_mask=None):
        """latents (B, L, latent_dim), media (B, M, media_dim), media_mask (B, M) bool, True = real."""
        b, n_lat, _ = latents.shape
        latents = self.ln_latent(latents)
        media = self.ln_media(media)

        q = self.q_from_latent(latents)
        kv = torch.cat((self.kv_from_media(media), self.kv_from_latent(latents)), dim=1)
        k, v = kv.chunk(2, dim=-1)
        q, k, v = (t.reshape(b, t.shape[1], self.n_head, -1).transpose(1, 2) for t in (q, k, v))

        sim = (q * self.scale) @ k.transpose(-2, -1)
        if media_mask is not None:
            keep = torch.cat((media_mask, media_mask.new_ones(b, n_lat)), dim=1)
            sim = sim.masked_fill(~keep[:, None, None, :], -torch.finfo(sim.dtype).max)
        # subtracting the row maximum changes nothing but the range of exp
        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        out = sim.softmax(dim=-1) @ v
        return self.out(out.transpose(1, 2).reshape(b, n_lat, -1))


def feed_forward(dim: int, mult: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim * mult, bias=False), nn.GELU(),
                         nn.Linear(dim * mult, dim, bias=False))


class Resampler(nn.Module):
    def __init__(self, media_dim: int = 48, latent_dim: int = 32, out_dim: int = 64, n_latents: int = 5,
                 depth: int = 2, max_frames: int = 4):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(n_latents, latent_dim))
        self.frame_emb = nn.Parameter(torch.randn(max_frames, media_dim) * 0.02)
        self.layers = nn.ModuleList(
            nn.ModuleList([LatentCrossAttention(latent_dim, media_dim), feed_forward(latent_dim)])
            for _ in range(depth))
        self.norm = nn.LayerNorm(latent_dim)
        self.to_lm = nn.Linear(latent_dim, out_dim)

    def forward(self, frames, frame_mask=None):
        """frames: (B, F, P, media_dim); frame_mask: (B, F) bool."""
        b, f, p, d = frames.shape
        media = (frames + self.frame_emb[:f, None]).reshape(b, f * p, d)
        mask = None if frame_mask is None else frame_mask.repeat_interleave(p, dim=1)
        x = self.latents.expand(b, -1, -1)
        for attn, ff in self.layers:
            x = x + attn(x, media, mask)
            x = x + ff(x)
        return self.to_lm(self.norm(x))
