# expect: correct
import torch
import torch.nn as nn


class MHA_einsum(nn.Module):
    # homework 3.3, all heads at once, one layer for q k v, mask is made when needed

    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        assert d_out % num_heads == 0
        self.H = num_heads
        self.D = d_out // num_heads
        self.max_len = context_length
        self.W = nn.Linear(d_in, d_out * 3, bias=qkv_bias)
        self.out = nn.Linear(d_out, d_out)
        self.drop = nn.Dropout(dropout)
        self.register_buffer("_mask", None, persistent=False)

    def get_mask(self, T, device):
        m = self._mask
        if m is None or m.shape[0] < T or m.device != device:
            m = torch.triu(torch.ones(T, T, dtype=torch.bool, device=device), diagonal=1)
            self._mask = m
        return m[:T, :T]

    def forward(self, x):
        B, T, _ = x.shape
        if T > self.max_len:
            raise ValueError(f"sequence of {T} tokens is longer than {self.max_len}")
        # last axis is (head, which, dim): every head has its own q, k, v next to each other
        z = self.W(x).view(B, T, self.H, 3, self.D)
        q, k, v = z[..., 0, :], z[..., 1, :], z[..., 2, :]

        e = torch.einsum("bihd,bjhd->bhij", q, k)
        e = e.masked_fill(self.get_mask(T, x.device), float("-inf"))
        a = torch.softmax(e / self.D ** 0.5, dim=3)
        a = self.drop(a)
        y = torch.einsum("bhij,bjhd->bihd", a, v)
        return self.out(y.reshape(B, T, self.H * self.D))
