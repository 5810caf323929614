# expect: correct
# trying to add RoPE to my GPT (llama style, first half / second half)
import torch
import torch.nn as nn


def precompute_rope(head_dim, max_len, theta=10_000.0):
    inv = 1.0 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    pos = torch.arange(max_len).float()
    ang = torch.outer(pos, inv)                 # (max_len, head_dim/2)
    ang = torch.cat([ang, ang], dim=1)          # (max_len, head_dim)
    return ang.cos(), ang.sin()


def rotate_half(x):
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat([-b, a], dim=-1)


def apply_rope(x, cos, sin):
    # x: (batch, heads, tokens, head_dim)
    n = x.shape[-2]
    return x * cos[:n].to(x.dtype) + rotate_half(x) * sin[:n].to(x.dtype)


class RopeAttention(nn.Module):
    def __init__(self, d_model, num_heads, context_length):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = d_model // num_heads
        assert self.head_dim % 2 == 0
        self.wq = nn.Linear(d_model, d_model, bias=False)
        self.wk = nn.Linear(d_model, d_model, bias=False)
        self.wv = nn.Linear(d_model, d_model, bias=False)
        self.wo = nn.Linear(d_model, d_model, bias=False)
        cos, sin = precompute_rope(self.head_dim, context_length)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.register_buffer(
            "mask", torch.triu(torch.ones(context_length, context_length, dtype=torch.bool), diagonal=1),
            persistent=False)

    def forward(self, x):
        b, n, d = x.shape
        q = self.wq(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)

        # only q and k get rotated
        q = apply_rope(q, self.cos, self.sin)
        k = apply_rope(k, self.cos, self.sin)

        scores = (q @ k.mT) / self.head_dim ** 0.5
        scores = scores.masked_fill(self.mask[:n, :n], -torch.inf)
        ctx = scores.softmax(-1) @ v
        return self.wo(ctx.transpose(1, 2).reshape(b, n, d))


if __name__ == "__main__":
    att = RopeAttention(24, 3, 20)
    print(att(torch.randn(2, 11, 24)).shape)
