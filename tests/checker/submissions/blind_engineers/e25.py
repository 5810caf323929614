# expect: wrong
# why: the keys go through the query norm (key_norm unused), the rotation lacks its minus sign, and q is scaled before SDPA scales again.
"""Double-stream block attention for a text-to-image transformer (text tokens first, then image tokens)."""
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        rrms = torch.rsqrt(torch.mean(x.float() ** 2, dim=-1, keepdim=True) + self.eps)
        return (x.float() * rrms).to(x.dtype) * self.scale


class QKNorm(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.query_norm = RMSNorm(dim)
        self.key_norm = RMSNorm(dim)

    def forward(self, q: Tensor, k: Tensor) -> Tuple[Tensor, Tensor]:
        return self.query_norm(q), self.query_norm(k)


class EmbedND(nn.Module):
    """Axial rotary tables: every axis of the position ids gets its own share of the head channels."""

    def __init__(self, theta: int, axes_dim):
        super().__init__()
        self.theta = theta
        self.axes_dim = list(axes_dim)

    def forward(self, ids: Tensor) -> Tuple[Tensor, Tensor]:
        """ids: (B, L, n_axes) -> cos, sin of shape (B, 1, L, sum(axes_dim))"""
        cos, sin = [], []
        for i, dim in enumerate(self.axes_dim):
            freqs = 1.0 / (self.theta ** (torch.arange(0, dim, 2, device=ids.device).float() / dim))
            ang = ids[..., i, None].float() * freqs
            cos.append(ang.cos().repeat_interleave(2, dim=-1))
            sin.append(ang.sin().repeat_interleave(2, dim=-1))
        return torch.cat(cos, -1).unsqueeze(1), torch.cat(sin, -1).unsqueeze(1)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    x_even, x_odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    x_rotated = torch.stack([x_odd, x_even], dim=-1).flatten(-2)
    return x * cos.to(x.dtype) + x_rotated * sin.to(x.dtype)


class SelfAttention(nn.Module):
    def __init__(self, dim: int, num_heads: int = 8, qkv_bias: bool = False):
        super().__init__()
        self.num_heads = num_heads
        head_dim = dim // num_heads
        self.scale = head_dim ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.norm = QKNorm(head_dim)
        self.proj = nn.Linear(dim, dim)

    def project(self, x: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k = self.norm(q, k)
        return q * self.scale, k, v


class JointAttention(nn.Module):
    def __init__(self, hidden_size: int = 64, num_heads: int = 4, axes_dim=(4, 6, 6), theta: int = 10000):
        super().__init__()
        if sum(axes_dim) != hidden_size // num_heads:
            raise ValueError(f"Got {axes_dim} but expected positional dim {hidden_size // num_heads}")
        self.img_attn = SelfAttention(hidden_size, num_heads, qkv_bias=True)
        self.txt_attn = SelfAttention(hidden_size, num_heads, qkv_bias=True)
        self.pe_embedder = EmbedND(theta, axes_dim)

    def forward(self, img: Tensor, txt: Tensor, img_ids: Tensor, txt_ids: Tensor,
                attn_mask: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
        """attn_mask: (B, L_txt + L_img) bool, True for tokens that may be attended to."""
        img_q, img_k, img_v = self.img_attn.project(img)
        txt_q, txt_k, txt_v = self.txt_attn.project(txt)
        q = torch.cat((txt_q, img_q), dim=2)
        k = torch.cat((txt_k, img_k), dim=2)
        v = torch.cat((txt_v, img_v), dim=2)

        cos, sin = self.pe_embedder(torch.cat((txt_ids, img_ids), dim=1))
        q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)

        if attn_mask is not None:
            attn_mask = attn_mask[:, None, None, :]
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        x = x.transpose(1, 2).flatten(2)
        txt_out, img_out = x[:, : txt.shape[1]], x[:, txt.shape[1]:]
        return self.img_attn.proj(img_out), self.txt_attn.proj(txt_out)
