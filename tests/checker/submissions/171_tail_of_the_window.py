# expect: cache-differs
import torch
import torch.nn as nn
import torch.nn.functional as F


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


class SlidingWindowAttention(nn.Module):
    """
    Causal attention restricted to the last `window` tokens (the current one included).

    y, past = attn(x)                    # prefill
    y, past = attn(x_next, past=past)    # continue, one or more tokens

    `past` is a tuple (k, v, seen): the tail of the rotated keys and the values, and the
    number of tokens seen so far. Only what a later token can still look at is
    kept, so memory stays constant for long generations.
    """

    def __init__(self, width, heads, window, theta=10000.0):
        super().__init__()
        self.heads, self.window = heads, window
        self.hd = width // heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.register_buffer(
            "freqs", theta ** (-torch.arange(0, self.hd, 2).float() / self.hd), persistent=False
        )

    def _rot(self, x, pos):
        ang = pos.float()[:, None] * self.freqs[None, :]
        ang = torch.cat((ang, ang), dim=-1)
        return x * ang.cos().to(x.dtype) + rotate_half(x) * ang.sin().to(x.dtype)

    def forward(self, x, past=None):
        B, T, W = x.shape
        q, k, v = (t.view(B, T, self.heads, self.hd).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))

        offset = past[2] if past is not None else 0
        q_pos = torch.arange(offset, offset + T, device=x.device)
        q, k = self._rot(q, q_pos), self._rot(k, q_pos)
        if past is not None:
            k = torch.cat((past[0], k), dim=2)
            v = torch.cat((past[1], v), dim=2)

        n_keys = k.size(2)
        k_pos = torch.arange(offset + T - n_keys, offset + T, device=x.device)
        dist = q_pos[:, None] - k_pos[None, :]
        mask = (dist >= 0) & (dist < self.window)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        y = self.o(y.transpose(1, 2).reshape(B, T, W))

        keep = min(n_keys, self.window)
        present = (k[:, :, -keep:], v[:, :, -keep:], n_keys)
        return y, present
