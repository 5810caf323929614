# expect: correct
# why: right: causal sliding window, finfo.min fill, rows that see nothing are set to zero
from typing import Optional

import torch
from torch import Tensor, nn


def band_mask(n: int, window: int, device=None) -> Tensor:
    """allowed[i, j] is True if token i may look at token j.

    Token i sees itself and the window-1 tokens before it.
    """
    i = torch.arange(n, device=device)[:, None]
    j = torch.arange(n, device=device)[None, :]
    return (j <= i) & (i - j < window)


class LocalCausalAttention(nn.Module):
    """Causal multi-head attention restricted to the last `window` tokens (like Mistral)."""

    def __init__(self, d_model: int, n_heads: int, window: int, dropout: float = 0.0):
        super().__init__()
        if d_model % n_heads != 0:
            raise ValueError("d_model must be a multiple of n_heads")
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.window = window
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, d_model, bias=False)
        self.o_proj = nn.Linear(d_model, d_model, bias=False)
        self.drop = nn.Dropout(dropout)

    def _heads(self, t: Tensor) -> Tensor:
        return t.unflatten(-1, (self.n_heads, self.d_head)).transpose(1, 2)

    def forward(self, x: Tensor, key_padding_mask: Optional[Tensor] = None) -> Tensor:
        """x: (B, N, d_model). key_padding_mask: (B, N) bool, True where the token is padding."""
        n = x.shape[1]
        q, k, v = (self._heads(p(x)) for p in (self.q_proj, self.k_proj, self.v_proj))

        allowed = band_mask(n, self.window, x.device)          # (N, N)
        if key_padding_mask is not None:
            allowed = allowed & ~key_padding_mask[:, None, None, :]   # (B, 1, N, N)

        scores = q @ k.mT / self.d_head ** 0.5
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        probs = scores.softmax(-1)
        # rows which have nothing to look at (padding only) give zeros
        probs = probs.masked_fill(~allowed, 0.0)
        out = self.drop(probs) @ v
        return self.o_proj(out.transpose(1, 2).flatten(2))


if __name__ == "__main__":
    m = band_mask(6, 3)
    print(m.int())
    layer = LocalCausalAttention(32, 4, window=3)
    pad = torch.zeros(2, 6, dtype=torch.bool)
    pad[1, 4:] = True
    print(layer(torch.randn(2, 6, 32), pad).shape)
