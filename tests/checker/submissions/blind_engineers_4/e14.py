# expect: correct
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class ZeroCentredRMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.size(-1),), 1.0 + self.weight, self.eps)


class PartialRotary(nn.Module):
    """Rotates the first ``rot_dim`` channels of every head and passes the rest through."""

    def __init__(self, rot_dim: int, base: float = 1e7) -> None:
        super().__init__()
        self.rot_dim = rot_dim
        self.base = base

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        rot, keep = x[..., : self.rot_dim], x[..., self.rot_dim:]
        half = self.rot_dim // 2
        inv = self.base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
        ang = positions.to(torch.float32)[:, None, :, None] * inv          # b 1 t half
        c, s = ang.cos().to(x.dtype), ang.sin().to(x.dtype)
        a, b = rot[..., :half], rot[..., half:]
        return torch.cat((a * c - b * s, a * s + b * c, keep), dim=-1)


class GatedAttention(nn.Module):
    """Softmax attention whose output is multiplied with sigmoid(gate(x)) before the output projection."""

    def __init__(self, dim: int, n_q: int, n_kv: int, head_dim: int, rotary_fraction: float = 0.25) -> None:
        super().__init__()
        self.n_q, self.n_kv, self.hd = n_q, n_kv, head_dim
        # query and gate come out of one projection, side by side within each head
        self.q_gate = nn.Linear(dim, n_q * head_dim * 2, bias=False)
        self.kv = nn.Linear(dim, 2 * n_kv * head_dim, bias=False)
        self.o = nn.Linear(n_q * head_dim, dim, bias=False)
        self.q_norm = ZeroCentredRMSNorm(head_dim)
        self.k_norm = ZeroCentredRMSNorm(head_dim)
        self.rotary = PartialRotary(int(head_dim * rotary_fraction))

    def forward(
        self,
        x: torch.Tensor,
        positions: torch.Tensor | None = None,
        kv_cache: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        b, t, _ = x.shape
        past = kv_cache[0].size(2) if kv_cache is not None else 0
        if positions is None:
            positions = torch.arange(past, past + t, device=x.device).expand(b, t)

        q, gate = self.q_gate(x).view(b, t, self.n_q, 2 * self.hd).chunk(2, dim=-1)
        k, v = self.kv(x).view(b, t, 2, self.n_kv, self.hd).unbind(2)
        q = self.rotary(self.q_norm(q).transpose(1, 2), positions)
        k = self.rotary(self.k_norm(k).transpose(1, 2), positions)
        v = v.transpose(1, 2)

        if kv_cache is not None:
            k, v = torch.cat((kv_cache[0], k), 2), torch.cat((kv_cache[1], v), 2)
        new_cache = (k, v)

        # bottom-right aligned causal mask: query row r is the token number past + r
        mask = torch.ones(t, past + t, dtype=torch.bool, device=x.device).tril(diagonal=past)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=self.n_q != self.n_kv)
        y = y.transpose(1, 2) * torch.sigmoid(gate)
        return self.o(y.reshape(b, t, -1)), new_cache


class Layer(nn.Module):
    def __init__(self, dim: int = 64) -> None:
        super().__init__()
        self.in_norm, self.ff_norm = ZeroCentredRMSNorm(dim), ZeroCentredRMSNorm(dim)
        self.mixer = GatedAttention(dim, 8, 2, 16)
        self.w13, self.w2 = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x, positions=None, kv_cache=None):
        y, kv_cache = self.mixer(self.in_norm(x), positions, kv_cache)
        x = x + y
        a, b = self.w13(self.ff_norm(x)).chunk(2, -1)
        return x + self.w2(F.silu(a) * b), kv_cache
