# expect: correct
# why: plain
"""Gated MSA row attention with pair bias (AlphaFold 2, supplementary algorithm 7)."""
import math
from typing import Optional

import torch
import torch.nn as nn


def permute_final_dims(tensor: torch.Tensor, inds):
    zero_index = -1 * len(inds)
    first_inds = list(range(len(tensor.shape[:zero_index])))
    return tensor.permute(first_inds + [zero_index + i for i in inds])


class Attention(nn.Module):
    """
    Args:
        c_q, c_k, c_v: input widths
        c_hidden: per-head hidden width
        no_heads: number of heads
        gating: whether the output should be gated by the query data
    """

    def __init__(self, c_q, c_k, c_v, c_hidden, no_heads, gating=True):
        super().__init__()
        self.c_hidden = c_hidden
        self.no_heads = no_heads
        self.linear_q = nn.Linear(c_q, c_hidden * no_heads, bias=False)
        self.linear_k = nn.Linear(c_k, c_hidden * no_heads, bias=False)
        self.linear_v = nn.Linear(c_v, c_hidden * no_heads, bias=False)
        self.linear_o = nn.Linear(c_hidden * no_heads, c_q)
        self.linear_g = nn.Linear(c_q, c_hidden * no_heads) if gating else None
        self.sigmoid = nn.Sigmoid()

    def forward(self, q_x, kv_x, biases=None):
        # [*, Q/K, H, C] -> [*, H, Q/K, C]
        q = self.linear_q(q_x).unflatten(-1, (self.no_heads, -1)).transpose(-2, -3)
        k = self.linear_k(kv_x).unflatten(-1, (self.no_heads, -1)).transpose(-2, -3)
        v = self.linear_v(kv_x).unflatten(-1, (self.no_heads, -1)).transpose(-2, -3)
        q = q / math.sqrt(self.c_hidden)

        a = torch.matmul(q, permute_final_dims(k, (1, 0)))
        for b in biases or []:
            a = a + b
        a = torch.softmax(a, dim=-1)
        o = torch.matmul(a, v).transpose(-2, -3)  # [*, Q, H, C]
        if self.linear_g is not None:
            g = self.sigmoid(self.linear_g(q_x)).unflatten(-1, (self.no_heads, -1))
            o = o * g
        return self.linear_o(o.flatten(-2))


class MSARowAttentionWithPairBias(nn.Module):
    def __init__(self, c_m, c_z, c_hidden, no_heads, inf=1e9):
        super().__init__()
        self.inf = inf
        self.layer_norm_m = nn.LayerNorm(c_m)
        self.layer_norm_z = nn.LayerNorm(c_z)
        self.linear_z = nn.Linear(c_z, no_heads, bias=False)
        self.mha = Attention(c_m, c_m, c_m, c_hidden, no_heads)

    def forward(self, m: torch.Tensor, z: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """
        m:    [*, N_seq, N_res, C_m] MSA embedding
        z:    [*, N_res, N_res, C_z] pair embedding
        mask: [*, N_seq, N_res], 1 for known residues
        """
        if mask is None:
            mask = m.new_ones(m.shape[:-1])
        mask_bias = (self.inf * (mask - 1))[..., :, None, None, :]          # [*, N_seq, 1, 1, N_res]
        z = self.linear_z(self.layer_norm_z(z))                             # [*, N_res, N_res, H]
        z = permute_final_dims(z, (2, 0, 1)).unsqueeze(-4)                  # [*, 1, H, N_res, N_res]
        m = self.layer_norm_m(m)
        return self.mha(m, m, [mask_bias, z])


class MSAColumnAttention(nn.Module):
    """Attention among the sequences of the alignment, for each residue."""

    def __init__(self, c_m, c_hidden, no_heads, inf=1e9):
        super().__init__()
        self.inf = inf
        self.layer_norm_m = nn.LayerNorm(c_m)
        self.mha = Attention(c_m, c_m, c_m, c_hidden, no_heads)

    def forward(self, m, mask=None):
        m = m.transpose(-2, -3)
        mask = m.new_ones(m.shape[:-1]) if mask is None else mask.transpose(-1, -2)
        bias = (self.inf * (mask - 1))[..., :, None, None, :]
        m = self.layer_norm_m(m)
        return self.mha(m, m, [bias]).transpose(-2, -3)
