# expect: correct
# what: typed, lucidrains-like cross attention, context dim differs, True=valid mask, pre-norm block
from typing import Optional

import torch
from torch import nn, Tensor


class CrossAttention(nn.Module):
    """Queries come from ``x``, keys and values come from ``context``.

    If context is None this is ordinary self attention.
    """

    def __init__(
        self,
        query_dim: int,
        context_dim: Optional[int] = None,
        n_heads: int = 4,
        head_dim: int = 16,
        p_drop: float = 0.0,
    ) -> None:
        super().__init__()
        context_dim = context_dim or query_dim
        inner = n_heads * head_dim
        self.n_heads, self.head_dim = n_heads, head_dim

        self.to_q = nn.Linear(query_dim, inner, bias=False)
        self.to_kv = nn.Linear(context_dim, 2 * inner, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, query_dim), nn.Dropout(p_drop))
        self.attn_drop = nn.Dropout(p_drop)

    def _heads(self, t: Tensor) -> Tensor:
        return t.unflatten(-1, (self.n_heads, self.head_dim)).transpose(-3, -2)

    def forward(self, x: Tensor, context: Optional[Tensor] = None, context_mask: Optional[Tensor] = None) -> Tensor:
        """context_mask: bool (batch, context_len), True = valid position"""
        context = x if context is None else context

        q = self._heads(self.to_q(x))
        k, v = map(self._heads, self.to_kv(context).chunk(2, dim=-1))

        # dividing keeps the logits from growing with head_dim
        sim = torch.einsum("b h i d, b h j d -> b h i j", q, k) * self.head_dim ** -0.5

        if context_mask is not None:
            neg = -torch.finfo(sim.dtype).max
            sim = sim.masked_fill(~context_mask[:, None, None, :], neg)

        weights = self.attn_drop(sim.softmax(dim=-1))
        out = torch.einsum("b h i j, b h j d -> b h i d", weights, v)
        out = out.transpose(1, 2).flatten(-2)
        return self.to_out(out)


class CrossAttentionBlock(nn.Module):
    def __init__(self, dim: int, context_dim: int, **kw) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.norm_ctx = nn.LayerNorm(context_dim)
        self.attn = CrossAttention(dim, context_dim, **kw)

    def forward(self, x, ctx, ctx_mask=None):
        return x + self.attn(self.norm(x), self.norm_ctx(ctx), ctx_mask)


if __name__ == "__main__":
    latents = torch.randn(2, 6, 32)
    image_tokens = torch.randn(2, 11, 20)
    block = CrossAttentionBlock(32, 20, n_heads=4, head_dim=8)
    print(block(latents, image_tokens).shape)
