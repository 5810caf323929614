# expect: split-without-transpose
# why: the projections are split with view(B, H, T, head_dim) directly, without a transpose from (B, T, H, head_dim), which mixes positions and heads, on line 23
import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHeadSelfAttention(nn.Module):
    """Bidirectional multi head self attention for an encoder."""

    def __init__(self, embed_dim: int = 64, num_heads: int = 8):
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError("embed_dim not divisible by num_heads")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out = nn.Linear(embed_dim, embed_dim)

    def _shape(self, tensor: torch.Tensor, bsz: int, seq_len: int) -> torch.Tensor:
        return tensor.view(bsz, self.num_heads, seq_len, self.head_dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bsz, seq_len, _ = x.size()

        q = self._shape(self.q_proj(x), bsz, seq_len)
        k = self._shape(self.k_proj(x), bsz, seq_len)
        v = self._shape(self.v_proj(x), bsz, seq_len)

        energy = torch.matmul(q, k.transpose(-1, -2)) / (self.head_dim ** 0.5)
        attention = F.softmax(energy, dim=-1)
        out = torch.matmul(attention, v)

        out = out.transpose(1, 2).reshape(bsz, seq_len, self.embed_dim)
        return self.out(out)


if __name__ == "__main__":
    torch.manual_seed(0)
    layer = MultiHeadSelfAttention(64, 8)
    sample = torch.randn(4, 12, 64)
    result = layer(sample)
    print("in ", sample.shape)
    print("out", result.shape)
    n_params = sum(p.numel() for p in layer.parameters())
    print("parameters:", n_params)
