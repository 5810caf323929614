# expect: rotary-pairs-mixed
# why: the angles are laid out for adjacent pairs (repeat_interleave) but rotate_half pairs the two halves, so the result is no rotation and scores do not depend on the distance only; shows at line 23: `emb = freqs.repeat_interleave(2, dim=-1)`
import torch
import torch.nn as nn
import torch.nn.functional as F

AMINO = "-ACDEFGHIKLMNPQRSTVWY"


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2:]
    return torch.cat([-x2, x1], dim=-1)


class RotaryEmbedding(nn.Module):
    """Rotary positions (Su et al.): scores between residues depend on their distance only."""

    def __init__(self, head_dim, max_len=1024, base=10000.0):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, head_dim, 2).float() / head_dim))
        freqs = torch.outer(torch.arange(max_len).float(), inv_freq)
        emb = freqs.repeat_interleave(2, dim=-1)
        self.register_buffer("cos", emb.cos(), persistent=False)
        self.register_buffer("sin", emb.sin(), persistent=False)

    def forward(self, q, k):
        n = q.shape[-2]
        cos, sin = self.cos[:n], self.sin[:n]
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        return q, k


class ResidueAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q_norm = nn.LayerNorm(dim // heads)
        self.k_norm = nn.LayerNorm(dim // heads)
        self.in_proj = nn.Linear(dim, dim * 3, bias=False)
        self.out_proj = nn.Linear(dim, dim, bias=False)
        self.rotary = RotaryEmbedding(dim // heads)

    def forward(self, x, seq_mask=None):
        """seq_mask: (B, L), True for residues, False for padding."""
        B, L, D = x.shape
        q, k, v = self.in_proj(x).view(B, L, 3, self.heads, -1).unbind(2)
        q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        q, k = self.rotary(q, k)
        attn_mask = None if seq_mask is None else seq_mask[:, None, None, :]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        return self.out_proj(out.transpose(1, 2).reshape(B, L, D))


class ProteinBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm_attn = nn.LayerNorm(dim)
        self.attn = ResidueAttention(dim, heads)
        self.ffn = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, seq_mask=None):
        x = x + self.attn(self.norm_attn(x), seq_mask)
        return x + self.ffn(x)


class ProteinLM(nn.Module):
    """Masked language model over amino acid sequences."""

    def __init__(self, dim=64, depth=2, heads=4):
        super().__init__()
        self.pad = AMINO.index("-")
        self.embed = nn.Embedding(len(AMINO) + 1, dim)  # last entry: <mask>
        self.blocks = nn.ModuleList([ProteinBlock(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, len(AMINO))

    def forward(self, tokens):
        mask = tokens != self.pad
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.lm_head(self.norm(x))
