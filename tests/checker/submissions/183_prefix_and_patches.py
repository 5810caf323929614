# expect: correct
import torch
import torch.nn as nn
import torch.nn.functional as F


class ViTAttention(nn.Module):
    """
    Self attention for a ViT with qk-norm and axial 2D rotary embedding.

    tokens = [prefix (cls + registers) | patches in row-major order]
    The prefix tokens carry no position and are not rotated. For a patch the first half of each
    head is rotated by its row, the second half by its column.
    """

    def __init__(self, dim, num_heads=6, n_prefix=1, qkv_bias=True, attn_drop=0.0, proj_drop=0.0,
                 theta=100.0):
        super().__init__()
        assert dim % num_heads == 0 and (dim // num_heads) % 4 == 0
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.n_prefix = n_prefix
        self.theta = theta
        self.attn_drop = attn_drop
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.q_norm = nn.LayerNorm(self.head_dim)
        self.k_norm = nn.LayerNorm(self.head_dim)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def _angles(self, h, w, device):
        n = self.head_dim // 4
        f = self.theta ** (-torch.arange(n, device=device) / n)
        y = torch.arange(h, device=device).repeat_interleave(w)
        x = torch.arange(w, device=device).repeat(h)
        return torch.cat((y[:, None] * f, x[:, None] * f), dim=-1)     # (h*w, head_dim / 2)

    def _rotate(self, t, ang):
        pre, t = t[:, :, :self.n_prefix], t[:, :, self.n_prefix:]
        even, odd = t[..., ::2], t[..., 1::2]
        c, s = ang.cos().to(t.dtype), ang.sin().to(t.dtype)
        t = torch.stack((even * c - odd * s, odd * c + even * s), -1).flatten(-2)
        return torch.cat((pre, t), dim=2)

    def forward(self, x, grid, need_weights=False):
        """grid = (rows, cols) of patches. need_weights: also return (B, heads, N, N)."""
        B, N, C = x.shape
        assert N == self.n_prefix + grid[0] * grid[1]
        q, k, v = self.qkv(x).view(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        ang = self._angles(*grid, x.device)
        q = self._rotate(self.q_norm(q), ang)
        k = self._rotate(self.k_norm(k), ang)

        if need_weights:
            w = (q @ k.transpose(-2, -1) * self.head_dim ** -0.5).softmax(-1)
            y = F.dropout(w, self.attn_drop, self.training) @ v
        else:
            w = None
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.attn_drop if self.training else 0.0)
        y = self.proj_drop(self.proj(y.transpose(1, 2).reshape(B, N, C)))
        return (y, w) if need_weights else y
