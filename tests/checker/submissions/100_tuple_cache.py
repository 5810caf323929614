# expect: correct
from typing import Optional, Tuple
import torch
from torch import nn


class LMAttention(nn.Module):
    """Decoder attention: rotary (half-split layout), grouped kv heads, tuple cache.

    forward returns (output, (k, v)). Cached keys are stored already rotated.
    """

    def __init__(self, hidden: int, heads: int, kv_heads: int, theta: float = 10000.0):
        super().__init__()
        self.heads, self.kv_heads, self.hd = heads, kv_heads, hidden // heads
        self.q_proj = nn.Linear(hidden, heads * self.hd, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * self.hd, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * self.hd, bias=False)
        self.o_proj = nn.Linear(heads * self.hd, hidden, bias=False)
        self.theta = theta

    def rope(self, x: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
        half = self.hd // 2
        f = self.theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
        ang = pos.float()[:, None] * f[None, :]
        c, s = ang.cos().to(x.dtype), ang.sin().to(x.dtype)
        x1, x2 = x[..., :half], x[..., half:]
        return torch.cat([x1 * c - x2 * s, x2 * c + x1 * s], dim=-1)

    def forward(
        self, x: torch.Tensor, past: Optional[Tuple[torch.Tensor, torch.Tensor]] = None
    ):
        B, T, _ = x.shape
        q = self.q_proj(x).view(B, T, self.heads, self.hd).transpose(1, 2)
        k = self.k_proj(x).view(B, T, self.kv_heads, self.hd).transpose(1, 2)
        v = self.v_proj(x).view(B, T, self.kv_heads, self.hd).transpose(1, 2)

        start = 0 if past is None else past[0].shape[2]
        pos = torch.arange(start, start + T, device=x.device)
        q, k = self.rope(q, pos), self.rope(k, pos)
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)
        present = (k, v)
        S = k.shape[2]

        # (B, kv, group, T, hd) so nothing has to be copied for k and v
        qg = q.reshape(B, self.kv_heads, self.heads // self.kv_heads, T, self.hd)
        att = torch.einsum("bkgtd,bksd->bkgts", qg, k) * self.hd ** -0.5
        ok = torch.arange(S, device=x.device)[None, :] <= pos[:, None]
        att = att.masked_fill(~ok, torch.finfo(att.dtype).min).softmax(-1)
        y = torch.einsum("bkgts,bksd->bkgtd", att, v).reshape(B, self.heads, T, self.hd)
        return self.o_proj(y.transpose(1, 2).reshape(B, T, -1)), present
