# expect: wrong
# why: For the ending-node variant the pair bias is computed before the pair tensor is transposed, so b_ik is added where b_ki belongs.
"""Triangle self-attention on a pair representation, starting-node and ending-node variants."""
import torch
from torch import nn


class TriangleAttention(nn.Module):
    r"""
    starting node:  o_ij = sum_k softmax_k( q_ij . k_ik / sqrt(c) + b_jk ) v_ik
    ending node:    o_ij = sum_k softmax_k( q_ij . k_kj / sqrt(c) + b_ki ) v_kj

    The ending-node variant is the starting-node variant applied to the transposed pair tensor.
    """

    def __init__(self, c_z: int, c_hidden: int, n_heads: int, starting: bool = True, inf: float = 1e9):
        super().__init__()
        self.starting = starting
        self.n_heads, self.c = n_heads, c_hidden
        self.inf = inf
        self.layer_norm = nn.LayerNorm(c_z)
        self.bias_proj = nn.Linear(c_z, n_heads, bias=False)
        self.q = nn.Linear(c_z, n_heads * c_hidden, bias=False)
        self.k = nn.Linear(c_z, n_heads * c_hidden, bias=False)
        self.v = nn.Linear(c_z, n_heads * c_hidden, bias=False)
        self.g = nn.Linear(c_z, n_heads * c_hidden)
        self.o = nn.Linear(n_heads * c_hidden, c_z)

    def _split(self, t):
        # B I J (H c) -> B I H J c
        return t.unflatten(-1, (self.n_heads, self.c)).movedim(-2, -3)

    def forward(self, z: torch.Tensor, mask: torch.Tensor = None) -> torch.Tensor:
        """z: (B, N, N, c_z), mask: (B, N, N) with 1 for real pairs."""
        if mask is None:
            mask = z.new_ones(z.shape[:-1])

        x = self.layer_norm(z)
        tri_bias = self.bias_proj(x).permute(0, 3, 1, 2).unsqueeze(1)      # B 1 H N N
        if not self.starting:
            x = x.transpose(1, 2)
            mask = mask.transpose(1, 2)

        mask_bias = (self.inf * (mask - 1))[:, :, None, None, :]            # B I 1 1 K
        q = self._split(self.q(x)) * self.c ** -0.5
        k = self._split(self.k(x))
        v = self._split(self.v(x))

        a = q @ k.transpose(-1, -2) + mask_bias + tri_bias
        out = torch.softmax(a, dim=-1) @ v                                  # B I H J c
        out = out.movedim(-3, -2).flatten(-2)
        out = self.o(torch.sigmoid(self.g(x)) * out)
        if not self.starting:
            out = out.transpose(1, 2)
        return out


class TriangleMultiplication(nn.Module):
    def __init__(self, c_z: int, c: int, outgoing: bool = True):
        super().__init__()
        self.outgoing = outgoing
        self.norm_in, self.norm_out = nn.LayerNorm(c_z), nn.LayerNorm(c)
        self.ab, self.ab_gate = nn.Linear(c_z, 2 * c), nn.Linear(c_z, 2 * c)
        self.out, self.gate = nn.Linear(c, c_z), nn.Linear(c_z, c_z)

    def forward(self, z, mask=None):
        x = self.norm_in(z)
        ab = self.ab(x) * torch.sigmoid(self.ab_gate(x))
        if mask is not None:
            ab = ab * mask[..., None]
        a, b = ab.chunk(2, -1)
        eq = "bikc,bjkc->bijc" if self.outgoing else "bkic,bkjc->bijc"
        return torch.sigmoid(self.gate(x)) * self.out(self.norm_out(torch.einsum(eq, a, b)))


class PairBlock(nn.Module):
    def __init__(self, c_z: int = 16, c: int = 8, heads: int = 2):
        super().__init__()
        self.mul_out = TriangleMultiplication(c_z, c, True)
        self.mul_in = TriangleMultiplication(c_z, c, False)
        self.att_start = TriangleAttention(c_z, c, heads, starting=True)
        self.att_end = TriangleAttention(c_z, c, heads, starting=False)
        self.trans = nn.Sequential(nn.LayerNorm(c_z), nn.Linear(c_z, 4 * c_z), nn.ReLU(), nn.Linear(4 * c_z, c_z))

    def forward(self, z, mask=None):
        z = z + self.mul_out(z, mask)
        z = z + self.mul_in(z, mask)
        z = z + self.att_start(z, mask)
        z = z + self.att_end(z, mask)
        return z + self.trans(z)
