# expect: correct
"""Causal attention with a key/value cache for generating text."""
from typing import Optional, Tuple
import torch
import torch.nn as nn

Cache = Tuple[torch.Tensor, torch.Tensor]


class CachedAttention(nn.Module):
    def __init__(self, width: int, n_heads: int):
        super().__init__()
        self.n_heads = n_heads
        self.head_width = width // n_heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width, bias=False)
        self.v = nn.Linear(width, width, bias=False)
        self.o = nn.Linear(width, width, bias=False)

    def _split(self, x):
        return x.unflatten(-1, (self.n_heads, self.head_width)).transpose(1, 2)

    def forward(self, x: torch.Tensor, cache: Optional[Cache] = None):
        q, k, v = self._split(self.q(x)), self._split(self.k(x)), self._split(self.v(x))
        if cache is not None:
            k = torch.cat([cache[0], k], dim=2)
            v = torch.cat([cache[1], v], dim=2)

        n_new, n_all = q.size(2), k.size(2)
        # row i of the new tokens is position n_all - n_new + i
        allowed = torch.ones(n_new, n_all, dtype=torch.bool, device=x.device)
        allowed = allowed.tril(diagonal=n_all - n_new)

        s = q @ k.transpose(2, 3) / self.head_width ** 0.5
        s = s.masked_fill(allowed.logical_not(), float("-inf"))
        y = s.softmax(dim=-1) @ v
        y = self.o(y.transpose(1, 2).flatten(-2))
        return y, (k, v)


@torch.no_grad()
def compare_with_full_pass():
    torch.manual_seed(3)
    att = CachedAttention(32, 4)
    x = torch.randn(1, 10, 32)
    full, _ = att(x)
    first, cache = att(x[:, :4])
    parts = [first]
    for t in range(4, 10):
        y, cache = att(x[:, t:t + 1], cache)
        parts.append(y)
    print((torch.cat(parts, 1) - full).abs().max())


if __name__ == "__main__":
    compare_with_full_pass()
