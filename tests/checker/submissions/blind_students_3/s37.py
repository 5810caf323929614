# expect: cached-mask-misaligned
# why: Line 39: the causal mask tril(ones(T, S)) is aligned to the first key; with a cache (S > T) the new token's row is [1,0,0,...] so it sees only key 0 and not the past and itself (needs diagonal=S-T).
import torch
import torch.nn as nn
import torch.nn.functional as F
from typing import Optional, Tuple


class CausalAttentionWithCache(nn.Module):
    def __init__(self, dim: int, n_heads: int):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.o_proj = nn.Linear(dim, dim)

    def forward(
        self,
        x: torch.Tensor,
        kv_cache: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
    ):
        """
        x: (B, T, dim) - whole prompt on the first call, only the new token(s) afterwards
        returns the output and the updated cache
        """
        B, T, dim = x.shape
        q = self.q_proj(x).view(B, T, self.n_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(B, T, self.n_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(B, T, self.n_heads, self.head_dim).transpose(1, 2)

        if kv_cache is not None:
            past_k, past_v = kv_cache
            k = torch.cat([past_k, k], dim=-2)
            v = torch.cat([past_v, v], dim=-2)
        new_cache = (k, v)

        S = k.shape[-2]
        scores = (q @ k.transpose(-2, -1)) / self.head_dim ** 0.5
        mask = torch.tril(torch.ones(T, S, device=x.device))
        scores = scores.masked_fill(mask == 0, float("-inf"))

        weights = F.softmax(scores, dim=-1)
        out = (weights @ v).transpose(1, 2).reshape(B, T, dim)
        return self.o_proj(out), new_cache


@torch.no_grad()
def decode(attn: CausalAttentionWithCache, prompt: torch.Tensor, steps: int):
    """toy decoding: the output vector is the next input vector"""
    out, cache = attn(prompt)
    cur = out[:, -1:]
    result = [cur]
    for _ in range(steps - 1):
        cur, cache = attn(cur, cache)
        result.append(cur)
    return torch.cat(result, dim=1)


if __name__ == "__main__":
    a = CausalAttentionWithCache(32, 4).eval()
    print(decode(a, torch.randn(2, 5, 32), steps=6).shape)  # (2, 6, 32)
