# expect: wrong
# why: two: scaled by the token width dim, not head_dim; keys use q_norm, so k_norm is unused
"""Transformer policy for manipulation: observation tokens in, action tokens out."""
from typing import Optional

import torch
import torch.nn as nn
from einops import rearrange, repeat


class QKNormAttention(nn.Module):
    """Self- or cross-attention with normalised queries and keys.

    q and k each get their own LayerNorm (with affine parameters) over the head dimension, as in
    ViT-22B, then the usual ``1 / sqrt(head_dim)`` scaling.

    Args:
        dim: width of the query tokens.
        heads, head_dim: geometry; ``heads * head_dim`` need not equal ``dim``.
        context_dim: width of the context tokens (default: dim).

    ``forward(x, context, context_valid)``
        x (B, N, dim); context (B, M, context_dim), None = self-attention;
        context_valid bool (B, M), True for usable tokens (cameras may drop out), at least one per row.
    """

    def __init__(self, dim: int, heads: int = 4, head_dim: int = 32, context_dim: Optional[int] = None):
        super().__init__()
        inner = heads * head_dim
        context_dim = context_dim or dim
        self.heads = heads
        self.scale = dim ** -0.5
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(context_dim, 2 * inner, bias=False)
        self.q_norm = nn.LayerNorm(head_dim)
        self.k_norm = nn.LayerNorm(head_dim)
        self.to_out = nn.Linear(inner, dim)

    def forward(self, x: torch.Tensor, context: Optional[torch.Tensor] = None,
                context_valid: Optional[torch.Tensor] = None) -> torch.Tensor:
        context = x if context is None else context
        q = rearrange(self.to_q(x), "b n (h d) -> b h n d", h=self.heads)
        k, v = rearrange(self.to_kv(context), "b m (two h d) -> two b h m d", two=2, h=self.heads)
        q, k = self.q_norm(q), self.q_norm(k)

        sim = torch.einsum("bhnd,bhmd->bhnm", q, k) * self.scale
        if context_valid is not None:
            sim = sim.masked_fill(~rearrange(context_valid, "b m -> b 1 1 m"), float("-inf"))
        attn = sim.softmax(dim=-1)
        out = torch.einsum("bhnm,bhmd->bhnd", attn, v)
        return self.to_out(rearrange(out, "b h n d -> b n (h d)"))


class PolicyBlock(nn.Module):
    def __init__(self, dim: int, context_dim: int, heads: int, head_dim: int):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(dim) for _ in range(3))
        self.self_attn = QKNormAttention(dim, heads, head_dim)
        self.cross_attn = QKNormAttention(dim, heads, head_dim, context_dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, obs, obs_valid=None):
        x = x + self.self_attn(self.norm1(x))
        x = x + self.cross_attn(self.norm2(x), obs, obs_valid)
        return x + self.mlp(self.norm3(x))


class ActionChunkPolicy(nn.Module):
    """Predicts ``horizon`` actions at once from tokens of the cameras and the joint state."""

    def __init__(self, obs_dim: int = 96, joint_dim: int = 7, action_dim: int = 7, dim: int = 128,
                 horizon: int = 8, depth: int = 2, heads: int = 4, head_dim: int = 32):
        super().__init__()
        self.queries = nn.Parameter(torch.randn(horizon, dim) * 0.02)
        self.joint_proj = nn.Linear(joint_dim, obs_dim)
        self.blocks = nn.ModuleList(PolicyBlock(dim, obs_dim, heads, head_dim) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, action_dim)

    def forward(self, obs_tokens, joints, obs_valid=None):
        """obs_tokens (B, M, obs_dim), joints (B, joint_dim), obs_valid (B, M) -> (B, horizon, action_dim)"""
        obs = torch.cat([self.joint_proj(joints).unsqueeze(1), obs_tokens], dim=1)
        if obs_valid is not None:
            obs_valid = torch.cat([torch.ones_like(obs_valid[:, :1]), obs_valid], dim=1)
        x = repeat(self.queries, "n d -> b n d", b=obs.shape[0])
        for block in self.blocks:
            x = block(x, obs, obs_valid)
        return self.head(self.norm(x))
