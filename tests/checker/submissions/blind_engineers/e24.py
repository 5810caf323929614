# expect: correct
from typing import Optional, Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class KVCache:
    """Grows by concatenation, one entry per layer."""

    def __init__(self) -> None:
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def update(self, k: Tensor, v: Tensor, layer_idx: int) -> Tuple[Tensor, Tensor]:
        if layer_idx in self.keys:
            k = torch.cat([self.keys[layer_idx], k], dim=2)
            v = torch.cat([self.values[layer_idx], v], dim=2)
        self.keys[layer_idx], self.values[layer_idx] = k, v
        return k, v

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.keys[layer_idx].shape[2] if layer_idx in self.keys else 0


class ZeroCenteredRMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * (1.0 + self.weight.float())).type_as(x)


def rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def apply_partial_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Tuple[Tensor, Tensor]:
    """cos and sin: (batch, seq, rot_dim); only the first rot_dim channels of each head rotate."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    rot = cos.shape[-1]

    def _one(x):
        x_rot, x_pass = x[..., :rot], x[..., rot:]
        return torch.cat([x_rot * cos + rotate_half(x_rot) * sin, x_pass], dim=-1)

    return _one(q), _one(k)


def rope_table(position_ids: Tensor, rot_dim: int, base: float = 10000.0, dtype=torch.float32):
    inv_freq = base ** (-torch.arange(0, rot_dim, 2, device=position_ids.device).float() / rot_dim)
    ang = position_ids[..., None].float() * inv_freq
    ang = torch.cat((ang, ang), dim=-1)
    return ang.cos().to(dtype), ang.sin().to(dtype)


class GatedAttention(nn.Module):
    """Full attention with a sigmoid gate on the heads' output; q_proj yields query and gate per head."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: Optional[int] = None,
                 layer_idx: int = 0, attn_dropout: float = 0.0, eps: float = 1e-6) -> None:
        super().__init__()
        if num_heads % num_kv_heads:
            raise ValueError("num_heads must be a multiple of num_kv_heads")
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim = head_dim or hidden_size // num_heads
        self.layer_idx = layer_idx
        self.attn_dropout = attn_dropout
        self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim * 2, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * self.head_dim, hidden_size, bias=False)
        self.q_norm = ZeroCenteredRMSNorm(self.head_dim, eps)
        self.k_norm = ZeroCenteredRMSNorm(self.head_dim, eps)

    def forward(self, hidden_states: Tensor, position_embeddings: Tuple[Tensor, Tensor],
                padding_mask: Optional[Tensor] = None, past: Optional[KVCache] = None) -> Tensor:
        """padding_mask: (batch, kv_len) bool, True for real tokens (left padding is fine)."""
        b, n, _ = hidden_states.shape
        q, gate = self.q_proj(hidden_states).view(b, n, self.num_heads, 2 * self.head_dim).chunk(2, dim=-1)
        gate = gate.reshape(b, n, -1)
        q = self.q_norm(q).transpose(1, 2)
        k = self.k_norm(self.k_proj(hidden_states).view(b, n, self.num_kv_heads, self.head_dim)).transpose(1, 2)
        v = self.v_proj(hidden_states).view(b, n, self.num_kv_heads, self.head_dim).transpose(1, 2)

        cos, sin = position_embeddings
        q, k = apply_partial_rotary(q, k, cos, sin)
        if past is not None:
            k, v = past.update(k, v, self.layer_idx)
        m = k.shape[2]

        attn_mask: Union[Tensor, None] = None
        is_causal = n == m and n > 1
        if padding_mask is not None or (n > 1 and n != m):
            allowed = torch.ones(n, m, dtype=torch.bool, device=q.device).tril(m - n)
            if padding_mask is not None:
                allowed = allowed & padding_mask[:, None, None, :]
                # keep padded queries finite
                allowed = allowed | torch.eye(m, dtype=torch.bool, device=q.device)[m - n:]
            attn_mask, is_causal = allowed, False

        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=attn_mask, is_causal=is_causal, enable_gqa=self.num_heads != self.num_kv_heads,
            dropout_p=self.attn_dropout if self.training else 0.0,
        )
        out = out.transpose(1, 2).reshape(b, n, -1)
        return self.o_proj(out * torch.sigmoid(gate))
