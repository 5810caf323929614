# expect: wrong
# why: with a KV cache the causal mask starts again at row 0, so a new token sees only the first cached key instead of all earlier ones.
import torch
import torch.nn as nn
import torch.nn.functional as F


class CachedAttention(nn.Module):
    """Causal multi-head attention with a key/value cache for faster generate()."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = d_model // n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)
        self.cache_k = None
        self.cache_v = None

    def reset_cache(self):
        self.cache_k, self.cache_v = None, None

    def forward(self, x, use_cache=False):
        B, T, D = x.shape
        q, k, v = self.qkv(x).split(D, dim=2)
        q = q.view(B, T, self.n_heads, self.head_dim).transpose(1, 2)
        k = k.view(B, T, self.n_heads, self.head_dim).transpose(1, 2)
        v = v.view(B, T, self.n_heads, self.head_dim).transpose(1, 2)

        if use_cache:
            if self.cache_k is not None:
                k = torch.cat([self.cache_k, k], dim=2)
                v = torch.cat([self.cache_v, v], dim=2)
            self.cache_k, self.cache_v = k, v

        S = k.shape[2]
        att = (q @ k.transpose(2, 3)) / (self.head_dim ** 0.5)
        keep = torch.tril(torch.ones(T, S, device=x.device, dtype=torch.bool))
        att = att.masked_fill(~keep, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, D)
        return self.out(y)


if __name__ == "__main__":
    torch.manual_seed(1)
    m = CachedAttention(16, 2).eval()
    seq = torch.randn(1, 5, 16)
    full = m(seq)
    steps = []
    for t in range(seq.shape[1]):
        steps.append(m(seq[:, t:t + 1], use_cache=True))
    print(full.shape, torch.cat(steps, 1).shape)
