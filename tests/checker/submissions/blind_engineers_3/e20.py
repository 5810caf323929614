# expect: correct
from __future__ import annotations

import torch
from torch import Tensor, nn

GEMMA2_TINY = {
    "hidden_size": 64,
    "n_heads": 4,
    "n_kv_heads": 2,
    "head_dim": 20,                    # not hidden_size / n_heads, as in the 9B
    "query_pre_attn_scalar": 16,
    "attn_softcap": 50.0,
    "window": 4,
    "rope_theta": 10000.0,
    "rms_eps": 1e-6,
}


class GemmaRMSNorm(nn.Module):
    """x * (1 + w), computed in float32"""

    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        xf = x.float()
        xf = xf * torch.rsqrt(xf.square().mean(-1, keepdim=True) + self.eps)
        return (xf * (1.0 + self.weight.float())).to(x.dtype)


def softcap(logits: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(logits / cap)


class Rope(nn.Module):
    def __init__(self, dim: int, theta: float):
        super().__init__()
        exponent = torch.arange(0, dim, 2, dtype=torch.float32) / dim
        self.register_buffer("timescale", theta ** exponent, persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        # x: [batch, time, heads, dim], positions: [time]
        radians = positions[None, :, None, None] / self.timescale
        sin, cos = radians.sin(), radians.cos()
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


class Gemma2Attention(nn.Module):
    def __init__(self, cfg: dict, layer_idx: int):
        super().__init__()
        self.cfg = cfg
        # even layers are local, odd layers are global
        self.window = cfg["window"] if layer_idx % 2 == 0 else None
        n, m, h, d = cfg["n_heads"], cfg["n_kv_heads"], cfg["head_dim"], cfg["hidden_size"]
        self.q_einsum = nn.Parameter(torch.randn(n, d, h) * d ** -0.5)
        self.kv_einsum = nn.Parameter(torch.randn(2, m, d, h) * d ** -0.5)
        self.out_einsum = nn.Parameter(torch.randn(n, h, d) * (n * h) ** -0.5)
        self.rope = Rope(h, cfg["rope_theta"])

    def forward(self, x: Tensor) -> Tensor:
        cfg, (B, T, _) = self.cfg, x.shape
        pos = torch.arange(T, device=x.device)
        q = self.rope(torch.einsum("btd,ndh->btnh", x, self.q_einsum), pos)
        k, v = torch.einsum("bsd,cmdh->cbsmh", x, self.kv_einsum)
        k = self.rope(k, pos)
        q = q * cfg["query_pre_attn_scalar"] ** -0.5

        # n query heads = m groups of g; group i is served by kv head i
        q = q.reshape(B, T, cfg["n_kv_heads"], -1, cfg["head_dim"])
        logits = torch.einsum("btmgh,bsmh->bmgts", q, k)
        logits = softcap(logits, cfg["attn_softcap"])

        delta = pos[:, None] - pos[None, :]
        allowed = delta >= 0
        if self.window is not None:
            allowed = allowed & (delta < self.window)
        logits = torch.where(allowed, logits, torch.tensor(-2.3819763e38, device=x.device))
        probs = logits.float().softmax(dim=-1).to(v.dtype)
        encoded = torch.einsum("bmgts,bsmh->btmgh", probs, v).flatten(2, 3)
        return torch.einsum("btnh,nhd->btd", encoded, self.out_einsum)


class Gemma2Block(nn.Module):
    def __init__(self, cfg: dict, layer_idx: int):
        super().__init__()
        d = cfg["hidden_size"]
        self.attn = Gemma2Attention(cfg, layer_idx)
        self.gate, self.up, self.down = nn.Linear(d, 4 * d, bias=False), nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)
        self.pre_attn, self.post_attn, self.pre_ffw, self.post_ffw = (GemmaRMSNorm(d, cfg["rms_eps"]) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.post_attn(self.attn(self.pre_attn(x)))
        h = self.pre_ffw(x)
        h = self.down(nn.functional.gelu(self.gate(h), approximate="tanh") * self.up(h))
        return x + self.post_ffw(h)
