# expect: rotary-ignores-position
# why: apply_rope takes the positions from x.shape[-2], but q and k are still (b, t, heads, head_dim) when it is called, so the head index is used as position, on line 41
import torch
import torch.nn as nn


def rope_params(head_dim, context_length, base=10_000):
    inv_freq = 1.0 / (base ** (torch.arange(0, head_dim, 2).float() / head_dim))
    pos = torch.arange(context_length).float()
    angles = pos[:, None] * inv_freq[None, :]
    angles = torch.cat([angles, angles], dim=1)
    return torch.cos(angles), torch.sin(angles)


def apply_rope(x, cos, sin):
    n, d = x.shape[-2], x.shape[-1]
    x1, x2 = x[..., : d // 2], x[..., d // 2:]
    rotated = torch.cat((-x2, x1), dim=-1)
    return x * cos[:n] + rotated * sin[:n]


class MultiHeadAttentionRoPE(nn.Module):
    def __init__(self, d_model, num_heads, context_length=256):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
        cos, sin = rope_params(self.head_dim, context_length)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)
        self.register_buffer("mask", torch.ones(context_length, context_length).triu(1).bool())

    def forward(self, x):
        b, t, d = x.shape
        q = self.W_q(x).view(b, t, self.num_heads, self.head_dim)
        k = self.W_k(x).view(b, t, self.num_heads, self.head_dim)
        v = self.W_v(x).view(b, t, self.num_heads, self.head_dim)

        q, k = apply_rope(q, self.cos, self.sin), apply_rope(k, self.cos, self.sin)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

        scores = q @ k.transpose(2, 3) / self.head_dim ** 0.5
        scores = scores.masked_fill(self.mask[:t, :t], -torch.inf)
        out = torch.softmax(scores, dim=-1) @ v
        return self.W_o(out.transpose(1, 2).reshape(b, t, d))


if __name__ == "__main__":
    torch.manual_seed(123)
    mha = MultiHeadAttentionRoPE(64, 4)
    print(mha(torch.randn(2, 20, 64)).shape)
