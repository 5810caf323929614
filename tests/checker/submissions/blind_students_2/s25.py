# expect: wrong
# why: Lines 42-43 (with line 14): RoPE is applied while the tensors are (B,T,H,d), but it uses axis -2 as the position, so it rotates by the head index; q and k get the same angle and there is no position information at all. Shows always (T > 1).
import torch
import torch.nn as nn
import torch.nn.functional as F


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, base=10000):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("inv_freq", inv_freq)

    def forward(self, x):
        """Rotate the pairs (x1, x2) by an angle that grows with the position."""
        seq_len = x.shape[-2]
        t = torch.arange(seq_len, device=x.device).type_as(self.inv_freq)
        freqs = torch.outer(t, self.inv_freq)
        cos, sin = freqs.cos(), freqs.sin()
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat([x1 * cos - x2 * sin, x1 * sin + x2 * cos], dim=-1)


class RoPEMultiHeadAttention(nn.Module):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0):
        super().__init__()
        assert d_model % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = d_model // num_heads

        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, d_model, bias=False)
        self.o_proj = nn.Linear(d_model, d_model, bias=False)
        self.rope = RotaryEmbedding(self.head_dim)
        self.dropout = dropout

    def forward(self, x):
        bsz, seq, d_model = x.size()
        q = self.q_proj(x).view(bsz, seq, self.num_heads, self.head_dim)
        k = self.k_proj(x).view(bsz, seq, self.num_heads, self.head_dim)
        v = self.v_proj(x).view(bsz, seq, self.num_heads, self.head_dim)

        q = self.rope(q)
        k = self.rope(k)

        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0)
        return self.o_proj(out.transpose(1, 2).reshape(bsz, seq, d_model))


if __name__ == "__main__":
    mha = RoPEMultiHeadAttention(64, 4)
    print(mha(torch.randn(2, 10, 64)).shape)
