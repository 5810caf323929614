# expect: correct
from dataclasses import dataclass
import torch
from torch import nn, Tensor
import torch.nn.functional as F


@dataclass(frozen=True)
class GQAConfig:
    dim: int = 64
    q_heads: int = 8
    kv_heads: int = 2
    rope_base: float = 10000.0

    @property
    def head_dim(self) -> int:
        return self.dim // self.q_heads


def rotary(t: Tensor, base: float) -> Tensor:
    """t: (b, heads, n, d), d even. Pairs feature i with feature i + d/2."""
    n, d = t.shape[-2:]
    freq = base ** (-torch.arange(0, d, 2, device=t.device, dtype=torch.float32) / d)
    angle = torch.arange(n, device=t.device, dtype=torch.float32)[:, None] * freq[None, :]
    cos, sin = angle.cos().to(t.dtype), angle.sin().to(t.dtype)
    a, b = t.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class GroupedQueryAttention(nn.Module):
    def __init__(self, c: GQAConfig):
        super().__init__()
        assert c.q_heads % c.kv_heads == 0
        self.c = c
        self.wq = nn.Linear(c.dim, c.q_heads * c.head_dim, bias=False)
        self.wkv = nn.Linear(c.dim, 2 * c.kv_heads * c.head_dim, bias=False)
        self.wo = nn.Linear(c.q_heads * c.head_dim, c.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        c = self.c
        b, n, _ = x.shape
        q = self.wq(x).view(b, n, c.q_heads, c.head_dim).transpose(1, 2)
        k, v = self.wkv(x).chunk(2, dim=-1)
        k = k.view(b, n, c.kv_heads, c.head_dim).transpose(1, 2)
        v = v.view(b, n, c.kv_heads, c.head_dim).transpose(1, 2)

        q, k = rotary(q, c.rope_base), rotary(k, c.rope_base)

        group = c.q_heads // c.kv_heads
        k = k.repeat_interleave(group, dim=1)
        v = v.repeat_interleave(group, dim=1)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(o.transpose(1, 2).reshape(b, n, -1))
