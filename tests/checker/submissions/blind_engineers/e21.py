# expect: wrong
# why: the padding mask is added before the soft clamp, so masked residues are only pushed to -5 and still get weight.
"""Single representation attention with pair bias (structure prediction trunk)."""
from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F


def permute_final_dims(t: torch.Tensor, inds: list[int]) -> torch.Tensor:
    zero_index = -1 * len(inds)
    first = list(range(len(t.shape[:zero_index])))
    return t.permute(first + [zero_index + i for i in inds])


def softclamp(t: torch.Tensor, value: float) -> torch.Tensor:
    return (t / value).tanh() * value


class LinearNoBias(nn.Linear):
    def __init__(self, in_features: int, out_features: int):
        super().__init__(in_features, out_features, bias=False)


class AttentionPairBias(nn.Module):
    """
    Args:
        c_s: channels of the single representation
        c_z: channels of the pair representation
        num_heads: number of heads, c_s must be divisible by it
        softclamp_value: bound for the attention logits, None to disable
        inf: magnitude used for masked positions
    """

    def __init__(self, c_s: int, c_z: int, num_heads: int, softclamp_value: float | None = 5.0, inf: float = 1e9):
        super().__init__()
        assert c_s % num_heads == 0
        self.c_s = c_s
        self.num_heads = num_heads
        self.head_dim = c_s // num_heads
        self.softclamp_value = softclamp_value
        self.inf = inf

        self.norm_s = nn.LayerNorm(c_s)
        self.proj_q = nn.Linear(c_s, c_s)
        self.proj_k = LinearNoBias(c_s, c_s)
        self.proj_v = LinearNoBias(c_s, c_s)
        self.proj_g = LinearNoBias(c_s, c_s)
        self.proj_z = nn.Sequential(nn.LayerNorm(c_z), LinearNoBias(c_z, num_heads))
        self.proj_o = LinearNoBias(c_s, c_s)

    def forward(self, s: torch.Tensor, z: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """
        Args:
            s: [*, N, c_s] single representation
            z: [*, N, N, c_z] pair representation
            mask: [*, N], 1 for residues that exist
        Returns:
            [*, N, c_s] update
        """
        s = self.norm_s(s)
        q = self.proj_q(s).unflatten(-1, (self.num_heads, self.head_dim))
        k = self.proj_k(s).unflatten(-1, (self.num_heads, self.head_dim))
        v = self.proj_v(s).unflatten(-1, (self.num_heads, self.head_dim))
        g = self.proj_g(s).sigmoid()
        z = permute_final_dims(self.proj_z(z), [2, 0, 1])

        attn = torch.einsum("...ihd,...jhd->...hij", q, k) * self.head_dim**-0.5
        attn = attn + z
        attn = attn + (1 - mask[..., None, None, :]).to(attn.dtype) * -self.inf
        if self.softclamp_value is not None:
            attn = softclamp(attn, self.softclamp_value)
        attn = attn.softmax(dim=-1)

        o = torch.einsum("...hij,...jhd->...ihd", attn, v).flatten(-2)
        return self.proj_o(g * o)


class Transition(nn.Module):
    def __init__(self, c: int, n: int = 2):
        super().__init__()
        self.norm = nn.LayerNorm(c)
        self.a, self.b, self.o = LinearNoBias(c, n * c), LinearNoBias(c, n * c), LinearNoBias(n * c, c)

    def forward(self, x):
        x = self.norm(x)
        return self.o(F.silu(self.a(x)) * self.b(x))


class TrunkLayer(nn.Module):
    def __init__(self, c_s: int = 32, c_z: int = 16, num_heads: int = 4, **kwargs):
        super().__init__()
        self.attn = AttentionPairBias(c_s, c_z, num_heads, **kwargs)
        self.transition = Transition(c_s)

    def forward(self, s, z, mask):
        s = s + self.attn(s, z, mask)
        return s + self.transition(s)
