# expect: correct
# why: right: joint attention of image and text streams with RMSNorm on q and k
"""Joint text/image attention for the rectified-flow transformer."""
from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


def modulate(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class JointAttention(nn.Module):
    """Both streams have their own projections and attend to the concatenation of both.

    Args:
        dim, num_heads: usual.
        qk_norm: per-head RMSNorm on queries and keys, separate for the two streams.
        context_pre_only: last block; the text stream only provides keys and values.

    forward(img, txt, txt_mask):
        img: (B, N, dim), txt: (B, L, dim)
        txt_mask: bool (B, L), True for real text tokens; padding is not attended to.
    Returns ``(img_out, txt_out)``; ``txt_out`` is None when ``context_pre_only``.
    """

    def __init__(self, dim: int, num_heads: int, qk_norm: bool = True, context_pre_only: bool = False):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.context_pre_only = context_pre_only

        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim) for _ in range(3))
        self.add_k_proj, self.add_v_proj = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.to_out = nn.Linear(dim, dim)

        def norm():
            return nn.RMSNorm(self.head_dim, eps=1e-6) if qk_norm else nn.Identity()

        self.norm_q, self.norm_k = norm(), norm()
        self.norm_added_k = norm()
        if not context_pre_only:
            self.add_q_proj = nn.Linear(dim, dim)
            self.norm_added_q = norm()
            self.to_add_out = nn.Linear(dim, dim)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def forward(self, img: torch.Tensor, txt: torch.Tensor, txt_mask: Optional[torch.Tensor] = None
                ) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        B, N, _ = img.shape
        L = txt.shape[1]

        q = self.norm_q(self._heads(self.to_q(img)))
        k = torch.cat([self.norm_k(self._heads(self.to_k(img))),
                       self.norm_added_k(self._heads(self.add_k_proj(txt)))], dim=2)
        v = torch.cat([self._heads(self.to_v(img)), self._heads(self.add_v_proj(txt))], dim=2)
        if not self.context_pre_only:
            q = torch.cat([q, self.norm_added_q(self._heads(self.add_q_proj(txt)))], dim=2)

        mask = None
        if txt_mask is not None:
            mask = F.pad(txt_mask, (N, 0), value=True)[:, None, None, :]

        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out = out.transpose(1, 2).flatten(2)
        if self.context_pre_only:
            return self.to_out(out), None
        img_out, txt_out = out.split([N, L], dim=1)
        return self.to_out(img_out), self.to_add_out(txt_out)


class JointBlock(nn.Module):
    """MM-DiT block with adaLN-zero modulation of the two streams."""

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float = 4.0):
        super().__init__()
        self.attn = JointAttention(dim, num_heads)
        hidden = int(dim * mlp_ratio)
        self.norms = nn.ModuleDict({n: nn.LayerNorm(dim, elementwise_affine=False)
                                    for n in ("img1", "img2", "txt1", "txt2")})
        self.mlps = nn.ModuleDict({n: nn.Sequential(nn.Linear(dim, hidden), nn.GELU(approximate="tanh"),
                                                    nn.Linear(hidden, dim)) for n in ("img", "txt")})
        self.ada = nn.ModuleDict({n: nn.Linear(dim, 6 * dim) for n in ("img", "txt")})
        for lin in self.ada.values():
            nn.init.zeros_(lin.weight)
            nn.init.zeros_(lin.bias)

    def forward(self, img, txt, temb, txt_mask=None):
        c = F.silu(temb)
        i = self.ada["img"](c).chunk(6, dim=-1)
        t = self.ada["txt"](c).chunk(6, dim=-1)
        ia, ta = self.attn(modulate(self.norms["img1"](img), i[0], i[1]),
                           modulate(self.norms["txt1"](txt), t[0], t[1]), txt_mask)
        img = img + i[2].unsqueeze(1) * ia
        txt = txt + t[2].unsqueeze(1) * ta
        img = img + i[5].unsqueeze(1) * self.mlps["img"](modulate(self.norms["img2"](img), i[3], i[4]))
        txt = txt + t[5].unsqueeze(1) * self.mlps["txt"](modulate(self.norms["txt2"](txt), t[3], t[4]))
        return img, txt
